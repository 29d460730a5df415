//! Commits, appends and jobs as the arguments of scripts, and answers back.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::definition::Priority;
use flowline_core::{EventType, NewEvent, RunId, Time};
use flowline_store::row::StateScope;
use flowline_store::{
    Append, AppendError, Base, Commit, CommitError, Committed, Failure, Index, JobKey, JobRow, JobState,
    Lane, LeaseUse, NewJob, NewRun, Others, StoreError, Token,
};
use serde::{Deserialize, Serialize};

use crate::answer::number;
use crate::args::Args;
use crate::names;

/// What is written once, at the start of a run: the field `start` of its hash.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Start {
    pub(crate) flow: Arc<str>,
    pub(crate) definition: Arc<str>,
    pub(crate) step_count: u32,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    pub(crate) input_digest: String,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) retry_of: Option<RunId>,
}

/// How a commit differs from a plain one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Commit,
    /// Jobs are mended: the row stays, named jobs go without a check.
    Mend,
}

const TERMINAL: u32 = 1;
const STARTED: u32 = 2;
const CLEAR: u32 = 4;
const MEND: u32 = 8;

/// Longer than any lease or time that makes sense, and small enough that sums stay whole numbers in a script.
const LONGEST: u128 = 100 * 366 * 86_400_000;
/// The farthest date that a score tells apart from the next.
const FARTHEST: i64 = 1 << 52;

/// Packs a commit; gives the number of commands that it makes the server run, too.
pub(crate) fn commit(commit: Commit, kind: Kind, hint: u64) -> Result<(Args, usize), StoreError> {
    let mut args = Args::new();
    let commands = 6 + commit.events.len() + 2 * (commit.leases.len() + commit.add.len());
    let Commit { run, base, leases, events, state, index, others, add, clear_state } = commit;
    let count = 13
        + if matches!(base, Base::New(_)) { 4 } else { 0 }
        + 4 * leases.len()
        + 5 * events.len()
        + 11 * add.len();
    args.number(count).text(&names::run(&run));
    match &base {
        Base::New(_) => args.text(""),
        Base::Version(version) => args.number(version),
    };
    let mut flags = if clear_state { CLEAR } else { 0 } | if kind == Kind::Mend { MEND } else { 0 };
    for event in &events {
        flags |= if event.kind.is_terminal() { TERMINAL } else { 0 };
        flags |= if event.kind == EventType::StepStarted { STARTED } else { 0 };
    }
    args.number(flags);
    row(&mut args, &index, state)?;
    args.text(match others {
        Others::Leave => "",
        Others::Drop => "D",
        Others::Hold => "H",
        Others::Release => "R",
    });
    args.number(leases.len()).number(events.len()).number(add.len()).number(hint);
    if let Base::New(new) = base {
        start(&mut args, new)?;
    }
    for lease in &leases {
        lease_use(&mut args, lease, kind);
    }
    for new in events {
        event(&mut args, &new);
    }
    for job in add {
        new_job(&mut args, &job);
    }
    debug_assert_eq!(args.count(), count);
    Ok((args, commands))
}

fn row(args: &mut Args, index: &Index, state: Vec<u8>) -> Result<(), StoreError> {
    args.text(index.status.as_str());
    args.text(&format!("{} {} {}", index.completed_steps, index.failed_steps, index.retries));
    match &index.failure {
        Some(failure) => args.text(&json(failure)?),
        None => args.text(""),
    };
    args.bytes(state);
    Ok(())
}

fn start(args: &mut Args, new: NewRun) -> Result<(), StoreError> {
    let NewRun { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of } = new;
    let listed: Vec<String> = labels.iter().map(|(key, value)| label(key, value)).collect();
    args.name(&flow);
    let definition_name = names::encode(&definition);
    let start = Start { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of };
    args.text(&json(&start)?).text(&definition_name).text(&listed.join(" "));
    Ok(())
}

/// A label as part of a key.
pub(crate) fn label(key: &str, value: &str) -> String {
    format!("{}={}", names::encode(key), names::encode(value))
}

fn lease_use(args: &mut Args, lease: &LeaseUse, kind: Kind) {
    let key = lease.key().number();
    let (sign, attempt, token, lines) = match *lease {
        LeaseUse::Finish { attempt, token, .. } => ("F", attempt, Some(token), 0),
        LeaseUse::Keep { attempt, token, lines, .. } => ("K", attempt, Some(token), lines),
        LeaseUse::Expired { attempt, token, lines, .. } => ("E", attempt, Some(token), lines),
        LeaseUse::Due { attempt, .. } => ("D", attempt, None, 0),
        LeaseUse::Unleased { attempt, .. } if kind == Kind::Mend => ("R", attempt, None, 0),
        LeaseUse::Unleased { attempt, .. } => ("U", attempt, None, 0),
    };
    // What the text of such a job begins with.
    let token = token.map_or_else(|| "-".to_owned(), shown);
    args.text(sign).number(key).text(&format!("{token} {attempt} ")).number(lines);
}

pub(crate) fn event(args: &mut Args, event: &NewEvent) {
    args.text(event.kind.as_str());
    match &event.of {
        Some(of) => args.text(&of.step).number(of.attempt),
        None => args.text("").text(""),
    };
    args.text(event.data.as_ref().map_or("", |data| data.get()));
    match event.slot {
        Some(slot) => args.number(slot.number()),
        None => args.text(""),
    };
}

fn new_job(args: &mut Args, job: &NewJob) {
    args.number(job.key.number()).number(job.attempt);
    args.number(due(job.due)).text(if job.held { "1" } else { "0" });
    args.number(job.priority as u8).name(&job.name).name(&job.lane.queue).name(&job.lane.need);
    match &job.handoff {
        Some(asked) => args.text(&shown(asked.token)).number(millis(asked.ttl)).name(&asked.worker),
        None => args.text("").text("").text(""),
    };
}

/// When a job is due, as a score.
pub(crate) fn due(due: Time) -> i64 {
    due.millis().clamp(-FARTHEST, FARTHEST)
}

/// Packs an append. Without a hint the store has one shard, so that a deletion needs no trace.
pub(crate) fn append(append: &Append, hint: u64) -> (Args, usize) {
    let mut args = Args::new();
    let commands = 4 + 3 * append.lines.len();
    args.number(8 + 10 * append.lines.len()).text(&names::run(&append.run)).number(append.key.number());
    args.number(append.attempt)
        .text(&shown(append.token))
        .number(append.from_line)
        .number(append.lines.len());
    args.number(hint);
    for line in &append.lines {
        event(&mut args, &line.event);
        match &line.state {
            Some(change) => {
                args.text(change.scope.as_str()).text(&change.key);
                args.text(change.value.as_ref().map_or("", |value| value.get()));
                match change.ttl {
                    Some(ttl) => args.number(millis(ttl)),
                    None => args.text(""),
                };
            }
            None => {
                args.text("").text("").text("").text("");
            }
        }
        args.text(if hint == 0 { "1" } else { "0" });
    }
    (args, commands)
}

/// Packs the mend of a row, after what every script gets.
pub(crate) fn mend(
    run: &str,
    version: u64,
    index: &Index,
    state: Vec<u8>,
    dates: [Option<Time>; 3],
    events: u64,
) -> Result<Args, StoreError> {
    let mut args = Args::new();
    args.text(run).number(version);
    row(&mut args, index, state)?;
    for date in dates {
        match date {
            Some(date) => args.number(date.millis()),
            None => args.text(""),
        };
    }
    args.number(events);
    Ok(args)
}

/// Reads what became of a commit.
pub(crate) fn committed(
    answer: &str,
    expected: Option<u64>,
    definition: &Arc<str>,
) -> Result<Result<Committed, CommitError>, StoreError> {
    let strange = || StoreError::Damaged(format!("{answer:?} is not an answer to a commit"));
    Ok(match answer.as_bytes().first() {
        Some(b'E') => Err(CommitError::Exists),
        Some(b'D') => Err(CommitError::UnknownDefinition(definition.clone())),
        Some(b'C') => {
            let found = Some(&answer[1..]).filter(|text| !text.is_empty()).map(number).transpose()?;
            Err(CommitError::Conflict { expected: expected.unwrap_or_default(), found })
        }
        Some(b'S') => Err(CommitError::StaleLease(JobKey::from_number(number(&answer[1..])?))),
        _ => {
            let mut parts = answer.splitn(4, ' ');
            let mut part = || parts.next().ok_or_else(strange);
            let (version, first_seq) = (number(part()?)?, number(part()?)?);
            let ts = Time::from_millis(number(part()?)?);
            let granted = part()?.split(',').filter(|key| !key.is_empty());
            let granted =
                granted.map(|key| number(key).map(JobKey::from_number)).collect::<Result<_, _>>()?;
            Ok(Committed { version, first_seq, ts, granted })
        }
    })
}

pub(crate) fn appended(answer: &str, key: JobKey) -> Result<Result<u32, AppendError>, StoreError> {
    match answer {
        "S" => Ok(Err(AppendError::StaleLease(key))),
        lines => number(lines).map(Ok),
    }
}

/// A job as its field in the run's hash has it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: Option<Token>,
    pub(crate) lines: u32,
    pub(crate) expires: Time,
    pub(crate) released: bool,
    pub(crate) worker: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) name: Arc<str>,
    pub(crate) lane: Lane,
    leased_at: Time,
    priority: Priority,
    due: Time,
    held: bool,
}

impl Job {
    pub(crate) fn read(text: &str) -> Result<Job, StoreError> {
        let damaged = || StoreError::Damaged(format!("{text:?} is not a job"));
        let parts: Vec<&str> = text.split(' ').collect();
        let &[
            token,
            attempt,
            lines,
            expires,
            released,
            leased,
            worker,
            _,
            priority,
            due,
            held,
            name,
            queue,
            need,
        ] = &parts[..]
        else {
            return Err(damaged());
        };
        let time = |text: &str| number(text).map(Time::from_millis);
        let name_of = |part: &str| names::decode(part).map(Arc::from);
        Ok(Job {
            token: match token {
                "-" => None,
                hex => Some(Token(u128::from_str_radix(hex, 16).map_err(|_| damaged())?)),
            },
            lines: number(lines)?,
            expires: time(expires)?,
            released: released == "1",
            worker: name_of(worker)?,
            attempt: number(attempt)?,
            name: name_of(name)?,
            lane: Lane { queue: name_of(queue)?, need: name_of(need)? },
            leased_at: time(leased)?,
            priority: *Priority::ALL.get(number::<usize>(priority)?).ok_or_else(damaged)?,
            due: time(due)?,
            held: held == "1",
        })
    }

    pub(crate) fn row(self, key: JobKey) -> JobRow {
        let leased = self.token.is_some();
        JobRow {
            key,
            name: self.name,
            attempt: self.attempt,
            queue: self.lane.queue,
            need: self.lane.need,
            priority: self.priority,
            due: self.due,
            state: match (leased, self.held) {
                (true, _) => JobState::Leased,
                (false, true) => JobState::Held,
                (false, false) => JobState::Waiting,
            },
            worker: leased.then_some(self.worker),
            leased_at: leased.then_some(self.leased_at),
            expires: leased.then_some(self.expires),
            lines: self.lines,
            released: leased && self.released,
        }
    }
}

pub(crate) fn shown(token: Token) -> String {
    format!("{:032x}", token.0)
}

pub(crate) fn millis(duration: Duration) -> u128 {
    duration.as_millis().min(LONGEST)
}

pub(crate) fn failure(text: &str) -> Result<Option<Failure>, StoreError> {
    if text.is_empty() {
        return Ok(None);
    }
    let damaged = |error| StoreError::Damaged(format!("the failure of a run cannot be read: {error}"));
    serde_json::from_str(text).map(Some).map_err(damaged)
}

/// Whose key-value state, as the end of its key.
pub(crate) fn owner(run: &str, scope: StateScope, flow: Option<&str>) -> Option<String> {
    let tenant = run.split('/').next().unwrap_or_default();
    Some(match scope {
        StateScope::Run => format!("run:{run}"),
        StateScope::Flow => format!("flow:{tenant}/{}", flow?),
        StateScope::Tenant => format!("tenant:{tenant}"),
    })
}

pub(crate) fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Invalid(format!("cannot be stored: {error}")))
}
