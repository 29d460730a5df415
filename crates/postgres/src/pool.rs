//! Connections for all that is not the group commit: reads, claims, heartbeats.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flowline_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fault::PgFault;
use crate::session::Session;
use crate::target::ServerTarget;
use crate::witness::Halt;

/// Beside two writers and the listener: twenty instances fit in a server's usual hundred connections twice over.
const SEATS: usize = 4;
/// A store that has no connection to spare for this long is not available.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub(crate) struct Pool {
    target: ServerTarget,
    idle: Mutex<Vec<Session>>,
    seats: Arc<Semaphore>,
    pub(crate) halt: Arc<Halt>,
}

/// A connection for a while. It goes back when this goes, unless it broke or was left within a transaction.
#[derive(Debug)]
pub(crate) struct PooledSession<'p> {
    pool: &'p Pool,
    session: Option<Session>,
    within: bool,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub(crate) fn new(target: ServerTarget, first: [Session; 2], halt: Arc<Halt>) -> Pool {
        Pool { target, idle: Mutex::new(first.into()), seats: Arc::new(Semaphore::new(SEATS)), halt }
    }

    pub(crate) async fn take(&self) -> Result<PooledSession<'_>, StoreError> {
        self.halt.healthy()?;
        let permit = tokio::time::timeout(PATIENCE, self.seats.clone().acquire_owned());
        let permit = permit.await.ok().and_then(Result::ok);
        let permit = permit.ok_or_else(|| StoreError::Unavailable("every connection is busy".to_owned()))?;
        let session = loop {
            let idle = self.idle().pop();
            match idle {
                Some(session) if session.is_closed() => continue,
                Some(session) => break session,
                None => break Session::connect(&self.target).await?,
            }
        };
        Ok(PooledSession { pool: self, session: Some(session), within: false, _permit: permit })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledSession<'_> {
    pub(crate) async fn begin(&mut self) -> Result<(), PgFault> {
        self.within = true;
        self.run("begin").await
    }

    /// Begins a transaction that may take its time: a run's log can be long.
    pub(crate) async fn begin_long(&mut self) -> Result<(), PgFault> {
        self.within = true;
        self.run("begin; set local statement_timeout to 60000").await
    }

    /// Nothing came back in time: what the connection has under way would hold up whoever gets it next.
    pub(crate) fn give_up(&mut self) {
        self.session = None;
    }

    /// The transaction was ended by who wrote it.
    pub(crate) fn ended(&mut self) {
        self.within = false;
    }

    pub(crate) async fn commit(&mut self) -> Result<(), PgFault> {
        self.run("commit").await?;
        self.within = false;
        Ok(())
    }
}

impl Deref for PooledSession<'_> {
    type Target = Session;
    fn deref(&self) -> &Session {
        // unwrap: taken out only by `drop`.
        self.session.as_ref().expect("a seat has its session until it goes")
    }
}

impl Drop for PooledSession<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|session| !self.within && !session.is_closed()) {
            self.pool.idle().push(session);
        }
    }
}

/// Bounds a piece of work on a connection that may have gone silent.
pub(crate) async fn timely<T>(work: impl Future<Output = Result<T, PgFault>>) -> Result<T, PgFault> {
    tokio::time::timeout(crate::session::SILENT, work).await.unwrap_or(Err(PgFault::Late))
}
