//! Commits, appends and jobs as the arguments of scripts, and answers back.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::{NewEvent, RunId, Status, Time};
use flowline_store::{
    Append, AppendError, CommitError, Failure, Handoff, Index, JobKey, LeaseUse, NewJob, NewRun, StateChange,
    StateEdit, StoreError, Token,
};
use serde::{Deserialize, Serialize};

use crate::answer::number;
use crate::args::ScriptArgs;
use crate::log;
use crate::names;

/// What is written once, at the start of a run: the end of its key `start:`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredStart {
    pub(crate) flow: Arc<str>,
    pub(crate) definition: Arc<str>,
    pub(crate) step_count: u32,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    pub(crate) input_digest: String,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) retry_of: Option<RunId>,
}

/// Longer than any lease or time that makes sense, and small enough that sums stay whole numbers in a script.
const LONGEST: u128 = 100 * 366 * 86_400_000;
/// The farthest date that a score tells apart from the next.
const FARTHEST: i64 = 1 << 52;

/// When the run began, where an event of a commit or an append could be the first to tell; none is when it is written.
pub(crate) fn began<'e>(events: impl IntoIterator<Item = &'e NewEvent>) -> Option<Time> {
    const UNKNOWN: Time = Time::from_millis(i64::MIN);
    let began = events.into_iter().find_map(|event| event.begins(UNKNOWN));
    began.filter(|began| *began != UNKNOWN)
}

/// A status as a row has it: with the state of a machine behind it.
pub(crate) fn status<'a>(
    args: &'a mut ScriptArgs,
    status: Status,
    state: Option<&str>,
) -> &'a mut ScriptArgs {
    args.part_bytes(status_text(status, state).as_bytes())
}

pub(crate) fn status_text(status: Status, state: Option<&str>) -> Cow<'static, str> {
    match state {
        Some(state) => format!("{}:{}", status.as_str(), names::encode(state)).into(),
        None => status.as_str().into(),
    }
}

/// The end of a run's row, from its second line on. `failure` is that of the index, or one that stays.
pub(crate) fn end_of_row(args: &mut ScriptArgs, index: &Index, failure: &str, state: &[u8]) {
    let Index { completed_steps, failed_steps, retries, .. } = index;
    args.part(format_args!("{completed_steps} {failed_steps} {retries} {failure}\n")).part_bytes(state).end();
}

/// A failure as a row has it.
pub(crate) fn failure_text(failure: Option<&Failure>) -> Result<String, StoreError> {
    failure.map_or(Ok(String::new()), json)
}

/// What is said at the start of a run (its labels, the rest), and the definition.
pub(crate) fn start(args: &mut ScriptArgs, run: &str, new: &NewRun) -> Result<(), StoreError> {
    let NewRun { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of, .. } =
        new.clone();
    args.part_bytes(b" ");
    let listed: Vec<String> = labels.iter().map(|(key, value)| label(key, value)).collect();
    match listed.is_empty() {
        true => args.part_bytes(b"-"),
        false => args.part_bytes(listed.join(",").as_bytes()),
    };
    let known = definition.clone();
    let start = StoredStart { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of };
    args.part_bytes(b" ").text(&json(&start)?);
    let tenant = run.split('/').next().unwrap_or_default();
    args.part(format_args!("{tenant}/")).name(&known);
    Ok(())
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
pub(crate) fn lease_use(args: &mut ScriptArgs, lease: &LeaseUse) {
    match *lease {
        LeaseUse::Finish { attempt, token, .. } | LeaseUse::Keep { attempt, token, .. } => {
            args.part(format_args!("{:032x} {attempt} ", token.0))
        }
        LeaseUse::Whole { attempt, token, .. } => args.part(format_args!("{:032x} {attempt} 0 ", token.0)),
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
pub(crate) fn new_job(args: &mut ScriptArgs, job: &NewJob) {
    match handoff(job) {
        Some(asked) => args.part(format_args!("{:032x} {} 0 ", asked.token.0, job.attempt)),
        None => args.part(format_args!("- {} 0 ", job.attempt)),
    };
    args.end();
    end_of_job(args, handoff(job).map(|asked| &*asked.worker), job);
}

/// The end of a job's text, from its worker on.
pub(crate) fn end_of_job(args: &mut ScriptArgs, worker: Option<&str>, job: &NewJob) {
    match worker {
        Some(worker) => args.part_name(worker),
        None => args.part_bytes(b"-"),
    };
    args.part(format_args!(" {} {} {} ", job.priority as u8, due(job), u8::from(job.held)));
    args.part_name(&job.name).part_bytes(b" ").part_name(&job.lane.queue).part_bytes(b" ");
    args.name(&job.lane.need);
}

/// Packs an append. Without a hint the store has one shard, so that a deletion needs no trace.
pub(crate) fn append(append: &Append, hint: u64) -> (ScriptArgs, usize) {
    let mut args = ScriptArgs::new();
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
            Some(StateChange { scope, edit: StateEdit { key, value, ttl } }) => {
                args.name(scope.as_str()).text(key);
                args.text(value.as_ref().map_or("", |value| value.get()));
                match ttl {
                    Some(ttl) => args.number(millis(*ttl)),
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
) -> Result<ScriptArgs, StoreError> {
    let mut args = ScriptArgs::new();
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
