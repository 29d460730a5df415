//! A tail: the newest messages of one source, read and serialized once per instance, however many clients follow it.
//!
//! Messages are in a ring, at positions that only grow. Each client has a position and pulls; one that falls behind the ring
//! reads from the store. Nothing waits for a client, and the ring's size is bounded by the number of clients.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowline::Source;
use flowline::core::event::EventType;
use flowline::store::{FeedPage, Store, StoreError};
use tokio::sync::watch;

use super::message::{Ids, LiveMessage};

/// Bytes in a ring, per client and in all.
const EACH: usize = 16 * 1024;
const MOST: usize = 1024 * 1024;
/// Events read at a time.
const PAGE: usize = 64;

#[derive(Debug)]
pub(super) struct LiveTail {
    /// Unique on this instance.
    pub number: u64,
    source: Source,
    ids: Ids,
    ring: Mutex<Ring>,
    /// The position after the newest message. Its receivers are the clients.
    moved: watch::Sender<u64>,
    /// Reads that started, and the last one that finished. Held while reading.
    begun: AtomicU64,
    reading: tokio::sync::Mutex<u64>,
}

#[derive(Debug)]
struct Ring {
    messages: VecDeque<LiveMessage>,
    /// The position of the first message, and the cursor right before it.
    first: u64,
    before: Arc<str>,
    /// How far the source was read.
    cursor: Arc<str>,
    bytes: usize,
    /// The event that ended the run, in a tail of a run.
    last: Option<EventType>,
}

/// What a position holds.
#[derive(Debug)]
pub(super) enum TailEntry {
    Message(LiveMessage),
    /// Nothing yet: everything up to this cursor was seen.
    End(Arc<str>),
    /// No longer in the ring.
    Gone,
}

impl LiveTail {
    /// A tail that starts at a cursor. Nothing is read yet.
    pub fn new(number: u64, source: Source, ids: Ids, cursor: &str) -> LiveTail {
        let ring = Ring {
            messages: VecDeque::new(),
            first: 0,
            before: cursor.into(),
            cursor: cursor.into(),
            bytes: 0,
            last: None,
        };
        LiveTail {
            number,
            source,
            ids,
            ring: Mutex::new(ring),
            moved: watch::Sender::new(0),
            begun: AtomicU64::new(0),
            reading: tokio::sync::Mutex::new(0),
        }
    }

    /// Reads to the end. Afterwards, everything committed before the call is in the ring, or was. Concurrent callers share a read.
    pub async fn read_on(&self, store: &dyn Store) -> Result<(), StoreError> {
        let before = self.begun.load(Ordering::SeqCst);
        let mut done = self.reading.lock().await;
        if *done > before {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            let cursor = self.ring().cursor.clone();
            let page = self.source.read(store, &cursor, PAGE).await?;
            let more = page.more;
            self.push(page);
            if !more {
                break;
            }
        }
        *done = number;
        Ok(())
    }

    pub fn follow(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    pub fn at(&self, position: u64) -> TailEntry {
        let ring = self.ring();
        let Some(index) = position.checked_sub(ring.first) else { return TailEntry::Gone };
        match ring.messages.get(index as usize) {
            Some(message) => TailEntry::Message(message.clone()),
            None => TailEntry::End(ring.cursor.clone()),
        }
    }

    /// The position after the newest message, and its cursor.
    pub fn end(&self) -> (u64, Arc<str>) {
        let ring = self.ring();
        (ring.end(), ring.cursor.clone())
    }

    /// The position for a client that has seen everything before a cursor. `None` if the ring doesn't have that cursor: cursors
    /// can only be compared for equality.
    pub fn find(&self, cursor: &str) -> Option<u64> {
        let ring = self.ring();
        // What is empty is no cursor yet, neither here nor there.
        if cursor.is_empty() {
            return None;
        }
        if *ring.cursor == *cursor {
            return Some(ring.end());
        }
        if *ring.before == *cursor {
            return Some(ring.first);
        }
        let index = ring.messages.iter().rposition(|message| *message.cursor == *cursor)?;
        Some(ring.first + index as u64 + 1)
    }

    /// The event that ended the run, if it was read.
    pub fn last(&self) -> Option<EventType> {
        self.ring().last
    }

    fn push(&self, page: FeedPage) {
        // Written before the ring is held.
        let messages: Vec<LiveMessage> = page
            .events
            .iter()
            .zip(&page.cursors)
            .map(|(event, cursor)| LiveMessage::of(event, cursor, self.ids))
            .collect();
        let room = (self.moved.receiver_count() * EACH).clamp(EACH, MOST);
        let mut ring = self.ring();
        for message in messages {
            ring.bytes += message.size();
            if self.ids == Ids::Events && message.kind.is_terminal() {
                ring.last = Some(message.kind);
            }
            ring.messages.push_back(message);
        }
        // The newest stays, however large: all who follow wait for it, and share it.
        while ring.bytes > room && ring.messages.len() > 1 {
            let Some(oldest) = ring.messages.pop_front() else { break };
            ring.bytes -= oldest.size();
            ring.before = oldest.cursor;
            ring.first += 1;
        }
        ring.cursor = page.cursor.into();
        if ring.messages.is_empty() {
            ring.before = ring.cursor.clone();
        }
        let end = ring.end();
        drop(ring);
        self.moved.send_if_modified(|moved| std::mem::replace(moved, end) != end);
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Whatever panicked left the ring as it found it, or whole.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn end(&self) -> u64 {
        self.first + self.messages.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline::core::event::NewEvent;
    use flowline::core::{Event, RunId, Tenant};
    use flowline::store::FeedFilter;

    /// A page of events with these numbers, whose cursors are the numbers, and a cursor after it.
    fn page(numbers: std::ops::Range<u64>, size: usize, cursor: u64) -> FeedPage {
        let run = RunId::new("r").unwrap();
        let event = |seq: u64| {
            let data = flowline::core::Json::of(&"x".repeat(size)).unwrap();
            let new = NewEvent::run(EventType::Log, Some(data));
            Event::stored(&run, &"f".into(), &Tenant::default(), seq, 5, new)
        };
        let cursors = numbers.clone().map(|number| number.to_string()).collect();
        FeedPage { events: numbers.map(event).collect(), cursors, cursor: cursor.to_string(), more: false }
    }

    fn tail() -> LiveTail {
        LiveTail::new(0, Source::Feed(FeedFilter::default()), Ids::Cursors, "")
    }

    #[test]
    fn one_joins_by_the_cursor_of_a_message_of_the_start_and_of_the_end_and_by_no_other() {
        let tail = tail();
        assert_eq!(tail.find(""), None, "an empty cursor is the start of all");
        tail.push(page(0..0, 0, 10));
        assert_eq!((tail.find("10"), tail.find("9")), (Some(0), None));
        tail.push(page(12..15, 1, 20));
        for (cursor, position) in [("10", 0), ("12", 1), ("14", 3), ("20", 3)] {
            assert_eq!(tail.find(cursor), Some(position), "{cursor}");
        }
        assert_eq!((tail.find("11"), tail.find("")), (None, None));
    }

    #[test]
    fn a_ring_holds_no_more_than_its_followers_may_cost() {
        let tail = tail();
        let followers: Vec<_> = (0..3).map(|_| tail.follow()).collect();
        tail.push(page(1..1_001, 200, 1_000));
        let held = tail.ring().bytes;
        assert!((EACH * 2..=EACH * followers.len()).contains(&held), "{held}");
        assert!(matches!(tail.at(0), TailEntry::Gone));
        assert!(matches!(tail.at(999), TailEntry::Message(message) if &*message.cursor == "1000"));
        assert!(matches!(tail.at(1_000), TailEntry::End(cursor) if &*cursor == "1000"));
        // However large, the newest stays.
        tail.push(page(1_001..1_002, 10 * EACH, 1_001));
        assert!(matches!(tail.at(1_000), TailEntry::Message(_)));
        assert_eq!(tail.ring().messages.len(), 1);
        assert_eq!(tail.find("1000"), Some(1_000));
    }
}
