//! What is done to the store, in words.

use flowline_core::{EventType, NewEvent};
use flowline_store::row::Retained;
use flowline_store::{
    Append, AppendError, Base, Commit, CommitError, Committed, Extend, Extended, JobKey, LeaseUse, LeasedJob,
    Others,
};

use crate::mishap::Fate;

pub(crate) fn fate(fate: Fate, what: &str) -> String {
    match fate {
        Fate::Fine => format!("{what}: arrives"),
        Fate::Lost => format!("FAULT {what}: the request is lost"),
        Fate::AnswerLost => format!("FAULT {what}: is carried out, and its answer is lost"),
        Fate::Refused => format!("FAULT {what}: the store cannot write"),
        Fate::Doubled(later) => format!("FAULT {what}: arrives again after {later:?}"),
        Fate::Repeated => format!("FAULT {what}: is carried out twice; the second answer counts"),
    }
}

pub(crate) fn commit(commit: &Commit, answer: &Result<Committed, CommitError>) -> String {
    let run = &commit.run.run;
    let on = match commit.base {
        Base::New(_) => "new".to_owned(),
        Base::Version(version) => format!("on version {version}"),
    };
    let committed = match answer {
        Ok(committed) => committed,
        Err(error) => return format!("commit of run {run} ({on}) refused: {error}"),
    };
    let uses: Vec<String> = commit.leases.iter().map(lease_use).collect();
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

fn lease_use(lease: &LeaseUse) -> String {
    match lease {
        LeaseUse::Finish { key, attempt, .. } => format!("outcome of {}", job(*key, *attempt)),
        LeaseUse::Keep { key, attempt, .. } => format!("a word from {}", job(*key, *attempt)),
        LeaseUse::Expired { key, attempt, .. } => format!("the lost lease of {}", job(*key, *attempt)),
        LeaseUse::Due { key, attempt } => format!("due {}", job(*key, *attempt)),
        LeaseUse::Unleased { key, attempt } => format!("unleased {}", job(*key, *attempt)),
    }
}

fn job(key: JobKey, attempt: u32) -> String {
    match key {
        JobKey::Step(step) => format!("step {step} attempt {attempt}"),
        JobKey::Timer(number) => format!("timer {number}"),
    }
}

fn event(event: &NewEvent) -> String {
    let mut text = event.kind.to_string();
    if let Some(of) = &event.of {
        text.push_str(&format!(" {}/{}", of.step, of.attempt));
    }
    if event.kind == EventType::Emit
        && let Some(name) = event.data.as_ref().and_then(|data| data.value()["name"].as_str().map(str::to_owned))
    {
        text.push_str(&format!(" {name:?}"));
    }
    text
}

pub(crate) fn append(append: &Append, answer: &Result<u32, AppendError>) -> String {
    let lines: Vec<String> = append.lines.iter().map(|line| event(&line.event)).collect();
    let (run, from) = (&append.run.run, append.from_line);
    let of = job(append.key, append.attempt);
    match answer {
        Ok(there) => format!("appends to run {run}, {of}, from line {from}: {} ({there} lines now)", lines.join(", ")),
        Err(error) => format!("append to run {run}, {of}, refused: {error}"),
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
