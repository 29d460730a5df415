//! Periodic work that one engine of a store does at a time. A named lock decides whose turn it is.
//!
//! The lock is kept until the next turn, so restarts and additional engines don't change the pace. If a lock is lost,
//! two engines may do the work at once, which is harmless.

use std::sync::Arc;
use std::time::Duration;

use flowline_store::Store;
use tokio::time::Instant;

use crate::lock::NamedLock;

/// The longest time between two looks whether it is anyone's turn.
const LONGEST_LOOK: Duration = Duration::from_secs(60);

const AFTER: Duration = Duration::from_millis(2);

/// Does `work` once every `pace`, in one engine of the store, as long as it's polled.
pub(crate) async fn keep_pace<W: Future<Output = ()> + Send>(
    store: Arc<dyn Store>,
    what: &str,
    instance: Arc<str>,
    pace: Duration,
    work: impl Fn() -> W + Send,
) {
    let lock = NamedLock::own(store, what).owner(&*instance);
    let look = (pace / 4).min(LONGEST_LOOK);
    let mut wait = look;
    loop {
        tokio::time::sleep(wait).await;
        wait = look;
        // Somebody else's turn, or a store in trouble: the next look is soon enough.
        let Ok(turn) = lock.try_acquire().await else { continue };
        let begun = Instant::now();
        work().await;
        let left = pace.saturating_sub(begun.elapsed());
        let _ = turn.leave(left).await;
        // Just past the end of the lock, whichever way it was rounded.
        wait = left + AFTER;
    }
}

#[cfg(test)]
mod tests {
    use flowline_store::{Clock, MemoryStore};
    use tokio::sync::mpsc;

    use super::*;

    const PACE: Duration = Duration::from_millis(400);

    #[tokio::test]
    async fn however_many_engines_there_are_the_work_is_done_once_a_turn() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Clock::system()));
        let (tell, mut told) = mpsc::unbounded_channel();
        let engine = |name: &str| {
            let (store, tell, name) = (store.clone(), tell.clone(), name.into());
            tokio::spawn(async move {
                let work = || {
                    let _ = tell.send(Instant::now());
                    async {}
                };
                keep_pace(store, "sweep-the-floor", name, PACE, work).await;
            })
        };
        let mut engines = vec![engine("a"), engine("b"), engine("c")];
        let mut turns = Vec::new();
        for _ in 0..5 {
            turns.push(told.recv().await.expect("engines are at work"));
            engines.push(engine("another"));
        }
        let shortest = turns.windows(2).map(|turn| turn[1] - turn[0]).min();
        // The lock begins a moment before the work.
        assert!(shortest >= Some(PACE * 95 / 100), "{turns:?}");
        engines.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
