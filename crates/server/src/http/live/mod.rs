//! Live events: the log of a run, or the events of a tenant or a flow, as server-sent events.
//!
//! A client can resume on any instance with the id of its last message, without gaps. Nothing is kept for disconnected clients.
//! Connected ones share a tail per run and per tenant ([`tail`]), and each has a position in it ([`client`]).

mod client;
mod message;
mod tail;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flowline::Source;
use flowline::core::event::{EventType, seq_of_id};
use flowline::core::{RunKey, Tenant};
use flowline::internal::Hint;
use flowline::registry;
use flowline::store::{EventQuery, FeedFilter, RunRow, Store};
use tokio::sync::{Semaphore, watch};

use super::App;
use super::codes;
use super::problem::ApiError;
use super::request::Params;
use super::route::{Answer, Query, QueryKind, Route, RouteAccess, handler};
use super::visible::{ApiCaller, Visible};
use client::{StreamClient, Wanted};
use message::{Ids, LiveMessage};
use tail::LiveTail;

/// The header that names the last message a client got.
const LAST_EVENT_ID: &str = "last-event-id";
/// Clients that read from the store at once.
const READS: usize = 4;
/// Bytes of large messages kept for clients that are behind.
const LARGE: usize = 8 * 1024 * 1024;
/// A run's tail starts this many events before its end, so that clients that connect a little apart share them.
const BACK: u64 = 32;
/// Pause between two reads of a tail, times the number of tails. This bounds the reads of all tails together, however many
/// runs are followed and however fast commits come.
const PACE: Duration = Duration::from_micros(500);
const SLOWEST: Duration = Duration::from_millis(500);

const TYPE: Query = Query::new("type", QueryKind::EventTypes, "Only these types.");
const FROM: Query = Query::new(
    "from",
    QueryKind::OneOf(&["start", "now"]),
    "Where to start if there's no id: `start` is the oldest event kept, `now` only new events (the default).",
);
const CURSOR: Query = Query::new(
    "cursor",
    QueryKind::Text,
    "Id of a message: sends only what follows it. The header `Last-Event-ID` takes precedence.",
);
const STREAM: Answer = Answer::other(
    200,
    "Server-sent events. `id` is for resuming, `event` is the type, `data` is the event as JSON.",
    "text/event-stream",
);
const RESUMED: &str = "With `Last-Event-ID` it resumes right after that message, on any instance, without gaps. If nothing happens, it sends a comment every 15 s.";

pub const ROUTES: &[Route] = &[
    Route::get("/v1/runs/{run}/stream", RouteAccess::READ, "Follow a run's log", handler!(run))
        .about("Starts at the first event, or with `Last-Event-ID` (or `after`) right after that one. After the event that ends the run, it sends a message `end` and closes. If nothing happens, it sends a comment every 15 s.")
        .query(&[
            Query::new("after", QueryKind::Text, "Id or `seq` of an event: sends only later ones. The header `Last-Event-ID` takes precedence."),
            TYPE,
        ])
        .answers(&[
            STREAM,
            Answer::empty(204, "The run has ended and there's nothing after that id; browsers don't reconnect."),
        ])
        .problems(&[&codes::NO_SUCH_RUN, &codes::INVALID]),
    Route::get("/v1/flows/{flow}/stream", RouteAccess::READ, "Follow the events of all runs of a flow", handler!(flow))
        .about(RESUMED)
        .query(&[TYPE, FROM, CURSOR])
        .answers(&[STREAM])
        .problems(&[&codes::NO_SUCH_FLOW, &codes::INVALID]),
    Route::get("/v1/stream", RouteAccess::READ, "Follow the events of all runs", handler!(tenant))
        .about(RESUMED)
        .query(&[
            Query::new("flow", QueryKind::Text, "Only these flows, separated by commas."),
            TYPE,
            FROM,
            CURSOR,
        ])
        .answers(&[STREAM])
        .problems(&[&codes::INVALID]),
];

/// The tails of this instance. Cheap to clone.
#[derive(Clone)]
pub struct LiveStreams(Arc<LiveCore>);

pub struct LiveCore {
    store: Arc<dyn Store>,
    tails: Mutex<HashMap<Key, Weak<LiveTail>>>,
    reads: Semaphore,
    /// Each with the number of its tail.
    large: Mutex<VecDeque<(u64, LiveMessage)>>,
    numbers: AtomicU64,
    stopping: watch::Sender<bool>,
}

/// What a tail is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Run(RunKey),
    Tenant(Tenant),
}

impl std::ops::Deref for LiveStreams {
    type Target = LiveCore;
    fn deref(&self) -> &LiveCore {
        &self.0
    }
}

impl fmt::Debug for LiveStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("tails", &self.tails().len()).finish_non_exhaustive()
    }
}

impl LiveStreams {
    pub fn new(store: Arc<dyn Store>) -> LiveStreams {
        LiveStreams(Arc::new(LiveCore {
            store,
            tails: Mutex::default(),
            reads: Semaphore::new(READS),
            large: Mutex::default(),
            numbers: AtomicU64::new(0),
            stopping: watch::Sender::new(false),
        }))
    }

    /// Ends every stream. Clients resume on other instances.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// The tail of a source; a new one starts at `cursor`. It lives as long as it has clients.
    fn tail(&self, key: Key, cursor: &str) -> Arc<LiveTail> {
        let mut tails = self.tails();
        if let Some(tail) = tails.get(&key).and_then(Weak::upgrade) {
            return tail;
        }
        let (source, ids) = match &key {
            Key::Run(run) => (Source::Log(run.clone(), Vec::new()), Ids::Events),
            Key::Tenant(tenant) => {
                let tenant = Some(tenant.clone());
                (Source::Feed(FeedFilter { tenant, from_now: true, ..FeedFilter::default() }), Ids::Cursors)
            }
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let tail = Arc::new(LiveTail::new(number, source, ids, cursor));
        tails.insert(key.clone(), Arc::downgrade(&tail));
        tokio::spawn(read(self.clone(), key, Arc::downgrade(&tail)));
        tail
    }

    /// A recently read large message, by cursor.
    fn large(&self, tail: &LiveTail, cursor: &str) -> Option<LiveMessage> {
        let large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            large.iter().find(|(number, message)| *number == tail.number && *message.cursor == *cursor);
        found.map(|(_, message)| message.clone())
    }

    /// Keeps a large message for clients that send it in slices. The oldest ones make room, and are read again if needed.
    fn keep_large(&self, tail: &LiveTail, message: LiveMessage) {
        let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        large.push_back((tail.number, message));
        let mut bytes: usize = large.iter().map(|(_, message)| message.size()).sum();
        while bytes > LARGE {
            let Some((_, oldest)) = large.pop_front() else { break };
            bytes -= oldest.size();
        }
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<Key, Weak<LiveTail>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a tail up to date until it has no clients.
async fn read(live: LiveStreams, key: Key, tail: Weak<LiveTail>) {
    let mut hint = Hint::of(&*live.store);
    while let Some(tail) = tail.upgrade() {
        hint.reset();
        // A store that is away is looked at again in a moment, like one that has nothing new.
        let _ = tail.read_on(&*live.store).await;
        drop(tail);
        let tails = u32::try_from(live.tails().len()).unwrap_or(u32::MAX);
        tokio::time::sleep(PACE.saturating_mul(tails).min(SLOWEST)).await;
        hint.changed().await;
    }
    let mut tails = live.tails();
    if tails.get(&key).is_some_and(|known| known.strong_count() == 0) {
        tails.remove(&key);
    }
}

async fn run(
    State(app): State<App>,
    caller: ApiCaller,
    params: Params,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let row = caller.run(params.path("run")).await?;
    let after = match given(&headers, &params, "after")? {
        Some(id) => seen(&row, id).await?,
        None => 0,
    };
    if row.status.is_terminal() && after == row.events && after > 0 {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let kinds = kinds(&params);
    // The end is looked for even where its type is not asked for.
    let mut read: Vec<EventType> = kinds.clone();
    if !read.is_empty() {
        read.extend([EventType::FlowCompleted, EventType::FlowFailed, EventType::FlowCancelled]);
    }
    let wanted =
        Wanted { source: Source::Log(row.key(), read), flows: None, kinds, run: Some(row.run_id.clone()) };
    let start = row.events.saturating_sub(BACK).to_string();
    let tail = app.live.tail(Key::Run(row.key()), &start);
    let mut client = StreamClient::after(&app.live, tail, wanted, &after.to_string());
    client.open().await?;
    if row.events_trimmed {
        client.finish(row.status);
    }
    Ok(streamed(client))
}

async fn tenant(
    State(app): State<App>,
    caller: ApiCaller,
    params: Params,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let asked: Vec<Arc<str>> = params.list("flow").map(Arc::from).collect();
    let flows = caller.flows(params.text("flow").map(|_| asked));
    feed(&app, &params, &headers, flows).await
}

async fn flow(
    State(app): State<App>,
    caller: ApiCaller,
    params: Params,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    registry::shown(flow.engine().store(), flow.engine().tenant(), &flow).await?;
    feed(&app, &params, &headers, caller.flows(Some(vec![Arc::from(*flow)]))).await
}

async fn feed(
    app: &App,
    params: &Params,
    headers: &HeaderMap,
    flows: Visible<Option<Vec<Arc<str>>>>,
) -> Result<Response, ApiError> {
    let tenant = flows.engine().tenant().clone();
    let flows = flows.into_inner();
    let tail = app.live.tail(Key::Tenant(tenant.clone()), "");
    let cursor = match given(headers, params, "cursor")? {
        Some(cursor) => cursor.into(),
        None if params.text("from") == Some("start") => "".into(),
        None => {
            tail.read_on(&*app.live.store).await?;
            tail.end().1
        }
    };
    let kinds = kinds(params);
    let filter = FeedFilter {
        tenant: Some(tenant),
        flow: flows.as_ref().and_then(|flows| (flows.len() == 1).then(|| flows[0].clone())),
        kinds: kinds.clone(),
        from_now: false,
    };
    let wanted = Wanted { source: Source::Feed(filter), flows, kinds, run: None };
    let mut client = StreamClient::after(&app.live, tail, wanted, &cursor);
    client.open().await?;
    Ok(streamed(client))
}

/// The id to resume after: from the header, or from a parameter for clients that can't set it.
fn given<'a>(
    headers: &'a HeaderMap,
    params: &'a Params,
    parameter: &str,
) -> Result<Option<&'a str>, ApiError> {
    let header = headers.get(LAST_EVENT_ID).map(|id| id.to_str()).transpose();
    let header =
        header.map_err(|_| ApiError::new(&codes::INVALID, "Last-Event-ID isn't the id of a message"))?;
    Ok(header.or(params.text(parameter)).filter(|id| !id.is_empty()))
}

/// The number of the event with this id. Refuses an id that the run doesn't have, since resuming after it could skip events.
async fn seen(row: &Visible<RunRow>, id: &str) -> Result<u64, ApiError> {
    let unknown = || {
        let detail = format!("run {} has no event {id:?}; start without an id", row.run_id);
        ApiError::new(&codes::INVALID, detail)
    };
    if let Ok(seq) = id.parse::<u64>() {
        return if seq <= row.events { Ok(seq) } else { Err(unknown()) };
    }
    let seq = seq_of_id(id).filter(|seq| (1..=row.events).contains(seq)).ok_or_else(unknown)?;
    if row.events_trimmed {
        return Ok(seq);
    }
    let query = EventQuery { after: seq - 1, limit: 1, ..EventQuery::default() };
    let page = row.engine().store().events(&row.key(), query).await?;
    if page.events.first().is_some_and(|event| event.id == id) { Ok(seq) } else { Err(unknown()) }
}

fn kinds(params: &Params) -> Vec<EventType> {
    params.list("type").filter_map(EventType::parse).collect()
}

fn streamed(client: StreamClient) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        // Proxies that gather an answer before they pass it on would hold it back for ever.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(client.stream())).into_response()
}
