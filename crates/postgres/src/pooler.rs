//! A proxy that deals out server connections by transaction is noticed at the door.
//!
//! Such a proxy (PgBouncer in transaction mode, most hosted poolers) lets each transaction of a client run on whichever server
//! connection is free. What this adapter keeps per connection is then somebody else's: `search_path` and time limits, prepared
//! statements, LISTEN. Some of it fails at once and some works until it doesn't, so the store isn't opened at all.
//!
//! The sign: two clients set the same parameter, each to a value of its own, and one of them doesn't find its value again.

use flowline_store::StoreError;

use crate::fault::PgFault;
use crate::session::Session;
use crate::target::ServerTarget;

/// Other clients of the proxy may come in between, so one look might find each client where it was.
const LOOKS: usize = 3;

/// Refuses a server that is behind such a proxy.
pub(crate) async fn refuse(one: &Session, other: &Session, target: &ServerTarget) -> Result<(), PgFault> {
    for _ in 0..LOOKS {
        let (first, second) = (format!("{:016x}", fastrand::u64(..)), format!("{:016x}", fastrand::u64(..)));
        one.run(&set(&first)).await?;
        other.run(&set(&second)).await?;
        if is(other, &second).await? && is(one, &first).await? {
            continue;
        }
        // Not left behind for whoever gets these connections next.
        one.run("reset flowline.session").await?;
        other.run("reset flowline.session").await?;
        return Err(StoreError::Incompatible(format!("{}: {}", target.place(), words())).into());
    }
    Ok(())
}

/// What is wrong, and what to do about it.
pub(crate) fn words() -> String {
    "a connection pooler in transaction mode (such as PgBouncer) is in between, but Flowline needs to keep its sessions; set \
     `pool_mode = session` for its database, or name the server's own address in the store URL"
        .to_owned()
}

fn set(value: &str) -> String {
    format!("set flowline.session to '{value}'")
}

async fn is(session: &Session, value: &str) -> Result<bool, PgFault> {
    Ok(session.ask("select current_setting('flowline.session', true)").await?.as_deref() == Some(value))
}
