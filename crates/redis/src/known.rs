//! Commits of runs whose row this process knows, because it wrote or read it last.
//!
//! Taking a row apart and putting it together again is most of what a commit costs the server. Where the caller knows how the
//! row begins (its first line holds the version, the number of events, the jobs, everything that a commit depends on and
//! all that other writes change), it says that line, and the whole new row but for the date, which is the server's. A script
//! compares and writes. Anything unusual, and a line that is not there any more, is said in full instead (`encode`): what is
//! remembered here may be stale or forgotten at any time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flowline_core::Time;
use flowline_store::{Base, Commit, Committed, LeaseUse, Others, StoreError};

use crate::args::Args;
use crate::encode::{self, KNOWN, RECEIPTS, STARTED, TERMINAL, due, handoff, millis};
use crate::log;
use crate::receipt;

/// The most runs that are remembered: as many as an instance has in flight, and more. Past that all are forgotten.
const MOST: usize = 16_384;

/// The flag of a commit that leaves its run without a job.
const NO_JOBS: u8 = 8;

/// First lines of rows, by run.
#[derive(Debug, Default)]
pub(crate) struct Heads(Mutex<HashMap<String, String>>);

impl Heads {
    /// What is known of a run, and is not from now on: a commit changes it.
    pub(crate) fn take(&self, run: &str) -> Option<String> {
        self.lines().remove(run)
    }

    /// Remembers the first line of a row without a failure. That of a run that has ended is of no use.
    pub(crate) fn keep(&self, run: String, line: String) {
        if Head::read(&line).is_none() {
            return;
        }
        let mut lines = self.lines();
        if lines.len() >= MOST {
            lines.clear();
        }
        lines.insert(run, line);
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first line of the row of a run that has not ended.
#[derive(Debug)]
struct Head<'a> {
    version: u64,
    /// With the state of a machine behind it.
    status: &'a str,
    events: u64,
    last: i64,
    keys: Vec<i64>,
    started: &'a str,
    /// With how long the definition keeps the run behind it, where it says so.
    kept: &'a str,
    number: &'a str,
    flow: &'a str,
}

impl Head<'_> {
    fn read(line: &str) -> Option<Head<'_>> {
        let parts: Vec<&str> = line.split(' ').collect();
        let &[version, status, events, last, keys, started, "-", kept, number, flow] = &parts[..] else {
            return None;
        };
        if !kept.starts_with('0') {
            return None;
        }
        let keys = keys.split(',').filter(|key| !key.is_empty()).map(|key| key.parse().ok());
        Some(Head {
            version: version.parse().ok()?,
            status,
            events: events.parse().ok()?,
            last: last.parse().ok()?,
            keys: keys.collect::<Option<_>>()?,
            started,
            kept,
            number,
            flow,
        })
    }
}

/// What the caller knows of a commit that landed as it was asked for, but its date.
#[derive(Debug)]
pub(crate) struct Asked {
    committed: Committed,
    /// The first line of the row before the date of the last event and after it; a `*` there is that date, too.
    before: String,
    after: String,
}

impl Asked {
    /// What became of it, and how the row begins now.
    pub(crate) fn landed(self, now: Time) -> encode::Landed {
        let ts = now.millis().to_string();
        let head = format!("{}{ts}{}", self.before, self.after.replace('*', &ts));
        encode::Landed { committed: Committed { ts: now, ..self.committed }, head }
    }
}

/// Packs a commit to a row that begins with this line, where it is one of the usual.
///
/// The arguments: the shape, the run, the line, the new row up to its date, from there on (in two parts where there is another
/// date in it), where the status changes `TENANT FROM TO FLOW` and the run's number; then two for each
/// lease, the entry of the log, three for each job; where there are receipts their number, and five for each.
pub(crate) fn commit(
    commit: &Commit,
    run: &str,
    line: &str,
) -> Result<Option<(Args, usize, Asked)>, StoreError> {
    let Some(head) = Head::read(line) else { return Ok(None) };
    let Some(keys) = keys(commit, &head) else { return Ok(None) };
    let mut flags = encode::said(commit);
    let status = encode::status_text(commit.index.status, commit.index.state.as_deref());
    let ends = flags & TERMINAL != 0;
    let moved = status != head.status;
    // Moves between states are seldom the same, and have more lists.
    let of_machine = commit.index.state.is_some() || head.status.contains(':');
    let usual = matches!(commit.base, Base::Version(version) if version == head.version)
        && commit.index.failure.is_none()
        && !(of_machine && moved)
        && commit.receipts.iter().all(|change| change.opened.is_some())
        && ends == commit.index.status.is_terminal()
        && log::entries(&commit.events).count() == 1;
    if !usual {
        return Ok(None);
    }
    // Only a date that the server is to say is left to it.
    let began = encode::began(&commit.events).map(|began| began.millis().to_string());
    let tells = flags & STARTED != 0 && head.started == "-";
    // A run that ends without having begun is dated by its creation, which the line does not say; one that is kept for a
    // time of its own has a list of its own.
    if ends && (!tells && head.started == "-" || head.kept != "0") {
        return Ok(None);
    }
    if !tells || began.is_some() {
        flags &= !STARTED;
    }
    if keys == "," && !head.keys.is_empty() {
        flags |= NO_JOBS;
    }
    let starts = flags & STARTED != 0;
    let events = head.events + commit.events.len() as u64;
    let before = format!("{} {status} {events} ", head.version + 1);
    let started = match &began {
        Some(began) if tells => began,
        _ if starts => "*",
        _ => head.started,
    };
    let ended = if ends { "*" } else { "-" };
    let after = format!(" {keys} {started} {ended} {} {} {}", head.kept, head.number, head.flow);

    let mut args = Args::new();
    let not_before = commit.add.iter().map(due).fold(head.last, i64::max) as f64;
    let ttl = commit.add.first().and_then(handoff).map_or(0, |asked| millis(asked.ttl)) as f64;
    let fixed = 5 + u8::from(starts || ends) + if moved { 2 } else { 0 };
    let counts = [commit.leases.len(), 1, commit.add.len()];
    flags |= KNOWN | if commit.receipts.is_empty() { 0 } else { RECEIPTS };
    encode::counts(&mut args, counts, 0, flags, fixed, [not_before, ttl]);
    args.part_bytes(&((head.events + 1) as f64).to_le_bytes());
    args.part_bytes(&(commit.events.len() as u32).to_le_bytes()).end();
    args.text(run).part_bytes(line.as_bytes()).bytes(b"\n").text(&before);
    // The script puts the date wherever a part ends; both dates next to each other are one place.
    let mut parts = after.split('*').filter(|part| *part != " ");
    let first = parts.next().unwrap_or_default();
    args.part_bytes(first.as_bytes());
    if let Some(second) = parts.next() {
        args.end().part_bytes(second.as_bytes());
    }
    args.part_bytes(b"\n");
    encode::end_of_row(&mut args, &commit.index, &commit.state)?;
    args.end();
    if moved {
        let tenant = run.split('/').next().unwrap_or_default();
        args.part(format_args!("{tenant} {} {status} {}", head.status, head.flow)).end().text(head.number);
    }
    for lease in &commit.leases {
        args.part(format_args!("{}:{run}", lease.key().number())).end();
        encode::lease_use(&mut args, lease);
    }
    commit.events.iter().for_each(|event| log::event(&mut args, event));
    args.end();
    for job in &commit.add {
        args.part(format_args!("{}:{run}", job.key.number())).end();
        encode::new_job(&mut args, job);
    }
    if !commit.receipts.is_empty() {
        args.number(commit.receipts.len());
        commit.receipts.iter().for_each(|change| receipt::open(&mut args, &commit.run, head.flow, change));
    }
    let granted = commit.add.iter().map(|job| job.key).collect();
    let committed =
        Committed { version: head.version + 1, first_seq: head.events + 1, ts: Time::default(), granted };
    Ok(Some((args, encode::commands(commit), Asked { committed, before, after })))
}

/// The keys of the run's jobs after a commit that only ends leases and hands new jobs on, as a row has them.
fn keys(commit: &Commit, head: &Head<'_>) -> Option<String> {
    let mut keys = head.keys.clone();
    for lease in &commit.leases {
        let LeaseUse::Finish { key, .. } = lease else { return None };
        let at = keys.iter().position(|known| *known == key.number())?;
        keys.remove(at);
    }
    if commit.others != Others::Leave && !keys.is_empty() {
        return None;
    }
    let ttl = commit.add.first().and_then(handoff).map(|asked| asked.ttl);
    for job in &commit.add {
        if keys.contains(&job.key.number()) || handoff(job).map(|asked| asked.ttl) != ttl || ttl.is_none() {
            return None;
        }
        keys.push(job.key.number());
    }
    let shown: String = keys.iter().map(|key| format!("{key},")).collect();
    Some(format!(",{shown}"))
}
