//! Commits, appends and jobs as the arguments of scripts, and answers back.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::{NewEvent, RunId, Status, Time};
use flowline_store::{
    Append, AppendError, Base, Commit, CommitError, Committed, Failure, Handoff, Index, JobKey, LeaseUse,
    NewJob, NewRun, Others, StoreError, Token,
};
use serde::{Deserialize, Serialize};

use crate::answer::number;
use crate::args::Args;
use crate::log;
use crate::names;
use crate::receipt;

/// What is written once, at the start of a run: the end of its key `start:`.
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

// The flags of a commit, as the script has them.
pub(crate) const TERMINAL: u8 = 1;
pub(crate) const STARTED: u8 = 2;
const CLEAR: u8 = 4;
const MEND: u8 = 8;
const FAILURE: u8 = 16;
pub(crate) const RECEIPTS: u8 = 32;
/// A commit that says how the row is that it replaces, see `known.rs`.
pub(crate) const KNOWN: u8 = 64;

/// Longer than any lease or time that makes sense, and small enough that sums stay whole numbers in a script.
const LONGEST: u128 = 100 * 366 * 86_400_000;
/// The farthest date that a score tells apart from the next.
const FARTHEST: i64 = 1 << 52;

/// What the caller of a commit knows, to read its answer with.
#[derive(Debug)]
pub(crate) struct Asked {
    expected: Option<u64>,
    definition: Arc<str>,
}

/// Packs a commit in full; gives the number of commands that it makes the server run, too.
///
/// The arguments: the shape (counts, flags, and what there is of numbers, for `struct.unpack`), the run, the version or
/// nothing, the status, the end of the row; of a new run what is said at its start, the definition, `TENANT - STATUS FLOW` and, where
/// its definition says so, how long it is kept; then two for each lease, one for each entry of the log, three for each job; where there are receipts their number, and six for each.
pub(crate) fn commit(
    commit: &Commit,
    run: &str,
    kind: Kind,
    hint: u64,
) -> Result<(Args, usize, Asked), StoreError> {
    let mut args = Args::new();
    shape(&mut args, commit, kind, hint);
    args.text(run);
    let expected = match &commit.base {
        Base::New(_) => None,
        Base::Version(version) => Some(*version),
    };
    match expected {
        Some(version) => args.number(version),
        None => args.text(""),
    };
    status(&mut args, commit.index.status, commit.index.state.as_deref()).end();
    end_of_row(&mut args, &commit.index, &commit.state)?;
    args.end();
    let definition = match &commit.base {
        Base::New(new) => {
            let known = start(&mut args, run, new)?;
            let tenant = run.split('/').next().unwrap_or_default();
            args.part(format_args!("{tenant} - "));
            status(&mut args, commit.index.status, commit.index.state.as_deref());
            args.part_bytes(b" ").name(&new.flow);
            if let Some(retain) = new.retain {
                args.text(&retain.code());
            }
            known
        }
        Base::Version(_) => "".into(),
    };
    for lease in &commit.leases {
        args.number(lease.key().number());
        lease_use(&mut args, lease);
    }
    for entry in log::entries(&commit.events) {
        entry.iter().for_each(|event| log::event(&mut args, event));
        args.end();
    }
    for job in &commit.add {
        args.number(job.key.number());
        new_job(&mut args, job);
    }
    if !commit.receipts.is_empty() {
        args.number(commit.receipts.len());
        commit.receipts.iter().for_each(|change| receipt::change(&mut args, change));
    }
    Ok((args, commands(commit), Asked { expected, definition }))
}

/// The number of commands that a commit makes the server run, and some more.
pub(crate) fn commands(commit: &Commit) -> usize {
    6 + commit.events.len() + 2 * (commit.leases.len() + commit.add.len()) + 3 * commit.receipts.len()
}

/// When the run began, where an event of a commit or an append could be the first to tell; none is when it is written.
pub(crate) fn began<'e>(events: impl IntoIterator<Item = &'e NewEvent>) -> Option<Time> {
    const UNKNOWN: Time = Time::from_millis(i64::MIN);
    let began = events.into_iter().find_map(|event| event.begins(UNKNOWN));
    began.filter(|began| *began != UNKNOWN)
}

/// What the events of a commit say: whether the run ends, and whether it has begun.
pub(crate) fn said(commit: &Commit) -> u8 {
    let mut flags = if commit.clear_state { CLEAR } else { 0 };
    for event in &commit.events {
        flags |= if event.kind.is_terminal() { TERMINAL } else { 0 };
        flags |= if event.begins(Time::default()).is_some() { STARTED } else { 0 };
    }
    flags
}

/// The beginning of a shape, as `SHAPE` of the script has it. `fixed` is the number of arguments before those of leases.
pub(crate) fn counts(
    args: &mut Args,
    counts: [usize; 3],
    others: u8,
    flags: u8,
    fixed: u8,
    numbers: [f64; 2],
) {
    for count in counts {
        args.part_bytes(&(count as u32).to_le_bytes());
    }
    args.part_bytes(&[others, flags, fixed]);
    for number in numbers {
        args.part_bytes(&number.to_le_bytes());
    }
}

fn shape(args: &mut Args, commit: &Commit, kind: Kind, hint: u64) {
    let flags = said(commit)
        | if kind == Kind::Mend { MEND } else { 0 }
        | if commit.index.failure.is_some() { FAILURE } else { 0 }
        | if commit.receipts.is_empty() { 0 } else { RECEIPTS };
    let others = match commit.others {
        Others::Leave => 0,
        Others::Drop => 1,
        Others::Hold => 2,
        Others::Release => 3,
    };
    let fixed = match &commit.base {
        Base::New(new) => 8 + u8::from(new.retain.is_some()),
        Base::Version(_) => 5,
    };
    let entries = log::entries(&commit.events).count();
    let began = began(&commit.events).map_or(0, Time::millis);
    let numbers = [hint as f64, began as f64];
    counts(args, [commit.leases.len(), entries, commit.add.len()], others, flags, fixed, numbers);
    for lease in &commit.leases {
        let (sign, lines) = match *lease {
            LeaseUse::Finish { .. } => (b'F', 0),
            LeaseUse::Keep { lines, .. } => (b'K', lines),
            LeaseUse::Expired { .. } => (b'E', 0),
            LeaseUse::Due { .. } => (b'D', 0),
            LeaseUse::Unleased { .. } if kind == Kind::Mend => (b'R', 0),
            LeaseUse::Unleased { .. } => (b'U', 0),
        };
        args.part_bytes(&[sign]).part_bytes(&lines.to_le_bytes());
    }
    for job in &commit.add {
        let ttl = handoff(job).map_or(-1.0, |asked| millis(asked.ttl) as f64);
        args.part_bytes(&(due(job) as f64).to_le_bytes()).part_bytes(&ttl.to_le_bytes());
    }
    for entry in log::entries(&commit.events) {
        args.part_bytes(&(entry.len() as u32).to_le_bytes());
    }
    args.end();
}

/// A status as a row has it: with the state of a machine behind it.
pub(crate) fn status<'a>(args: &'a mut Args, status: Status, state: Option<&str>) -> &'a mut Args {
    args.part_bytes(status_text(status, state).as_bytes())
}

pub(crate) fn status_text(status: Status, state: Option<&str>) -> Cow<'static, str> {
    match state {
        Some(state) => format!("{}:{}", status.as_str(), names::encode(state)).into(),
        None => status.as_str().into(),
    }
}

/// The end of a run's row, from its second line on.
pub(crate) fn end_of_row(args: &mut Args, index: &Index, state: &[u8]) -> Result<(), StoreError> {
    let Index { completed_steps, failed_steps, retries, failure, .. } = index;
    args.part(format_args!("{completed_steps} {failed_steps} {retries} "));
    if let Some(failure) = failure {
        args.part_bytes(json(failure)?.as_bytes());
    }
    args.part_bytes(b"\n").part_bytes(state);
    Ok(())
}

/// What is said at the start of a run (its labels, the rest), and the definition, which is given back.
pub(crate) fn start(args: &mut Args, run: &str, new: &NewRun) -> Result<Arc<str>, StoreError> {
    let NewRun { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of, .. } =
        new.clone();
    args.part_bytes(b" ");
    let listed: Vec<String> = labels.iter().map(|(key, value)| label(key, value)).collect();
    match listed.is_empty() {
        true => args.part_bytes(b"-"),
        false => args.part_bytes(listed.join(",").as_bytes()),
    };
    let known = definition.clone();
    let start = Start { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of };
    args.part_bytes(b" ").text(&json(&start)?);
    let tenant = run.split('/').next().unwrap_or_default();
    args.part(format_args!("{tenant}/")).name(&known);
    Ok(known)
}

/// The hand-off that a job asks for, where one can be granted at all.
pub(crate) fn handoff(job: &NewJob) -> Option<&Handoff> {
    job.handoff.as_ref().filter(|_| !job.held && matches!(job.key, JobKey::Step(_)))
}

pub(crate) fn due(job: &NewJob) -> i64 {
    job.due.millis().clamp(-FARTHEST, FARTHEST)
}

/// A label as part of a key.
pub(crate) fn label(key: &str, value: &str) -> String {
    format!("{}={}", names::encode(key), names::encode(value))
}

/// What the text of a job that a commit uses must begin with.
pub(crate) fn lease_use(args: &mut Args, lease: &LeaseUse) {
    match *lease {
        LeaseUse::Finish { attempt, token, .. } | LeaseUse::Keep { attempt, token, .. } => {
            args.part(format_args!("{:032x} {attempt} ", token.0))
        }
        LeaseUse::Expired { attempt, token, lines, .. } => {
            args.part(format_args!("{:032x} {attempt} {lines} ", token.0))
        }
        LeaseUse::Due { attempt, .. } | LeaseUse::Unleased { attempt, .. } => {
            args.part(format_args!("- {attempt} "))
        }
    };
    args.end();
}

/// A job to be added: the beginning of its text, and the end; a script puts in between what the server knows.
pub(crate) fn new_job(args: &mut Args, job: &NewJob) {
    match handoff(job) {
        Some(asked) => args.part(format_args!("{:032x} {} 0 ", asked.token.0, job.attempt)),
        None => args.part(format_args!("- {} 0 ", job.attempt)),
    };
    args.end();
    end_of_job(args, handoff(job).map(|asked| &*asked.worker), job);
}

/// The end of a job's text, from its worker on.
pub(crate) fn end_of_job(args: &mut Args, worker: Option<&str>, job: &NewJob) {
    match worker {
        Some(worker) => args.part_name(worker),
        None => args.part_bytes(b"-"),
    };
    args.part(format_args!(" {} {} {} ", job.priority as u8, due(job), u8::from(job.held)));
    args.part_name(&job.name).part_bytes(b" ").part_name(&job.lane.queue).part_bytes(b" ");
    args.name(&job.lane.need);
}

/// Packs an append. Without a hint the store has one shard, so that a deletion needs no trace.
pub(crate) fn append(append: &Append, hint: u64) -> (Args, usize) {
    let mut args = Args::new();
    let commands = 4 + 4 * append.lines.len();
    args.number(9 + 6 * append.lines.len()).text(&names::run(&append.run)).number(append.key.number());
    args.number(append.attempt)
        .text(&shown(append.token))
        .number(append.from_line)
        .number(append.lines.len());
    args.number(hint);
    match began(append.lines.iter().map(|line| &line.event)) {
        Some(began) => args.number(began.millis()),
        None => args.text(""),
    };
    for line in &append.lines {
        log::event(&mut args, &line.event);
        args.end();
        match &line.state {
            Some(change) => {
                args.name(change.scope.as_str()).text(&change.key);
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
    [events, seen]: [u64; 2],
) -> Result<Args, StoreError> {
    let mut args = Args::new();
    args.text(run).number(version);
    status(&mut args, index.status, index.state.as_deref()).end();
    args.part(format_args!("{} {} {}", index.completed_steps, index.failed_steps, index.retries)).end();
    match &index.failure {
        Some(failure) => args.text(&json(failure)?),
        None => args.text(""),
    };
    args.bytes(&state);
    for date in dates {
        match date {
            Some(date) => args.number(date.millis()),
            None => args.text("-"),
        };
    }
    args.number(events).number(seen);
    Ok(args)
}

/// What became of a commit that landed, and how the row of its run begins now.
#[derive(Debug)]
pub(crate) struct Landed {
    pub(crate) committed: Committed,
    pub(crate) head: String,
}

/// Reads what became of a commit that was said in full: `EVENTS DATE GRANTS HEAD`, the number of events before it and the keys
/// of jobs that were handed on.
pub(crate) fn committed(answer: &str, asked: Asked) -> Result<Result<Landed, CommitError>, StoreError> {
    let Asked { expected, definition } = asked;
    Ok(match answer.as_bytes().first() {
        Some(b'E') => Err(CommitError::Exists),
        Some(b'D') => Err(CommitError::UnknownDefinition(definition)),
        Some(b'C') => Err(conflict(answer, expected.unwrap_or_default())?),
        Some(b'S') => Err(CommitError::StaleLease(JobKey::from_number(number(&answer[1..])?))),
        _ => {
            let mut parts = answer.splitn(4, ' ');
            let mut part = || parts.next().unwrap_or_default();
            let (events, ts, keys) = (number::<u64>(part())?, number(part())?, part());
            let keys = keys.split(',').filter(|key| *key != "-");
            let granted = keys.map(|key| number(key).map(JobKey::from_number)).collect::<Result<_, _>>()?;
            let (version, first_seq, ts) = (expected.unwrap_or(0) + 1, events + 1, Time::from_millis(ts));
            let committed = Committed { version, first_seq, ts, granted };
            Ok(Landed { committed, head: part().to_owned() })
        }
    })
}

/// Reads a refusal that names the version that is there.
pub(crate) fn conflict(answer: &str, expected: u64) -> Result<CommitError, StoreError> {
    let found = answer.get(1..).filter(|text| !text.is_empty()).map(number).transpose()?;
    Ok(CommitError::Conflict { expected, found })
}

pub(crate) fn appended(answer: &str, key: JobKey) -> Result<Result<u32, AppendError>, StoreError> {
    match answer {
        "S" => Ok(Err(AppendError::StaleLease(key))),
        lines => number(lines).map(Ok),
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
    let damaged = |error| StoreError::Damaged(format!("can't read the failure of a run: {error}"));
    serde_json::from_str(text).map(Some).map_err(damaged)
}

fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Invalid(format!("cannot be stored: {error}")))
}
