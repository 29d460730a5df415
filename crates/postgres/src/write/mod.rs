//! Group commit: callers leave what they want in a queue and wait; each of two writers takes all that is pending into
//! one transaction, and answers everybody when that is durable.
//!
//! Two writers, so that one fills its transaction while the other waits for the disk. They meet on a run only where two
//! callers write to it at once; then one waits for the other's lock and sees what it wrote. While other processes write,
//! they are who fills in between, and one writer here makes the larger batches.

mod batch;
mod flush;
mod model;
mod receipts;
mod transfer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use flowline_core::NewEvent;
use flowline_store::others::{self, OtherProcesses};
use flowline_store::row::Repair;
use flowline_store::{Append, AppendError, Commit, CommitError, Committed, StoreError};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::fault::PgFault;
use crate::names::StoredNames;
use crate::session::{SILENT, Session};
use crate::target::ServerTarget;
use crate::witness::{Halt, Witness, Witnesses};
use batch::{BatchFailure, WorkReply};

pub(crate) use transfer::restore;

/// More writers only wait for the same disk and the same cores.
pub(crate) const WRITERS: usize = 2;
/// The most requests that share a transaction: bounds how long the first of them waits for the last.
const BATCH: usize = 512;
/// The most bytes that share a transaction, unless one request alone has more: bounds memory here and in the server.
const BYTES: usize = 16 << 20;
/// The most commits of one request that share a transaction.
pub(crate) const CHUNK: usize = 500;
/// How often a transaction that was rolled back for a passing reason is tried again.
pub(crate) const TRIES: u32 = 6;
/// How long callers wait for their answer, in the queue and beyond: then what became of it is not known.
const ANSWER: Duration = Duration::from_millis(4_500);
/// How long callers wait for a connection before they are told that there is none.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// One thing to be written.
#[derive(Debug)]
pub(crate) enum Work {
    Commit(Vec<Commit>),
    Append(Vec<Append>),
    Repair(Repair),
}

#[derive(Debug)]
struct Asked {
    work: Work,
    answer: oneshot::Sender<Result<WorkReply, StoreError>>,
}

/// The way to the writers. The queue closes when this goes; what is in it is written first.
#[derive(Debug)]
pub(crate) struct Writers {
    asked: mpsc::UnboundedSender<Asked>,
    halt: Arc<Halt>,
    /// Each ends by itself once the queue is closed and empty.
    _serving: Vec<JoinHandle<()>>,
}

/// What a writer has of its own.
#[derive(Debug)]
struct Writing {
    session: Option<Session>,
    witness: Witness,
}

/// What every writer works with.
#[derive(Debug, Clone)]
pub(crate) struct WriterContext {
    pub(crate) target: ServerTarget,
    pub(crate) names: Arc<StoredNames>,
    /// Counts what was committed here.
    pub(crate) changed: watch::Sender<u64>,
    /// Wakes whoever tells other processes.
    pub(crate) tell: Arc<tokio::sync::Notify>,
    pub(crate) halt: Arc<Halt>,
    pub(crate) witnesses: Arc<Witnesses>,
    pub(crate) others: Arc<OtherProcesses>,
}

impl Writers {
    pub(crate) fn start(shared: WriterContext) -> Writers {
        let (asked, queue) = mpsc::unbounded_channel();
        let queue = Arc::new(Mutex::new(queue));
        let writer = |n| tokio::spawn(serve(shared.clone(), n, queue.clone()));
        let halt = shared.halt.clone();
        Writers { asked, halt, _serving: (0..WRITERS).map(writer).collect() }
    }

    pub(crate) async fn commit(
        &self,
        batch: Vec<Commit>,
    ) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        match self.ask(Work::Commit(batch)).await? {
            WorkReply::Committed(answers) => Ok(answers),
            _ => Err(gone()),
        }
    }

    pub(crate) async fn append(
        &self,
        batch: Vec<Append>,
    ) -> Result<Vec<Result<u32, AppendError>>, StoreError> {
        match self.ask(Work::Append(batch)).await? {
            WorkReply::Appended(answers) => Ok(answers),
            _ => Err(gone()),
        }
    }

    pub(crate) async fn repair(&self, repair: Repair) -> Result<(), CommitError> {
        match self.ask(Work::Repair(repair)).await? {
            WorkReply::Repaired(answer) => answer,
            _ => Err(gone().into()),
        }
    }

    async fn ask(&self, work: Work) -> Result<WorkReply, StoreError> {
        self.halt.healthy()?;
        let (answer, answered) = oneshot::channel();
        self.asked.send(Asked { work, answer }).map_err(|_| gone())?;
        let answered = tokio::time::timeout(ANSWER, answered).await;
        let late = |_| Err(PgFault::Late.of_read());
        self.halt.heed(answered.map_or_else(late, |answer| answer.map_err(|_| gone())?))
    }
}

fn gone() -> StoreError {
    StoreError::Unavailable("the writer has stopped; restart the process".to_owned())
}

async fn serve(shared: WriterContext, number: usize, queue: Arc<Mutex<mpsc::UnboundedReceiver<Asked>>>) {
    let mut seat = Writing { session: None, witness: shared.witnesses.of_writer(number) };
    let mut pending = Vec::with_capacity(BATCH);
    loop {
        if number > 0 && shared.others.write() {
            // No longer: the first writer may be stuck.
            tokio::time::sleep(others::BUSY).await;
        }
        if queue.lock().await.recv_many(&mut pending, BATCH).await == 0 {
            return;
        }
        while !pending.is_empty() {
            let rest = pending.split_off(share(&pending));
            let batch = std::mem::replace(&mut pending, rest);
            settle(&shared, &mut seat, batch).await;
        }
    }
}

/// How many of the first requests fit in one transaction; at least one.
fn share(pending: &[Asked]) -> usize {
    let mut bytes = 0;
    let fits = pending.iter().take_while(|asked| {
        bytes += asked.work.bytes();
        bytes <= BYTES
    });
    fits.count().max(1)
}

/// Writes a batch and answers everybody.
async fn settle(shared: &WriterContext, seat: &mut Writing, batch: Vec<Asked>) {
    // Who no longer waits was told that nobody knows: that stays true if it is never done.
    let waited_for = batch.into_iter().filter(|asked| !asked.answer.is_closed());
    let (works, answers): (Vec<Work>, Vec<_>) = waited_for.map(|asked| (asked.work, asked.answer)).unzip();
    if works.is_empty() {
        return;
    }
    // A caller that no longer waits has been told nothing; what was done stands.
    match write(shared, seat, &works).await {
        Ok(done) => answers.into_iter().zip(done).for_each(|(to, answer)| drop(to.send(Ok(answer)))),
        Err(error)
            if works.len() > 1 && !error.is_transient() && !matches!(error, StoreError::WentBack(_)) =>
        {
            // Something that only one of them can have caused: each gets a transaction of its own.
            for (work, to) in works.into_iter().zip(answers) {
                let done = write(shared, seat, &[work]).await;
                drop(to.send(done.and_then(|mut one| one.pop().ok_or_else(gone))));
            }
        }
        Err(error) => {
            answers.into_iter().for_each(|to| drop(to.send(Err(error.clone()))));
            return;
        }
    }
    shared.changed.send_modify(|count| *count += 1);
    shared.tell.notify_one();
}

impl Work {
    /// About what it weighs: payloads and states.
    fn bytes(&self) -> usize {
        let data = |event: &NewEvent| event.data.as_ref().map_or(0, |data| data.get().len());
        match self {
            Work::Commit(batch) => {
                let one =
                    |commit: &Commit| commit.state.len() + commit.events.iter().map(data).sum::<usize>();
                batch.iter().map(one).sum()
            }
            Work::Append(batch) => {
                batch.iter().flat_map(|append| &append.lines).map(|line| data(&line.event)).sum()
            }
            Work::Repair(_) => 0,
        }
    }
}

/// All works in one transaction, tried again where it surely left nothing behind.
async fn write(
    shared: &WriterContext,
    seat: &mut Writing,
    works: &[Work],
) -> Result<Vec<WorkReply>, StoreError> {
    let Writing { session, witness } = seat;
    let began = Instant::now();
    let mut tries = 0;
    loop {
        let live = match session.take().filter(|session| !session.is_closed()) {
            Some(live) => live,
            None => match Session::connect(&shared.target).await {
                Ok(live) => live,
                // Nothing was sent: the outcome is known, and it is nothing.
                Err(error) if began.elapsed() > PATIENCE || !error.is_transient() => return Err(error),
                Err(_) => {
                    pause(tries).await;
                    tries += 1;
                    continue;
                }
            },
        };
        let tried = tokio::time::timeout(SILENT, batch::perform(&live, &shared.names, witness, works)).await;
        let failed = match tried {
            Ok(Ok(answers)) => {
                *session = Some(live);
                return Ok(answers);
            }
            Ok(Err(failed)) => failed,
            Err(_) => BatchFailure { fault: PgFault::Late, ending: true },
        };
        let BatchFailure { fault, ending } = failed;
        if !fault.is_answer() {
            // The connection is dropped with what it had begun. Was the end of the transaction under way, nobody knows
            // whether it was heard.
            if ending || began.elapsed() > PATIENCE {
                return Err(fault.of_read());
            }
        } else {
            let again = fault.try_again() && tries < TRIES;
            if live.run("rollback").await.is_ok() {
                *session = Some(live);
            }
            if !again {
                return Err(fault.of_write());
            }
        }
        pause(tries).await;
        tries += 1;
    }
}

/// Waits a little, longer each time and never as long as another writer.
pub(crate) async fn pause(tries: u32) {
    let most = 10_u64 << tries.min(5);
    tokio::time::sleep(Duration::from_millis(most / 2 + fastrand::u64(0..=most))).await;
}
