//! The one thread that writes.
//!
//! Callers leave what they want in a channel and wait. The writer takes all that is pending, does it in one transaction,
//! makes that durable with one sync, and only then answers everybody. Each verb checks all its guards before it writes
//! its first row, so a refused one needs no undoing; a fault of the disk rolls the whole transaction back and what the
//! writer had in mind with it.

mod append;
mod catalog;
mod commit;
mod documents;
mod lease;
mod live;
mod locks;
mod log;
mod receipts;
mod repair;
pub(crate) mod retain;
pub(crate) mod statements;
mod transfer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use flowline_core::Status;
use flowline_store::{Clock, StoreError};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use crate::code;
use crate::fault::Fault;
use crate::file;
use crate::names::NameNumbers;
use live::LiveRuns;
use statements::Statements;

/// The most requests that share a transaction: bounds how long the first of them waits for the last.
const BATCH: usize = 1_024;

/// What the writer works with: the connection, and what it keeps in mind of the file.
#[derive(Debug)]
pub(crate) struct Writer<'c> {
    conn: &'c Connection,
    sql: Statements<'c>,
    names: NameNumbers,
    live: LiveRuns,
    clock: Clock,
    last: Numbers,
    /// Run, slot and event number of payloads, written before the transaction ends.
    slots: Vec<[i64; 3]>,
    /// Room for the text of a row of events.
    text: String,
    /// Changes of the counters in this transaction, by flow, status and state.
    counts: HashMap<(i64, Status, Option<Arc<str>>), i64>,
    /// The lane that the last claim served last.
    last_lane: Option<(flowline_core::Tenant, flowline_store::Lane)>,
}

/// The last numbers given. They only grow, also when what has the highest is removed: cursors rely on it.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    event: i64,
    run: i64,
    job: u64,
    /// No run is dated later.
    created: i64,
    /// By how much a run may be dated before one with a lower number.
    created_slack: i64,
}

/// The way to the writer. Dropping the last one ends the thread once all that was asked is done.
#[derive(Debug)]
pub(crate) struct WriterThread {
    asked: Option<mpsc::Sender<Box<dyn Request>>>,
    thread: Option<thread::JoinHandle<()>>,
    /// Why the last transaction failed, while none has succeeded since.
    trouble: Arc<Mutex<Option<String>>>,
}

impl WriterThread {
    /// Starts the thread. Answers once the writer has read what it keeps in mind.
    pub(crate) fn start(
        conn: Connection,
        clock: Clock,
        changed: watch::Sender<u64>,
    ) -> Result<WriterThread, StoreError> {
        let (asked, requests) = mpsc::channel();
        let (ready, opened) = mpsc::channel();
        let trouble = Arc::new(Mutex::new(None));
        let report = trouble.clone();
        let body = move || {
            match Writer::new(&conn, clock) {
                Ok(mut writer) => {
                    // The opener waits for this; were it gone, so would be the channel that feeds the loop.
                    let _ = ready.send(Ok(()));
                    writer.serve(&requests, &changed, &report);
                }
                Err(fault) => {
                    let _ = ready.send(Err(named(&conn, fault.of_write())));
                }
            }
        };
        let thread = thread::Builder::new()
            .name("flowline-sqlite".to_owned())
            .spawn(body)
            .map_err(|error| StoreError::Unavailable(format!("can't start the writer thread: {error}")))?;
        opened.recv().unwrap_or_else(|_| Err(gone()))?;
        Ok(WriterThread { asked: Some(asked), thread: Some(thread), trouble })
    }

    /// Has `work` done in the next transaction; answers when that is durable.
    pub(crate) async fn ask<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Writer<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let request = Box::new(Asked { work, done: None, answer });
        let asked = self.asked.as_ref().ok_or_else(gone)?;
        asked.send(request).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?.0
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().ok().and_then(|trouble| trouble.clone())
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has told so on stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

fn gone() -> StoreError {
    StoreError::Unavailable("the writer has stopped; restart the process".to_owned())
}

/// Something to be done in a transaction. It may be done again after a rollback.
trait Request: Send {
    fn perform(&mut self, writer: &mut Writer<'_>) -> Result<(), Fault>;
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Asked<T, F> {
    work: F,
    done: Option<T>,
    /// The work goes back along with the answer: freeing it is not the writer's business.
    answer: oneshot::Sender<(Result<T, StoreError>, F)>,
}

impl<T, F> Request for Asked<T, F>
where
    T: Send,
    F: FnMut(&mut Writer<'_>) -> Result<T, Fault> + Send,
{
    fn perform(&mut self, writer: &mut Writer<'_>) -> Result<(), Fault> {
        self.done = Some((self.work)(writer)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Asked { work, done, answer } = *self;
        // A caller that no longer waits has been told nothing; what was done stands.
        let _ = answer.send((outcome.and_then(|()| done.ok_or_else(gone)), work));
    }
}

impl<'c> Writer<'c> {
    fn new(conn: &'c Connection, clock: Clock) -> Result<Writer<'c>, Fault> {
        let mut writer = Writer {
            conn,
            sql: Statements::prepare(conn)?,
            names: NameNumbers::load(conn)?,
            live: LiveRuns::default(),
            clock,
            last: Numbers { event: 0, run: 0, job: 0, created: 0, created_slack: 0 },
            slots: Vec::new(),
            text: String::new(),
            counts: HashMap::new(),
            last_lane: None,
        };
        writer.void_leases()?;
        writer.recall_numbers()?;
        Ok(writer)
    }

    fn serve(
        &mut self,
        requests: &mpsc::Receiver<Box<dyn Request>>,
        changed: &watch::Sender<u64>,
        trouble: &Mutex<Option<String>>,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Ok(first) = requests.recv() {
            batch.push(first);
            batch.extend(requests.try_iter().take(BATCH - 1));
            let before = self.conn.total_changes();
            let outcome = self.write(&mut batch);
            if let Ok(mut trouble) = trouble.lock() {
                *trouble = outcome.as_ref().err().map(ToString::to_string);
            }
            if self.conn.total_changes() != before && outcome.is_ok() {
                changed.send_modify(|count| *count += 1);
            }
            for request in batch.drain(..) {
                request.answer(outcome.clone());
            }
            self.live.trim();
        }
    }

    /// All of the batch in one transaction. Where that fails for a reason that is not the disk's, each request gets a
    /// transaction of its own, so that one cannot fail the others; those that do are answered here.
    fn write(&mut self, batch: &mut Vec<Box<dyn Request>>) -> Result<(), StoreError> {
        let error = match self.transaction(batch) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if error.is_transient() || batch.len() == 1 {
            return Err(error);
        }
        for mut request in std::mem::take(batch) {
            let outcome = self.transaction(std::slice::from_mut(&mut request));
            request.answer(outcome);
        }
        Ok(())
    }

    fn transaction(&mut self, batch: &mut [Box<dyn Request>]) -> Result<(), StoreError> {
        let mut attempt = || -> Result<(), Fault> {
            self.sql.begin.execute([])?;
            for request in batch.iter_mut() {
                request.perform(self)?;
            }
            self.write_slots()?;
            self.write_counts()?;
            self.sql.commit.execute([])?;
            Ok(())
        };
        let Err(fault) = attempt() else { return Ok(()) };
        let error = named(self.conn, fault.of_write());
        self.roll_back();
        Err(error)
    }

    /// Back to what the file says. A fault in here shows again in the next transaction.
    fn roll_back(&mut self) {
        if !self.conn.is_autocommit() {
            let _ = self.conn.execute_batch("rollback");
        }
        self.live = LiveRuns::default();
        self.counts.clear();
        self.slots.clear();
        if let Ok(names) = NameNumbers::load(self.conn) {
            self.names = names;
        }
    }

    fn write_counts(&mut self) -> Result<(), Fault> {
        for ((flow, status, state), change) in self.counts.drain().filter(|(_, change)| *change != 0) {
            let state = state.as_deref().unwrap_or_default();
            self.sql.count.execute((flow, code::status_number(status), state, change))?;
        }
        Ok(())
    }

    fn count(&mut self, flow: i64, status: Status, state: Option<Arc<str>>, change: i64) {
        *self.counts.entry((flow, status, state)).or_default() += change;
    }

    /// Writes a page as it is, to see whether that can be done.
    pub(crate) fn try_out(&mut self) -> Result<(), Fault> {
        self.conn.execute("update cells set value = value", [])?;
        Ok(())
    }

    fn recall_numbers(&mut self) -> Result<(), Fault> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let cell = "select coalesce((select value from cells where name = 'last_";
        self.last = Numbers {
            event: number(
                "select coalesce(max(n + count - 1), 0) from log where n = (select max(n) from log)",
            )?
            .max(number(&format!("{cell}event'), 0)"))?),
            run: number("select coalesce(max(id), 0) from runs")?.max(number(&format!("{cell}run'), 0)"))?),
            job: number(
                "select max((select coalesce(max(n), 0) from jobs), (select coalesce(max(n), 0) from leases))",
            )? as u64,
            created: number(
                "select coalesce((select created_at from runs order by id desc limit 1), 0)
                    + (select value from cells where name = 'created_slack')",
            )?,
            created_slack: number("select value from cells where name = 'created_slack'")?,
        };
        Ok(())
    }

    /// Notes the date of a run that gets the next number.
    fn note_creation(&mut self, at: i64) -> Result<(), Fault> {
        let behind = self.last.created - at;
        self.last.created = self.last.created.max(at);
        if behind > self.last.created_slack { self.widen_slack(behind) } else { Ok(()) }
    }

    fn widen_slack(&mut self, to: i64) -> Result<(), Fault> {
        self.last.created_slack = to;
        self.conn.execute("update cells set value = ?1 where name = 'created_slack'", [to])?;
        Ok(())
    }

    /// The engine that held these leases is dead, or its lock would have kept us out: nobody needs to wait for them. Remote
    /// workers hold theirs themselves, and may be alive.
    fn void_leases(&mut self) -> Result<(), Fault> {
        let now = self.clock.now().millis();
        self.conn.execute(
            "update leases set expires = ?1
             where expires > ?1 and lane not in (select id from lanes where need = ?2)",
            (now, flowline_store::job::REMOTE),
        )?;
        Ok(())
    }
}

/// Names the file in an error.
fn named(conn: &Connection, error: StoreError) -> StoreError {
    file::named(Path::new(conn.path().unwrap_or_default()), error)
}
