//! The log of one run as it grows, whoever works on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flowline::core::{Event, RunKey};
use flowline::store::{EventQuery, Store, StoreError};
use tokio::sync::watch;

/// Looked again without a hint: a hint can be lost.
const LOOK: Duration = Duration::from_millis(500);
/// Events read at a time: a page of full payloads stays small.
const PAGE: usize = 200;

/// Reads a run's log from some event on.
pub struct Tail {
    store: Arc<dyn Store>,
    run: RunKey,
    query: EventQuery,
    buffer: VecDeque<Event>,
    hint: watch::Receiver<u64>,
}

impl Tail {
    pub fn new(store: Arc<dyn Store>, run: RunKey, query: EventQuery) -> Tail {
        let hint = store.watch();
        Tail { store, run, query: EventQuery { limit: PAGE, ..query }, buffer: VecDeque::new(), hint }
    }

    /// The next event that is there already; `None` at the present end.
    pub async fn ready(&mut self) -> Result<Option<Event>, StoreError> {
        if self.buffer.is_empty() {
            let page = self.store.events(&self.run, self.query.clone()).await?;
            self.buffer.extend(page.events);
        }
        let event = self.buffer.pop_front();
        if let Some(event) = &event {
            self.query.after = event.seq;
        }
        Ok(event)
    }

    /// Waits for a reason to look again: a change of the store, or some time.
    pub async fn changed(&mut self) {
        if tokio::time::timeout(LOOK, self.hint.changed()).await.is_ok_and(|changed| changed.is_err()) {
            // No more hints will come.
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The next event, waiting for it if need be. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Event, StoreError> {
        loop {
            self.hint.borrow_and_update();
            if let Some(event) = self.ready().await? {
                return Ok(event);
            }
            self.changed().await;
        }
    }
}
