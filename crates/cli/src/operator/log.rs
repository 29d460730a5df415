//! The log of one run as it grows, whoever works on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flowline::core::{Event, RunKey};
use flowline::store::{EventQuery, RunRow, Store, StoreError};
use flowline_api::runs::EventList;
use tokio::sync::watch;

use super::ServerOperator;
use crate::failure::CliError;

/// Looked again without a hint: a hint can be lost.
const LOOK: Duration = Duration::from_millis(500);
/// Events read at a time: a page of full payloads stays small.
const PAGE: usize = 200;

/// Reads a run's log from some event on.
pub struct LogTail {
    store: Arc<dyn Store>,
    run: RunKey,
    query: EventQuery,
    buffer: VecDeque<Event>,
    hint: watch::Receiver<u64>,
}

impl LogTail {
    pub fn new(store: Arc<dyn Store>, run: RunKey, query: EventQuery) -> LogTail {
        let hint = store.watch();
        LogTail { store, run, query: EventQuery { limit: PAGE, ..query }, buffer: VecDeque::new(), hint }
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

    /// The run's row.
    pub async fn row(&self) -> Result<RunRow, CliError> {
        let found = self.store.load(std::slice::from_ref(&self.run)).await?.into_iter().next().flatten();
        found.map(|snapshot| snapshot.row).ok_or_else(|| CliError::no_such_run(self.run.run.as_str()))
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

/// A run's log for whoever looks at it, from the store or from a server.
pub struct RunLog {
    source: Source,
    trimmed: bool,
}

enum Source {
    Store(LogTail),
    Server(Box<ServerLog>),
}

/// A log that a server is asked for, a page at a time.
struct ServerLog {
    server: ServerOperator,
    run: RunKey,
    query: EventQuery,
    buffer: VecDeque<Event>,
}

impl RunLog {
    pub async fn of_store(store: Arc<dyn Store>, run: RunKey, query: EventQuery) -> Result<RunLog, CliError> {
        let tail = LogTail::new(store, run, query);
        Ok(RunLog { trimmed: tail.row().await?.events_trimmed, source: Source::Store(tail) })
    }

    pub async fn of_server(
        server: ServerOperator,
        run: RunKey,
        query: EventQuery,
    ) -> Result<RunLog, CliError> {
        let query = EventQuery { limit: PAGE, ..query };
        let mut asked = ServerLog { server, run, query, buffer: VecDeque::new() };
        let trimmed = asked.fill().await?.events_trimmed;
        Ok(RunLog { trimmed, source: Source::Server(Box::new(asked)) })
    }

    /// Whether retention has removed it.
    pub fn is_trimmed(&self) -> bool {
        self.trimmed
    }

    /// The next event that is there already; `None` at the present end.
    pub async fn ready(&mut self) -> Result<Option<Event>, CliError> {
        match &mut self.source {
            Source::Store(tail) => Ok(tail.ready().await?),
            Source::Server(asked) => asked.ready().await,
        }
    }

    /// Waits for a reason to look again, and tells whether the run has ended: then all there will be is there.
    pub async fn wait(&mut self) -> Result<bool, CliError> {
        match &mut self.source {
            Source::Store(tail) => {
                let ended = tail.row().await?.status.is_terminal();
                if !ended {
                    tail.changed().await;
                }
                Ok(ended)
            }
            Source::Server(asked) => asked.server.has_ended(&asked.run, LOOK).await,
        }
    }
}

impl ServerLog {
    async fn ready(&mut self) -> Result<Option<Event>, CliError> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        Ok(self.buffer.pop_front())
    }

    /// Reads the next page; what it holds goes into the buffer.
    async fn fill(&mut self) -> Result<EventList, CliError> {
        let mut page = self.server.events(&self.run, &self.query).await?;
        self.query.after = page.items.last().map_or(self.query.after, |event| event.seq);
        self.buffer.extend(page.items.drain(..));
        Ok(page)
    }
}
