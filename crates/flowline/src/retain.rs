//! Retention: deletes ended runs when their time has come, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use flowline_store::row::Retention;
use flowline_store::{Store, StoreError};

use crate::pace::keep_pace;

/// Between two looks, by whichever engine of the store has the turn.
const PACE: Duration = Duration::from_secs(60);
/// Between two portions, so that runs at work go first.
const BREATH: Duration = Duration::from_millis(50);
/// Runs removed in one go.
const PORTION: usize = 200;

/// Removes what is over its time for as long as the engine lives.
pub async fn keep_tidy(store: Arc<dyn Store>, instance: Arc<str>, policy: Retention) {
    let work = || async {
        // A store in trouble is the driver's business; here the next round is soon enough.
        let _ = retain_all(&*store, policy).await;
    };
    keep_pace(store.clone(), "retain", instance, PACE, work).await;
}

/// Removes everything that is over its time now. An engine does this by itself, as [`Config::retention`] says.
///
/// [`Config::retention`]: crate::Config::retention
///
/// ```no_run
/// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
/// use flowline::store::row::Retention;
///
/// let done = flowline::retain::retain_all(engine.store(), Retention::default()).await?;
/// println!("{} runs removed", done.removed);
/// # Ok(())
/// # }
/// ```
pub async fn retain_all(
    store: &dyn Store,
    policy: Retention,
) -> Result<flowline_store::row::Retained, StoreError> {
    let mut total = flowline_store::row::Retained::default();
    loop {
        let done = store.retain(policy, PORTION).await?;
        total.trimmed += done.trimmed;
        total.removed += done.removed;
        if done.trimmed == 0 && done.removed == 0 {
            return Ok(total);
        }
        tokio::time::sleep(BREATH).await;
    }
}
