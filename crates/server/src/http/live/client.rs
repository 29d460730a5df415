//! A client of a stream: a position in a tail, and nothing more while it keeps up.
//!
//! A client that's behind reads small pages from the store until it can join the tail: when the ring has its exact cursor, or
//! when a read after the tail's last one found nothing. Then everything in the tail was before its cursor, and everything new
//! comes after it. So no event is missed or sent twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use flowline::Source;
use flowline::core::event::EventType;
use flowline::core::{RunId, Status};
use flowline::store::{FeedPage, StoreError};
use futures_util::stream::{self, Stream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::LiveStreams;
use super::message::{self, Ids, LiveMessage};
use super::tail::{LiveTail, TailEntry};

/// How often an idle stream sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Pause before asking an unavailable store again.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes of messages read from the store to keep.
const HELD: usize = 8 * 1024;
/// Larger messages are sent in slices, copied on demand: a client that stops reading holds one slice, not the message.
const SLICE: usize = 8 * 1024;
/// Events read from the store at a time, at first and at most.
const FEW: usize = 8;
const MANY: usize = 128;

#[derive(Debug)]
pub(super) struct StreamClient {
    live: LiveStreams,
    tail: Arc<LiveTail>,
    moved: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    wanted: Wanted,
    /// The position in the tail; `None` while reading from the store.
    place: Option<u64>,
    /// Everything before it was sent or is in `ready`.
    cursor: Arc<str>,
    ready: VecDeque<Bytes>,
    /// The message that's being sent in slices, by cursor, and how much of it was sent.
    part: Option<(Arc<str>, usize)>,
    /// How many events to read from the store, and whether the last read reached the end.
    limit: usize,
    near: bool,
    over: bool,
    heartbeat: Instant,
}

/// What a client asked for.
#[derive(Debug)]
pub struct Wanted {
    /// What to read from the store while behind, as narrow as the store can filter.
    pub source: Source,
    /// Only these flows.
    pub flows: Option<Vec<Arc<str>>>,
    /// Only these types; empty for all.
    pub kinds: Vec<EventType>,
    /// The run whose end ends the stream.
    pub run: Option<RunId>,
}

impl StreamClient {
    /// A client that has seen everything before a cursor.
    pub fn after(live: &LiveStreams, tail: Arc<LiveTail>, wanted: Wanted, cursor: &str) -> StreamClient {
        StreamClient {
            live: live.clone(),
            moved: tail.follow(),
            stopping: live.stopping(),
            tail,
            wanted,
            place: None,
            cursor: cursor.into(),
            ready: VecDeque::new(),
            part: None,
            limit: FEW,
            near: false,
            over: false,
            heartbeat: Instant::now() + HEARTBEAT,
        }
    }

    /// Reads for the first time, which checks the cursor.
    pub async fn open(&mut self) -> Result<(), StoreError> {
        self.ready.push_front(message::opening(self.id()));
        self.catch_up().await
    }

    /// Ends the stream here: the run has ended and its log is gone.
    pub fn finish(&mut self, status: Status) {
        if let Some(run) = &self.wanted.run {
            self.ready.push_back(message::end(run, status));
        }
        self.over = true;
    }

    pub fn stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
        stream::unfold(self, async |mut client| client.next().await.map(|text| (Ok(text), client)))
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // A message is not left half said.
            if self.part.is_none() && *self.stopping.borrow() {
                return None;
            }
            if let Some(text) = self.ready.pop_front() {
                self.heartbeat = Instant::now() + HEARTBEAT;
                return Some(text);
            }
            if self.over {
                return None;
            }
            if self.part.is_none() && Instant::now() >= self.heartbeat {
                self.ready.push_back(message::heartbeat(self.id()));
                continue;
            }
            match self.place {
                Some(position) => self.pull(position).await,
                None => match self.catch_up().await {
                    Ok(()) => {}
                    Err(error) if error.is_transient() => {
                        wait(self.heartbeat, &mut self.stopping, tokio::time::sleep(PAUSE)).await;
                    }
                    Err(_) => return None,
                },
            }
        }
    }

    /// The id to resume after, if ids are cursors.
    fn id(&self) -> Option<&str> {
        (self.wanted.run.is_none() && !self.cursor.is_empty()).then_some(&*self.cursor)
    }

    /// Takes the message at a position, or waits for it.
    async fn pull(&mut self, position: u64) {
        match self.tail.at(position) {
            TailEntry::Message(message) => {
                if self.take(&message) == Taken::Whole {
                    self.place = Some(position + 1);
                }
            }
            TailEntry::End(cursor) => {
                self.cursor = cursor;
                let moved = self.moved.wait_for(|end| *end > position);
                wait(self.heartbeat, &mut self.stopping, moved).await;
            }
            TailEntry::Gone => self.place = None,
        }
    }

    /// Joins the tail, or reads more from the store.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        let mut end = None;
        if self.near {
            self.tail.read_on(&*self.live.store).await?;
            end = Some(self.tail.end().0);
        }
        self.place = self.tail.find(&self.cursor);
        if self.place.is_some() {
            return Ok(());
        }
        let part = self.part.as_ref().and_then(|(cursor, _)| self.live.large(&self.tail, cursor));
        if let Some(message) = part {
            self.take(&message);
            return Ok(());
        }
        let page = {
            // So that many who come back together neither fill the memory nor keep others from the store.
            let _turn = self.live.reads.acquire().await;
            self.wanted.source.read(&*self.live.store, &self.cursor, self.limit).await?
        };
        let nothing = page.events.is_empty() && !page.more;
        self.hold(page);
        if nothing && self.part.take().is_some() {
            self.over = true;
        } else if nothing && end.is_some() {
            self.place = end;
            // Nothing is left of a log that has an end: retention was quicker.
            if let Some(status) = self.tail.last().and_then(EventType::ended_as) {
                self.finish(status);
            }
        }
        Ok(())
    }

    /// Keeps as much of a page as a client may hold; the rest is read again.
    fn hold(&mut self, page: FeedPage) {
        let ids = if self.wanted.run.is_some() { Ids::Events } else { Ids::Cursors };
        let mut held = 0;
        for (count, (event, cursor)) in page.events.iter().zip(&page.cursors).enumerate() {
            let message = LiveMessage::of(event, cursor, ids);
            held += message.size();
            let fits = count == 0 || held <= HELD;
            if fits && self.take(&message) == Taken::Whole {
                continue;
            }
            if fits {
                self.live.keep_large(&self.tail, message);
            }
            (self.limit, self.near) = (count.max(1), false);
            return;
        }
        self.cursor = page.cursor.into();
        (self.limit, self.near) = ((self.limit * 2).min(MANY), !page.more);
    }

    /// Queues a message or its next slice, if the client wants it.
    fn take(&mut self, message: &LiveMessage) -> Taken {
        let LiveMessage { cursor, flow, kind, text } = message;
        let wanted = (self.wanted.kinds.is_empty() || self.wanted.kinds.contains(kind))
            && self.wanted.flows.as_ref().is_none_or(|flows| flows.contains(flow));
        let from = self.part.as_ref().map_or(0, |(_, sent)| *sent);
        if wanted && self.part.take_if(|(of, _)| of != cursor).is_some() {
            // The message that was half said cannot be had again as it was. Whoever comes back gets it whole.
            self.over = true;
            return Taken::Whole;
        }
        if wanted && text.len() <= SLICE {
            self.ready.push_back(text.clone());
        } else if wanted {
            self.part = None;
            let to = text.len().min(from + SLICE);
            self.ready.push_back(Bytes::copy_from_slice(&text[from..to]));
            if to < text.len() {
                self.part = Some((cursor.clone(), to));
                return Taken::InPart;
            }
        }
        self.cursor = cursor.clone();
        if let (Some(_), Some(status)) = (&self.wanted.run, kind.ended_as()) {
            self.finish(status);
        }
        Taken::Whole
    }
}

/// How much of a message was queued.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Whole,
    InPart,
}

/// Waits, but not past the next heartbeat or the end of the server.
async fn wait(heartbeat: Instant, stopping: &mut watch::Receiver<bool>, something: impl Future) {
    tokio::select! {
        _ = something => {}
        () = tokio::time::sleep_until(heartbeat) => {}
        _ = stopping.changed() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline::core::Time;
    use flowline::store::{Clock, FeedFilter, MemoryStore};

    fn client() -> StreamClient {
        let live = LiveStreams::new(Arc::new(MemoryStore::new(Clock::manual(Time::default()))));
        let source = Source::Feed(FeedFilter::default());
        let tail = Arc::new(LiveTail::new(0, source.clone(), Ids::Cursors, ""));
        let wanted = Wanted { source, flows: Some(vec!["f".into()]), kinds: Vec::new(), run: None };
        StreamClient::after(&live, tail, wanted, "1")
    }

    fn message(cursor: &str, flow: &str, size: usize) -> LiveMessage {
        let text = (0..size).map(|n| b'a' + (n % 26) as u8).collect::<Vec<u8>>().into();
        LiveMessage { cursor: cursor.into(), flow: flow.into(), kind: EventType::Log, text }
    }

    #[test]
    fn a_large_message_comes_in_slices_and_counts_when_it_is_whole() {
        let mut client = client();
        let large = message("3", "f", 3 * SLICE + 5);
        while client.take(&large) == Taken::InPart {
            assert_eq!(&*client.cursor, "1");
            // What is not wanted does not come between.
            assert_eq!(client.take(&message("2", "other", 10)), Taken::Whole);
            client.cursor = "1".into();
        }
        assert_eq!((&*client.cursor, client.ready.len(), client.over), ("3", 4, false));
        assert_eq!(client.ready.iter().flatten().copied().collect::<Vec<u8>>(), large.text);
    }

    #[test]
    fn a_stream_ends_where_a_message_cannot_be_said_to_its_end() {
        for other in [message("4", "f", 10), message("4", "f", 2 * SLICE)] {
            let mut client = client();
            assert_eq!(client.take(&message("3", "f", 2 * SLICE)), Taken::InPart);
            client.take(&other);
            assert!(client.over);
            assert_eq!((client.ready.len(), &*client.cursor), (1, "1"));
        }
    }
}
