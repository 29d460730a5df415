//! Follows events as they're committed, through broken connections and servers that stop.
//!
//! An [`EventStream`] reads one server-sent event at a time and only when it's asked for the next one, so a slow reader
//! slows the server down instead of filling memory. After a disconnect it resumes with the id of the last message: nothing is
//! missing and nothing comes twice.

use std::fmt;
use std::time::Duration;

use flowline_types::error::with_causes;
use flowline_types::{Event, Status};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderValue};
use serde::Deserialize;
use tokio::time::Instant;

use crate::client::{Client, Pauses};
use crate::error::ClientError;
use crate::transport::{ANSWER_BYTES, ApiRequest};
use crate::verbs::{Parameters, of_run, part, with_query};

/// How long a stream may be silent. The server sends a keep-alive every 15 s.
const SILENCE: Duration = Duration::from_secs(40);
/// How long to try to reconnect, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// Following events.
impl Client {
    /// Follows a run from its first event to its terminal event: `type`, `after`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), flowline_client::ClientError> {
    /// let client = flowline_client::Client::new("http://127.0.0.1:7400")?;
    /// let mut events = client.follow("01a1e10c-7c92-72f9-a204-1269e6f26bc2", &[]);
    /// while let Some(event) = events.next().await? {
    ///     println!("{} {}", event.ts, event.kind);
    /// }
    /// println!("ended as {:?}", events.status());
    /// # Ok(())
    /// # }
    /// ```
    pub fn follow(&self, run: &str, parameters: Parameters<'_>) -> EventStream {
        EventStream::new(self, Of::Run, &of_run(run, "/stream"), parameters)
    }

    /// Follows all runs of a flow, from now on or with `from=start` from the oldest event: `type`, `from`, `cursor`. Never
    /// ends.
    pub fn follow_flow(&self, flow: &str, parameters: Parameters<'_>) -> EventStream {
        EventStream::new(self, Of::ManyRuns, &format!("/v1/flows/{}/stream", part(flow)), parameters)
    }

    /// Follows all runs of the tenant, from now on or with `from=start` from the oldest event: `type`, `flow`, `from`,
    /// `cursor`. Never ends.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), flowline_client::ClientError> {
    /// let client = flowline_client::Client::new("http://127.0.0.1:7400")?;
    /// let mut failures = client.follow_all(&[("type", "flow.failed"), ("flow", "fulfil-order,refund")]);
    /// while let Some(event) = failures.next().await? {
    ///     println!("{} failed; to continue after it: {:?}", event.run_id, failures.last_id());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn follow_all(&self, parameters: Parameters<'_>) -> EventStream {
        EventStream::new(self, Of::ManyRuns, "/v1/stream", parameters)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Run,
    ManyRuns,
}

/// Events as they're committed: call [`EventStream::next`] until it returns `None`.
pub struct EventStream {
    client: Client,
    of: Of,
    path: String,
    patience: Duration,
    silence: Duration,
    /// The id of the last message, to resume after.
    last_id: Option<HeaderValue>,
    connection: Option<Connection>,
    /// Whether a server has ever accepted this stream.
    accepted: bool,
    /// When the connection broke.
    broken_at: Option<Instant>,
    pauses: Pauses,
    status: Option<Status>,
    ended: bool,
}

impl EventStream {
    fn new(client: &Client, of: Of, path: &str, parameters: Parameters<'_>) -> EventStream {
        EventStream {
            client: client.clone(),
            of,
            path: with_query(path, parameters),
            patience: PATIENCE,
            silence: SILENCE,
            last_id: None,
            connection: None,
            accepted: false,
            broken_at: None,
            pauses: Pauses::default(),
            status: None,
            ended: false,
        }
    }

    /// Resumes after the message with this id, which an earlier stream's [`EventStream::last_id`] returned.
    pub fn after(mut self, id: &str) -> Result<EventStream, ClientError> {
        let id = HeaderValue::from_str(id).map_err(|_| ClientError::Header("last-event-id".to_owned()))?;
        self.last_id = Some(id);
        Ok(self)
    }

    /// How long to try to reconnect before [`EventStream::next`] fails; 60 s by default.
    pub fn patience(mut self, patience: Duration) -> EventStream {
        self.patience = patience;
        self
    }

    /// The id of the last message: of a run, the event's own; otherwise a cursor, which also moves past events that the
    /// filters leave out.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_ref().and_then(|id| id.to_str().ok())
    }

    /// How the run ended, once [`EventStream::next`] has returned `None`. `None` if the stream was resumed after the run's
    /// terminal event.
    pub fn status(&self) -> Option<Status> {
        self.status
    }

    /// Waits for the next event. Returns `None` after a run's terminal event; streams of many runs never end.
    ///
    /// Reconnects when the connection breaks or stays silent. Fails if the server refuses the stream, can't be reached the
    /// first time, or can't be reached again within the [patience](EventStream::patience); the next call then tries again
    /// from the same place. Can be cancelled, as in `select!`, without losing an event.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            while let Some(message) = self.connection.as_mut().and_then(Connection::message) {
                if let Some(event) = self.take(&message)? {
                    return Ok(Some(event));
                }
            }
            if self.ended {
                return Ok(None);
            }
            if let Err(error) = self.read().await {
                self.connection = None;
                self.wait_after(error).await?;
            }
        }
    }

    /// The event in a message, unless it's a keep-alive or the end.
    fn take(&mut self, message: &str) -> Result<Option<Event>, ClientError> {
        let field = |name: &str| message.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let data = field("data").unwrap_or_default();
        let event = match field("event") {
            None => None,
            Some("end") => {
                self.end(Some(self.parse::<StreamEnd>(data)?.status));
                None
            }
            Some(_) => Some(self.parse::<Event>(data)?),
        };
        if let Some(id) = field("id").and_then(|id| HeaderValue::from_str(id).ok()) {
            self.last_id = Some(id);
        }
        if let Some(event) = &event {
            self.pauses = Pauses::default();
            if self.of == Of::Run && event.kind.is_terminal() {
                self.end(event.kind.ended_as());
            }
        }
        Ok(event)
    }

    fn end(&mut self, status: Option<Status>) {
        (self.status, self.ended, self.connection) = (status, true, None);
    }

    fn parse<'a, T: Deserialize<'a>>(&self, data: &'a str) -> Result<T, ClientError> {
        let server =
            self.connection.as_ref().map_or_else(String::new, |connection| connection.server.clone());
        serde_json::from_str(data).map_err(|error| ClientError::Answer { server, problem: error.to_string() })
    }

    /// Reads on, and connects first if necessary.
    async fn read(&mut self) -> Result<(), ClientError> {
        if let Some(connection) = &mut self.connection {
            return connection.read(self.silence).await;
        }
        let mut request = ApiRequest::new(Method::GET, &self.path, None);
        request
            .headers
            .insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/problem+json"));
        if let Some(id) = &self.last_id {
            request.headers.insert("last-event-id", id.clone());
        }
        let (server, answer) = self.client.open(&request).await?;
        (self.accepted, self.broken_at) = (true, None);
        // The run has ended, and nothing was missed.
        if answer.status() == StatusCode::NO_CONTENT {
            self.ended = true;
        } else {
            self.connection =
                Some(Connection { server, body: answer.into_body(), text: Vec::new(), searched: 0 });
        }
        Ok(())
    }

    /// Pauses before the next try, or fails if there shouldn't be one.
    async fn wait_after(&mut self, error: ClientError) -> Result<(), ClientError> {
        if !self.accepted || !error.is_transient() {
            return Err(error);
        }
        let now = Instant::now();
        let pause = self.pauses.after(&error);
        if now + pause > *self.broken_at.get_or_insert(now) + self.patience {
            (self.broken_at, self.pauses) = (None, Pauses::default());
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventStream({} after {:?})", self.path, self.last_id())
    }
}

/// The data of a run's last message.
#[derive(Deserialize)]
struct StreamEnd {
    status: Status,
}

/// An open stream, and the part of the next message that has arrived.
struct Connection {
    server: String,
    body: Incoming,
    text: Vec<u8>,
    /// Bytes of `text` known not to start the end of a message.
    searched: usize,
}

impl Connection {
    /// The next whole message: the lines before an empty one.
    fn message(&mut self) -> Option<String> {
        let end = self.text[self.searched..].windows(2).position(|pair| pair == b"\n\n");
        let Some(end) = end else {
            self.searched = self.text.len().saturating_sub(1);
            return None;
        };
        let message = self.text.drain(..self.searched + end + 2).collect();
        self.searched = 0;
        Some(String::from_utf8(message).unwrap_or_default())
    }

    async fn read(&mut self, silence: Duration) -> Result<(), ClientError> {
        let server = || self.server.clone();
        let broken = |problem: String| ClientError::Unreachable { server: server(), problem };
        let frame = tokio::time::timeout(silence, self.body.frame()).await;
        let frame = frame
            .map_err(|_| ClientError::Late { server: server(), within: silence })?
            .ok_or_else(|| broken("the server closed the stream".to_owned()))?
            .map_err(|error| broken(with_causes(&error)))?;
        self.text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if self.text.len() > ANSWER_BYTES {
            let problem = format!("a message larger than {} MiB", ANSWER_BYTES >> 20);
            return Err(ClientError::Answer { server: server(), problem });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

    fn event(seq: u64, kind: &str) -> String {
        let data = format!(
            r#"{{"id":"5-{seq}","seq":{seq},"ts":"2026-11-15T21:05:18.227Z","type":"{kind}","runId":"r","flowName":"f","tenant":"default","v":1}}"#
        );
        format!("id: 5-{seq}\nevent: {kind}\ndata: {data}\n\n")
    }

    /// A server that plays these parts, one a connection, and returns what it was asked.
    async fn served(parts: Vec<String>, act: impl AsyncFnOnce(EventStream)) -> Vec<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let serve = tokio::spawn(async move {
            let (mut asked, mut kept) = (Vec::new(), Vec::new());
            for part in parts {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = connection.read(&mut request).await.unwrap();
                asked.push(String::from_utf8_lossy(&request[..length]).to_lowercase());
                connection.write_all(part.as_bytes()).await.unwrap();
                // One that ends in the middle of a line stays open and says nothing more.
                if part.ends_with('\n') { drop(connection) } else { kept.push(connection) }
            }
            asked
        });
        act(client.follow("r", &[])).await;
        serve.await.unwrap()
    }

    #[tokio::test]
    async fn a_stream_that_breaks_or_falls_silent_is_resumed_after_its_last_message() {
        let parts = vec![
            format!("{HEAD}retry: 1000\n\n{}:\n\n", event(1, "flow.start")),
            // Breaks off in the middle of a message, after one that came whole.
            format!("{HEAD}{}{}", event(2, "flow.paused"), &event(3, "flow.resumed")[..40]),
            "HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned(),
            format!("{HEAD}{}{}", event(3, "flow.resumed"), event(4, "flow.cancelled")),
        ];
        let asked = served(parts, async |mut events: EventStream| {
            events.silence = Duration::from_millis(200);
            let mut seqs = Vec::new();
            while let Some(event) = events.next().await.unwrap() {
                seqs.push(event.seq);
            }
            assert_eq!(seqs, [1, 2, 3, 4]);
            assert_eq!((events.status(), events.last_id()), (Some(Status::Cancelled), Some("5-4")));
            assert!(events.next().await.unwrap().is_none());
        })
        .await;
        assert!(!asked[0].contains("last-event-id"), "{}", asked[0]);
        for (request, id) in asked[1..].iter().zip(["5-1", "5-2", "5-2"]) {
            assert!(request.contains(&format!("last-event-id: {id}\r\n")), "{request}");
        }
    }

    #[tokio::test]
    async fn a_server_that_stays_away_ends_the_patience() {
        let parts = vec![format!("{HEAD}{}", event(1, "flow.start"))];
        let asked = served(parts, async |events: EventStream| {
            let mut events = events.patience(Duration::from_millis(200));
            assert_eq!(events.next().await.unwrap().unwrap().seq, 1);
            let error = events.next().await.unwrap_err();
            assert!(error.is_transient(), "{error}");
            assert_eq!(events.last_id(), Some("5-1"), "the next call tries again from here");
        });
        assert_eq!(asked.await.len(), 1);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_an_error_at_once() {
        let mut events = Client::new("http://127.0.0.1:1").unwrap().follow("r", &[]);
        assert!(matches!(events.next().await, Err(ClientError::Unconnected { .. })));
    }

    #[tokio::test]
    async fn what_is_no_event_is_refused() {
        let parts = vec![format!("{HEAD}event: flow.start\ndata: {{}}\n\n")];
        served(parts, async |mut events: EventStream| {
            assert!(matches!(events.next().await, Err(ClientError::Answer { .. })));
        })
        .await;
    }
}
