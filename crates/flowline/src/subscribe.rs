//! Events of many runs as they are committed, for user code.

use std::collections::VecDeque;
use std::time::Duration;

use flowline_core::Event;
use flowline_store::FeedFilter;
use tokio::sync::watch;

use crate::engine::{Engine, EngineError};

/// Looked again without a hint: a hint can be lost.
const LOOK: Duration = Duration::from_secs(1);
/// Events read at a time.
const PAGE: usize = 500;

/// A stream of events. Keep [`Subscription::cursor`] to go on later, or elsewhere, where it left off.
#[derive(Debug)]
pub struct Subscription {
    engine: Engine,
    filter: FeedFilter,
    /// Where the buffered events end.
    read_to: String,
    cursor: String,
    buffer: VecDeque<Event>,
    hint: watch::Receiver<u64>,
}

impl Engine {
    /// Follows the events that match, from a cursor on. An empty cursor starts at the oldest event kept, or at the end
    /// with `filter.from_now`.
    pub fn subscribe(&self, filter: FeedFilter, cursor: &str) -> Subscription {
        Subscription {
            engine: self.clone(),
            filter,
            read_to: cursor.to_owned(),
            cursor: cursor.to_owned(),
            buffer: VecDeque::new(),
            hint: self.shared.store.watch(),
        }
    }
}

impl Subscription {
    /// The next event, waiting for it if need be; so too for a store that cannot answer just now, of which
    /// [`Engine::trouble`] tells.
    pub async fn next(&mut self) -> Result<Event, EngineError> {
        loop {
            if let Some(event) = self.buffer.pop_front() {
                if self.buffer.is_empty() {
                    self.cursor = self.read_to.clone();
                }
                return Ok(event);
            }
            // Before reading, so that what is committed meanwhile is not waited for.
            self.hint.borrow_and_update();
            let page = match self.engine.shared.store.feed(self.filter.clone(), &self.read_to, PAGE).await {
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                page => page?,
            };
            self.filter.from_now = false;
            self.read_to = page.cursor;
            if page.events.is_empty() {
                self.cursor = self.read_to.clone();
                if !page.more {
                    let _ = tokio::time::timeout(LOOK, self.hint.changed()).await;
                }
            }
            self.buffer.extend(page.events);
        }
    }

    /// Where to go on: everything before it was given by [`Subscription::next`]. Events of the page that was not read
    /// to its end come again.
    pub fn cursor(&self) -> &str {
        &self.cursor
    }
}
