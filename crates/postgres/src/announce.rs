//! Telling other processes that something was committed, and hearing it from them.
//!
//! Both are hints. A NOTIFY inside the commits themselves would make all of them queue for one lock of the server, so it
//! is sent after them, once for all that were made meanwhile. Whatever is not heard is noticed by looking once a second.

use std::sync::Arc;
use std::time::Duration;

use flowline_store::others::OtherProcesses;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::fault::PgFault;
use crate::pool::timely;
use crate::session::Session;
use crate::target::ServerTarget;

/// The most often that others are told.
const QUIET: Duration = Duration::from_millis(5);
/// How long something that was not heard can go unnoticed.
const LOOK: Duration = Duration::from_secs(1);

/// Ends with this.
#[derive(Debug)]
pub(crate) struct Announcer(JoinHandle<()>);

impl Announcer {
    pub(crate) fn start(
        target: ServerTarget,
        changed: watch::Sender<u64>,
        tell: Arc<Notify>,
        others: Arc<OtherProcesses>,
    ) -> Announcer {
        Announcer(tokio::spawn(async move {
            // Marks what this process says, which it need not hear.
            let own = format!("{:016x}", fastrand::u64(..));
            loop {
                // A server that is away is told by those who ask it; here it only has to come back.
                let _ = attend(&target, &changed, &tell, &others, &own).await;
                tokio::time::sleep(LOOK / 2 + LOOK.mul_f64(fastrand::f64())).await;
                // A standby lets nobody listen: who follows it looks once a second.
                changed.send_modify(|count| *count += 1);
            }
        }))
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn attend(
    target: &ServerTarget,
    changed: &watch::Sender<u64>,
    tell: &Notify,
    others: &OtherProcesses,
    own: &str,
) -> Result<(), PgFault> {
    let mut session = Session::connect(target).await?;
    let channel = format!("flowline_{}", target.schema);
    // What is only told need not be made durable.
    session.run(&format!("set synchronous_commit to off; listen {channel}")).await?;
    let bump = || changed.send_modify(|count| *count += 1);
    let mut seen = position(&session).await?;
    bump();
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            heard = session.heard.recv() => match heard {
                Some(from) if from == own => {}
                Some(_) => {
                    // One wake-up for all that were told together.
                    while session.heard.try_recv().is_ok() {}
                    others.hear();
                    bump();
                }
                None => return Ok(()),
            },
            () = tell.notified() => {
                timely(session.query("select pg_notify($1, $2)", &[&channel, &own])).await?;
                tokio::time::sleep(QUIET).await;
            }
            _ = look.tick() => {
                let now = timely(position(&session)).await?;
                if std::mem::replace(&mut seen, now) != now {
                    bump();
                }
            }
        }
    }
}

/// Moves with every event and every job that is added, by whomever.
async fn position(session: &Session) -> Result<(i64, i64), PgFault> {
    let sql = "select e.last_value, j.last_value from event_numbers e, job_numbers j";
    let row = session.query_one(sql, &[]).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}
