//! Events as they're committed, of many runs or of one.
//!
//! Hints say when to read, and reading is the truth. So a lost hint costs time, but no event.

use std::collections::VecDeque;
use std::time::Duration;

use flowline_core::{Event, EventType, RunKey};
use flowline_store::{EventQuery, FeedFilter, FeedPage, Store, StoreError};
use tokio::sync::watch;

use crate::engine::{Engine, EngineError};

/// Looked again without a hint: a hint can be lost.
const LOOK: Duration = Duration::from_secs(1);
/// The error when a store no longer knows a cursor that it returned.
const LOST: &str = "events that were read from it are gone: an older copy was restored, or data was deleted; check the store \
    with `flowline verify`, then start again";
/// Events read at a time.
const PAGE: usize = 500;

/// What is followed.
#[derive(Debug, Clone)]
pub enum Source {
    /// Events of many runs. A cursor is one that the store gave.
    Feed(FeedFilter),
    /// The log of a run, only these types or all. A cursor is the number of an event.
    Log(RunKey, Vec<EventType>),
}

impl Source {
    /// The events after a cursor that exist now. An empty cursor is before the oldest event
    /// kept, or at the end with [`FeedFilter::from_now`].
    pub async fn read(&self, store: &dyn Store, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        let (run, kinds) = match self {
            Source::Feed(filter) => return store.feed(filter.clone(), cursor, limit).await,
            Source::Log(run, kinds) => (run, kinds.clone()),
        };
        let after = if cursor.is_empty() { Ok(0) } else { cursor.parse() };
        let after = after.map_err(|_| StoreError::Invalid(format!("cursor {cursor:?} isn't a number")))?;
        let page = store.events(run, EventQuery { after, kinds, limit, ..EventQuery::default() }).await?;
        let cursors: Vec<String> = page.events.iter().map(|event| event.seq.to_string()).collect();
        let cursor = cursors.last().cloned().unwrap_or_else(|| after.to_string());
        Ok(FeedPage { events: page.events, cursors, cursor, more: page.more })
    }
}

/// Says when it's worth reading again.
#[derive(Debug)]
pub struct Hint(watch::Receiver<u64>);

impl Hint {
    pub fn of(store: &dyn Store) -> Hint {
        Hint(store.watch())
    }

    /// To be called before reading, so that what is committed meanwhile is not waited for.
    pub fn reset(&mut self) {
        self.0.borrow_and_update();
    }

    /// Waits for a commit since the last reset, or for some time.
    pub async fn changed(&mut self) {
        if tokio::time::timeout(LOOK, self.0.changed()).await.is_ok_and(|changed| changed.is_err()) {
            // No more hints will come.
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A stream of events. Save [`EventSubscription::cursor`] to continue later or elsewhere.
#[derive(Debug)]
pub struct EventSubscription {
    engine: Engine,
    source: Source,
    /// Where the buffered events end.
    read_to: String,
    /// Whether the store itself gave that place, and not the caller.
    read_before: bool,
    cursor: String,
    /// Each event with the cursor right after it.
    buffer: VecDeque<(Event, String)>,
    hint: Hint,
}

impl Engine {
    /// Follows the events that match, from a cursor on. An empty cursor starts at the oldest event kept, or at the end
    /// with `filter.from_now`.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// use flowline::store::FeedFilter;
    ///
    /// let mut feed = engine.subscribe(FeedFilter::default(), "");
    /// loop {
    ///     let event = feed.next().await?;
    ///     println!("{} {}", event.run_id, event.kind);
    ///     # break;
    /// }
    /// let cursor = feed.cursor().to_owned(); // save it, to continue from here later
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self, filter: FeedFilter, cursor: &str) -> EventSubscription {
        EventSubscription {
            engine: self.clone(),
            source: Source::Feed(filter),
            read_to: cursor.to_owned(),
            read_before: false,
            cursor: cursor.to_owned(),
            buffer: VecDeque::new(),
            hint: Hint::of(self.store()),
        }
    }
}

impl EventSubscription {
    /// The next event. Waits for it, and for a store that can't answer right now, which
    /// [`Engine::trouble`] reports.
    pub async fn next(&mut self) -> Result<Event, EngineError> {
        loop {
            if let Some((event, after)) = self.buffer.pop_front() {
                self.cursor = after;
                return Ok(event);
            }
            self.hint.reset();
            let page = match self.source.read(self.engine.store(), &self.read_to, PAGE).await {
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
                // It was good a moment ago.
                Err(StoreError::Invalid(_)) if self.read_before => {
                    return Err(StoreError::WentBack(LOST.to_owned()).into());
                }
                page => page?,
            };
            (self.read_to, self.read_before) = (page.cursor, true);
            if page.events.is_empty() {
                self.cursor.clone_from(&self.read_to);
                if !page.more {
                    self.hint.changed().await;
                }
            }
            self.buffer.extend(page.events.into_iter().zip(page.cursors));
        }
    }

    /// Where to continue: right after the last event that [`EventSubscription::next`] returned.
    pub fn cursor(&self) -> &str {
        &self.cursor
    }
}
