//! What is done to the store, in words.

use flowline_check::StoreSnapshot;
use flowline_core::definition::read_stored;
use flowline_core::{EventType, NewEvent};
use flowline_store::row::Retained;
use flowline_store::{
    Append, AppendError, Base, Commit, CommitError, Committed, Extend, Extended, JobKey, LeaseUse, LeasedJob,
    Memory, Others,
};

use crate::mishap::CallFate;

pub(crate) fn fate(fate: CallFate, what: &str) -> String {
    match fate {
        CallFate::Fine => format!("{what}: arrives"),
        CallFate::Lost => format!("FAULT {what}: the request is lost"),
        CallFate::AnswerLost => format!("FAULT {what}: carried out, but its reply is lost"),
        CallFate::Refused => format!("FAULT {what}: the store can't write"),
        CallFate::Doubled(later) => format!("FAULT {what}: arrives again after {later:?}"),
        CallFate::Repeated => format!("FAULT {what}: carried out twice; the second reply counts"),
    }
}

pub(crate) fn commit(store: &Memory, commit: &Commit, answer: &Result<Committed, CommitError>) -> String {
    let run = &commit.run.run;
    let steps = steps_of(store, commit);
    let on = match commit.base {
        Base::New(_) => "new".to_owned(),
        Base::Version(version) => format!("on version {version}"),
    };
    let committed = match answer {
        Ok(committed) => committed,
        Err(error) => return format!("commit of run {run} ({on}) refused: {error}"),
    };
    let uses: Vec<String> = commit.leases.iter().map(|lease| lease_use(lease, &steps)).collect();
    let events: Vec<String> = commit.events.iter().map(event).collect();
    let queued = commit.add.iter().map(|job| {
        let how = if committed.granted.contains(&job.key) { " (handed over)" } else { "" };
        format!("{} attempt {}{how}", job.name, job.attempt)
    });
    let queued: Vec<String> = queued.collect();
    let mut text = format!("commits run {run} ({on})");
    for (what, list) in [(" with ", &uses), (": ", &events), ("; queues ", &queued)] {
        if !list.is_empty() {
            text.push_str(what);
            text.push_str(&list.join(", "));
        }
    }
    match commit.others {
        Others::Leave => {}
        Others::Drop => text.push_str("; drops all other jobs"),
        Others::Hold => text.push_str("; holds all jobs"),
        Others::Release => text.push_str("; releases held jobs"),
    }
    format!("{text} [{}]", commit.index.status)
}

/// The names of a run's steps, in the order of its definition.
fn steps_of(store: &Memory, commit: &Commit) -> Vec<String> {
    let row = StoreSnapshot::row(store, &commit.run);
    let stored = row.and_then(|row| store.definition(&row.tenant, &row.definition));
    let read = stored.and_then(|stored| read_stored(&stored.flow, &stored.body).ok());
    read.map_or_else(Vec::new, |read| read.steps.into_iter().map(|step| step.name).collect())
}

fn lease_use(lease: &LeaseUse, steps: &[String]) -> String {
    let job = |key: JobKey, attempt: u32| match key {
        JobKey::Step(step) => {
            let name = steps.get(step as usize).map_or("?", String::as_str);
            format!("step {name} attempt {attempt}")
        }
        JobKey::Timer(number) => format!("timer {number}"),
    };
    match lease {
        LeaseUse::Finish { key, attempt, .. } => format!("the outcome of {}", job(*key, *attempt)),
        LeaseUse::Whole { key, attempt, .. } => format!("all that was said of {}", job(*key, *attempt)),
        LeaseUse::Keep { key, attempt, .. } => format!("a word from {}", job(*key, *attempt)),
        LeaseUse::Expired { key, attempt, .. } => format!("the lost lease of {}", job(*key, *attempt)),
        LeaseUse::Due { key, attempt } => format!("due {}", job(*key, *attempt)),
        LeaseUse::Unleased { key, attempt } => format!("unleased {}", job(*key, *attempt)),
    }
}

fn event(event: &NewEvent) -> String {
    let mut text = event.kind.to_string();
    if let Some(of) = &event.of {
        text.push_str(&format!(" {}/{}", of.step, of.attempt));
    }
    // What tells one event of its kind from another.
    let shown: &[&str] = match event.kind {
        EventType::Emit => &["name"],
        EventType::EventReceived => &["number", "name"],
        EventType::EventRejected => &["number", "code"],
        EventType::StateChanged => &["to", "number", "timer", "action"],
        EventType::TimerSet | EventType::TimerFired | EventType::TimerCancelled => &["timer", "reason"],
        _ => &[],
    };
    let data = event.data.as_ref().filter(|_| !shown.is_empty()).map(|data| data.value()).unwrap_or_default();
    for member in shown.iter().filter_map(|key| data.get(key)) {
        text.push_str(&format!(" {member}"));
    }
    text
}

pub(crate) fn append(append: &Append, answer: &Result<u32, AppendError>) -> String {
    let lines: Vec<String> = append.lines.iter().map(|line| event(&line.event)).collect();
    let (run, from) = (&append.run.run, append.from_line);
    match answer {
        Ok(there) => {
            format!("appends to run {run} from line {from}: {} ({there} lines now)", lines.join(", "))
        }
        Err(error) => format!("append to run {run} from line {from} refused: {error}"),
    }
}

pub(crate) fn claimed(leased: &LeasedJob) -> String {
    format!("claims {} attempt {} of run {}", leased.name, leased.attempt, leased.run.run)
}

pub(crate) fn extended(leases: &[Extend], answers: &[Extended]) -> String {
    let gone = answers.iter().filter(|answer| matches!(answer, Extended::Gone(_))).count();
    format!("heartbeat for {} leases, {gone} gone", leases.len())
}

pub(crate) fn retained(retained: Retained) -> String {
    format!("retention trims {} runs and removes {}", retained.trimmed, retained.removed)
}
