//! Says when the store takes no writes, and when it does again.

use flowline::store::StoreError;
use tokio::sync::watch;

use crate::output;

/// Waits for a change and says it. Dropping the future loses nothing.
pub async fn tell(trouble: &mut watch::Receiver<Option<StoreError>>) {
    if trouble.changed().await.is_err() {
        return std::future::pending().await;
    }
    match &*trouble.borrow_and_update() {
        Some(error) => output::note(&format!("warning: {error}; waiting until it's back, stop with Ctrl-C")),
        None => output::note("the store accepts writes again"),
    }
}
