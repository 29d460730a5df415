//! Compares what workers did, according to their own ledger, with what the store has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_core::event::EventType;
use flowline_core::{Json, RunKey};
use serde::Deserialize;

use crate::Invariant::{I2, I3, I7, I17, I19, I20};
use crate::inputs::inputs;
use crate::source::StoreSnapshot;
use crate::violation::{Checker, Violation};

/// Everything that workers did, in order.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    pub log: Vec<Effect>,
    /// How many attempts each worker may run at once. A worker that isn't listed has no limit.
    pub slots: BTreeMap<Arc<str>, WorkerSlots>,
}

/// A worker's slots, by queue.
#[derive(Debug, Clone, Default)]
pub struct WorkerSlots {
    pub queues: BTreeMap<Arc<str>, usize>,
    pub elsewhere: usize,
}

/// What happened to one attempt, outside the store.
#[derive(Debug, Clone)]
pub enum Effect {
    Began {
        worker: Arc<str>,
        queue: Arc<str>,
        run: RunKey,
        step: Arc<str>,
        attempt: u32,
        /// Its input, if the ledger has it.
        input: Option<Json>,
    },
    /// It emitted an event before it was done.
    EmittedNow { run: RunKey, step: Arc<str>, attempt: u32, name: String },
    /// It ended or was stopped, so its slot is free.
    Ended {
        worker: Arc<str>,
        queue: Arc<str>,
        run: RunKey,
        step: Arc<str>,
        attempt: u32,
        reported: AttemptReport,
    },
    /// How its report was answered.
    Answered { run: RunKey, step: Arc<str>, attempt: u32, answer: ReportReply },
    /// How a repeated report was answered.
    AnsweredAgain { run: RunKey, step: Arc<str>, attempt: u32, report: RepeatedReport, answer: ReportReply },
    /// The worker is gone, and everything it ran with it.
    Crashed { worker: Arc<str> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptReport {
    Nothing,
    Done,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportReply {
    /// It's in the log, written now or before.
    Acknowledged,
    Refused,
}

/// What an attempt reports again after its report was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatedReport {
    Same,
    /// An outcome that it hasn't reported before.
    Other,
}

type Attempt = (RunKey, Arc<str>, u32);

#[derive(Debug, Default)]
struct Seen {
    input: Option<Json>,
    reported: Option<AttemptReport>,
    answer: Option<ReportReply>,
    again: Vec<(RepeatedReport, ReportReply)>,
    emitted: BTreeSet<String>,
}

impl Effects {
    /// Compares the store with what workers did.
    pub fn check(&self, checker: Checker, source: &dyn StoreSnapshot) -> Vec<Violation> {
        let (attempts, mut violations) = self.replay(checker);
        let runs: BTreeSet<&RunKey> = attempts.keys().map(|(run, ..)| run).collect();
        for run in runs {
            violations.extend(of_run(checker, source, run, &attempts));
        }
        violations
    }

    /// Goes through the ledger in order: an attempt starts once, and no worker runs more than its slots.
    fn replay(&self, checker: Checker) -> (BTreeMap<Attempt, Seen>, Vec<Violation>) {
        let mut attempts: BTreeMap<Attempt, Seen> = BTreeMap::new();
        let mut running: BTreeMap<(Arc<str>, Arc<str>), usize> = BTreeMap::new();
        let mut violations = Vec::new();
        for effect in &self.log {
            match effect {
                Effect::Began { worker, queue, run, step, attempt, input } => {
                    let mut found = checker.findings();
                    let count = running.entry((worker.clone(), queue.clone())).or_default();
                    *count += 1;
                    let room = self.slots.get(worker).map(|slots| slots.of(queue));
                    if let Some(room) = room.filter(|room| *count > *room) {
                        let message = format!(
                            "{worker} runs {count} attempts of queue {queue:?}, but has {room} slots"
                        );
                        found.outside(I17, message);
                    }
                    let seen = Seen { input: input.clone(), ..Seen::default() };
                    if attempts.insert((run.clone(), step.clone(), *attempt), seen).is_some() {
                        found.outside(I2, format!("attempt {attempt} of step {step:?} started twice"));
                    }
                    violations.extend(found.of_run(run));
                }
                Effect::EmittedNow { run, step, attempt, name } => {
                    let seen = attempts.entry((run.clone(), step.clone(), *attempt)).or_default();
                    seen.emitted.insert(name.clone());
                }
                Effect::Ended { worker, queue, run, step, attempt, reported } => {
                    let count = running.entry((worker.clone(), queue.clone())).or_default();
                    *count = count.saturating_sub(1);
                    let seen = attempts.entry((run.clone(), step.clone(), *attempt)).or_default();
                    seen.reported = Some(*reported);
                }
                Effect::Answered { run, step, attempt, answer } => {
                    let seen = attempts.entry((run.clone(), step.clone(), *attempt)).or_default();
                    seen.answer = Some(*answer);
                }
                Effect::AnsweredAgain { run, step, attempt, report, answer } => {
                    let seen = attempts.entry((run.clone(), step.clone(), *attempt)).or_default();
                    seen.again.push((*report, *answer));
                }
                Effect::Crashed { worker } => running.retain(|(of, _), _| of != worker),
            }
        }
        (attempts, violations)
    }
}

impl WorkerSlots {
    fn of(&self, queue: &str) -> usize {
        self.queues.get(queue).copied().unwrap_or(self.elsewhere)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    name: String,
    cause: Option<String>,
    code: Option<String>,
    inherited: bool,
}

/// The outcome of an attempt, according to a log.
#[derive(Debug, Default)]
struct Logged {
    completed: bool,
    failed: bool,
    lost: bool,
    emitted: BTreeSet<String>,
}

fn of_run(
    checker: Checker,
    source: &dyn StoreSnapshot,
    run: &RunKey,
    attempts: &BTreeMap<Attempt, Seen>,
) -> Vec<Violation> {
    let mut found = checker.findings();
    let mut logged: BTreeMap<(Arc<str>, u32), Logged> = BTreeMap::new();
    let events = source.events(run, 0);
    let repeated = events
        .first()
        .is_some_and(|event| event.data.as_ref().is_some_and(|d| d.get().contains("\"retryOf\"")));
    let mut ended = false;
    for event in &events {
        ended |= event.kind.is_terminal();
        let (Some(step), Some(attempt)) = (&event.step_name, event.attempt) else { continue };
        let said = || -> Said { event.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default() };
        let of = logged.entry((step.clone(), attempt)).or_default();
        match event.kind {
            EventType::StepCompleted => of.completed |= !said().inherited,
            EventType::StepRetry | EventType::StepFailed => {
                let said = said();
                // A condition fails without an attempt.
                let condition = matches!(said.code.as_deref(), Some("condition" | "too_costly"));
                let by_itself = said.cause.is_none() && !condition;
                of.failed |= by_itself;
                of.lost |= !by_itself;
            }
            EventType::Emit if !repeated => drop(of.emitted.insert(said().name)),
            _ => {}
        }
    }
    let nothing = Seen::default();
    for ((step, attempt), logged) in &logged {
        let seen = attempts.get(&(run.clone(), step.clone(), *attempt)).unwrap_or(&nothing);
        let reported = seen.reported;
        let of = || format!("attempt {attempt} of step {step:?}");
        let fits = match (logged.completed, logged.failed) {
            (true, _) => reported == Some(AttemptReport::Done),
            // A worker may fail an attempt that reported nothing, because it took too long or its program is gone.
            (_, true) => attempts.contains_key(&(run.clone(), step.clone(), *attempt)),
            _ => true,
        };
        if !fits {
            let what = if logged.completed { "completion" } else { "failure" };
            found.outside(I3, format!("the log has a {what} of {}, which reported {reported:?}", of()));
        }
        if seen.answer == Some(ReportReply::Refused) && (logged.completed || logged.failed) {
            found.outside(I7, format!("the report of {} was refused, but is in the log", of()));
        }
        if !logged.completed {
            for name in logged.emitted.difference(&seen.emitted) {
                found.outside(I3, format!("{} didn't complete, but its emit {name:?} is in the log", of()));
            }
        }
    }
    let (trimmed, kept) = (events.is_empty(), source.row(run).is_some());
    let inputs = inputs(source, run, &events);
    for ((_, step, attempt), seen) in attempts.iter().filter(|((of, ..), _)| of == run) {
        let there =
            logged.get(&(step.clone(), *attempt)).is_some_and(|logged| logged.completed || logged.failed);
        let of = || format!("attempt {attempt} of step {step:?}");
        if seen.answer == Some(ReportReply::Acknowledged) && !there && !trimmed {
            let run = if ended { "the run has ended" } else { "the run has not ended" };
            found.outside(
                I3,
                format!("the report of {} was acknowledged, but isn't in the log ({run})", of()),
            );
        }
        // Of a run that is still there, the answer tells what the log did before it was trimmed.
        let told = seen.answer.filter(|_| trimmed && kept);
        for again in &seen.again {
            let wrong = match again {
                (RepeatedReport::Same, ReportReply::Acknowledged) if !there && !trimmed => {
                    "got the answer for a recorded report, but isn't in the log"
                }
                (RepeatedReport::Same, ReportReply::Acknowledged) if told == Some(ReportReply::Refused) => {
                    "got the answer for a recorded report, but was refused before"
                }
                (RepeatedReport::Same, ReportReply::Refused)
                    if there || told == Some(ReportReply::Acknowledged) =>
                {
                    "is recorded, but was refused when it was repeated"
                }
                (RepeatedReport::Other, ReportReply::Acknowledged) => {
                    "got the answer for a recorded report, although it differs from the recorded one"
                }
                _ => continue,
            };
            found.outside(I20, format!("the report of {} {wrong}", of()));
        }
        if let (Some(given), Some(fixed)) = (&seen.input, inputs.get(step))
            && given.value() != *fixed
        {
            found.outside(I19, format!("{} got {}, but was triggered with {fixed}", of(), given.get()));
        }
    }
    found.of_run(run)
}
