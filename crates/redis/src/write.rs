//! ArgGroup commit: callers wait while one writer per shard takes all that is pending into one call of a script.
//!
//! A call holds at most so much that Redis answers others soon after; two are on their way at once, so that the next is
//! packed while the last is written; one while other processes write, for they fill the server's time in between, and larger
//! calls cost it less. The writes of a run are never in two at once: a call that the server did not do, since
//! it lost the script or its slot moved, is sent again, and may come after the one behind it.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use flowline_core::Time;
use flowline_store::StoreError;
use flowline_store::others::OtherProcesses;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::args::ScriptArgs;
use crate::script::Script;
use crate::shard::Shard;

/// The most commits in a call.
const ITEMS: usize = 64;
/// The most bytes in a call. One commit that is larger goes alone.
const BYTES: usize = 1 << 20;
/// The most commands that a call makes the server run.
const COMMANDS: usize = 2_000;
/// Calls on their way at once. More gain nothing: Redis runs one at a time.
const FLIGHTS: usize = 2;

/// What the script answered to one write, and the date of the call.
pub(crate) type WriteReply = Result<(String, Time), StoreError>;

/// One write, packed, and who waits for its answer.
pub(crate) struct Item {
    /// Whose write it is: a call has one of a run, so that scripts can read all before they write.
    run: u64,
    pub(crate) args: ScriptArgs,
    /// Commands that it makes the server run.
    pub(crate) commands: usize,
    pub(crate) reply: oneshot::Sender<WriteReply>,
}

/// The writer of one script on one shard. Ends when it is dropped and all is written.
#[derive(Debug)]
pub(crate) struct ScriptWriter {
    queue: mpsc::UnboundedSender<Item>,
}

impl ScriptWriter {
    pub(crate) fn start(
        shard: Arc<Shard>,
        script: &'static Script,
        who: String,
        changed: watch::Sender<u64>,
        others: Arc<OtherProcesses>,
    ) -> ScriptWriter {
        let (queue, pending) = mpsc::unbounded_channel();
        tokio::spawn(work(shard, script, who, changed, others, pending));
        ScriptWriter { queue }
    }

    /// Puts a write into the queue. Its answer comes as the script gave it.
    pub(crate) fn push(&self, run: u64, args: ScriptArgs, commands: usize) -> oneshot::Receiver<WriteReply> {
        let (reply, answer) = oneshot::channel();
        // A writer that is gone drops the sender, which the receiver tells.
        let _ = self.queue.send(Item { run, args, commands, reply });
        answer
    }
}

/// The runs whose writes are on their way.
#[derive(Default)]
struct Away(Mutex<HashSet<u64>>);

impl Away {
    fn has(&self, item: &Item) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&item.run)
    }

    fn leave(&self, batch: &[Item]) -> Vec<u64> {
        let runs: Vec<u64> = batch.iter().map(|item| item.run).collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(&runs);
        runs
    }

    fn back(&self, runs: &[u64]) {
        let mut away = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.iter().for_each(|run| _ = away.remove(run));
    }
}

async fn work(
    shard: Arc<Shard>,
    script: &'static Script,
    who: String,
    changed: watch::Sender<u64>,
    others: Arc<OtherProcesses>,
    mut pending: mpsc::UnboundedReceiver<Item>,
) {
    let flights = Arc::new(Semaphore::new(FLIGHTS));
    let away = Arc::new(Away::default());
    let mut next = pending.recv().await;
    while let Some(first) = next.take() {
        // What comes in while both flights are away goes with the next.
        let Ok(permit) = flights.clone().acquire_owned().await else { return };
        if (away.has(&first) || others.write()) && flights.acquire_many(FLIGHTS as u32 - 1).await.is_err() {
            return;
        }
        let (mut bytes, mut commands) = (first.args.size(), first.commands);
        let mut batch: Vec<Item> = vec![first];
        while batch.len() < ITEMS {
            let Ok(item) = pending.try_recv() else { break };
            bytes += item.args.size();
            commands += item.commands;
            let again = batch.iter().any(|other| other.run == item.run) || away.has(&item);
            if again || bytes > BYTES || commands > COMMANDS {
                next = Some(item);
                break;
            }
            batch.push(item);
        }
        let (shard, who, changed, away) = (shard.clone(), who.clone(), changed.clone(), away.clone());
        let runs = away.leave(&batch);
        let mut call = Box::pin(async move {
            send(&shard, script, &who, batch).await;
            away.back(&runs);
            changed.send_modify(|count| *count += 1);
            drop(permit);
        });
        // Begun here, so that calls reach the server in the order of the queue.
        if poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await.is_pending() {
            tokio::spawn(call);
        }
        if next.is_none() {
            next = pending.recv().await;
        }
    }
}

async fn send(shard: &Shard, script: &Script, who: &str, batch: Vec<Item>) {
    let mut head = ScriptArgs::new();
    head.text(who).number(batch.len());
    let args: Vec<&ScriptArgs> = std::iter::once(&head).chain(batch.iter().map(|item| &item.args)).collect();
    match shard.call(script, args).await {
        Ok(mut answer) => {
            for item in batch {
                let one = crate::answer::text(answer.rest.next().unwrap_or_default());
                // Nobody waits any more where the receiver is gone.
                let _ = item.reply.send(one.map(|text| (text, answer.now)));
            }
        }
        Err(error) => {
            for item in batch {
                let _ = item.reply.send(Err(error.clone()));
            }
        }
    }
}
