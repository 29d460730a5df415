//! The rule for jobs: what a commit needs of the jobs of its run, what it does to them, and when lines of an attempt may
//! be appended. Pure functions, called by the stores in memory, on SQLite and on Postgres; each then writes the changes in
//! its own way. Redis has the rule once more, in Lua, and `flowline-check` a third time: the conformance suite, the
//! differential test and the simulator hold them against each other.
//!
//! **Guards** of a commit ([`check`]), in this order. The first that fails is the answer, and nothing is written:
//!
//! 1. The base. A start needs that its run isn't there (`Exists`) and that its definition is (`UnknownDefinition`); any
//!    other commit needs its run at the version that it was decided on (`Conflict`).
//! 2. The jobs that it names, in the order of `leases` (`StaleLease`). The attempt must always be the same. *Finish* and
//!    *Keep* need the lease with their token, expired or not: as long as nobody gave the attempt up, it counts. *Whole*
//!    needs the same, and no line of the attempt in the log: it brings all of them. *Expired*
//!    needs the lease with its token, run out by the store's clock, and with as many lines in the log as it was decided
//!    on. *Due* needs a job that waits and whose time has come; *Unleased* one that waits or is held.
//! 3. The keys that it adds, in the order of `add` (`StaleLease`). A run has one job per key, so each must be free once
//!    what goes has gone, and none may come twice.
//!
//! **Changes** ([`changes`]), in this order:
//!
//! 1. Named jobs are removed, with their leases. *Keep* alone leaves its job, with more lines.
//! 2. The others stay (`Leave`), go (`Drop`), are held (`Hold`) or let go (`Release`). Leased jobs are never held: their
//!    attempts run on.
//! 3. New jobs are added. One that asks for a hand-off is leased at once if it is a step, isn't held, is due, and its
//!    queue isn't paused. Otherwise it waits like any other.
//!
//! The **fence** of an append ([`fence`]) is that of *Keep*, plus the count of lines: those that are in the log already
//! are skipped, and a caller that believes more to be there than are holds a lease of another history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flowline_core::Time;
use flowline_core::definition::Priority;

use crate::commit::{Append, AppendError, AppendLine, Base, Commit, CommitError, LeaseUse, NewRun, Others};
use crate::job::{JobKey, JobRow, JobState, Lane, NewJob, Renewal, Token};

/// The jobs of a run.
pub type Jobs<L = Lane> = BTreeMap<JobKey, StoredJob<L>>;

/// A job that a store has. `L` is what it knows the lane by.
#[derive(Debug, Clone)]
pub struct StoredJob<L = Lane> {
    /// Jobs alike in lane, priority and due time are claimed in this order.
    pub number: u64,
    pub name: Arc<str>,
    pub attempt: u32,
    pub lane: L,
    pub priority: Priority,
    pub due: Time,
    pub held: bool,
    pub lease: Option<StoredLease>,
}

#[derive(Debug, Clone)]
pub struct StoredLease {
    pub token: Token,
    pub worker: Arc<str>,
    pub leased_at: Time,
    pub expires: Time,
    /// Lines of the attempt that are in the log.
    pub lines: u32,
    /// Given back, not lost.
    pub released: bool,
}

/// A step of what a commit or a repair does to the jobs of its run.
#[derive(Debug)]
pub enum JobChange<'c> {
    /// The job goes, and its lease.
    Remove(JobKey),
    /// The leased attempt has so many more lines in the log.
    AddLines(JobKey, u32),
    /// The waiting job is held.
    Hold(JobKey),
    /// The held job waits again.
    Release(JobKey),
    /// A new job, with the lease that it was handed off with, if any.
    Add(&'c NewJob, Option<StoredLease>),
}

/// Lines that an append may write.
#[derive(Debug)]
pub struct FencedLines<'a> {
    /// Those that aren't in the log yet.
    pub new: &'a [AppendLine],
    /// How many lines of the attempt are in the log with them.
    pub total: u32,
}

/// The guards of a commit. `run` is the version of its run and the jobs, if the run is there.
pub fn check<L>(
    commit: &Commit,
    now: Time,
    run: Option<(u64, &Jobs<L>)>,
    is_defined: impl FnOnce(&NewRun) -> bool,
) -> Result<(), CommitError> {
    let found = run.map(|(version, _)| version);
    match &commit.base {
        Base::New(_) if found.is_some() => return Err(CommitError::Exists),
        Base::New(new) if !is_defined(new) => {
            return Err(CommitError::UnknownDefinition(new.definition.clone()));
        }
        Base::New(_) => {}
        Base::Version(expected) => check_version(*expected, found)?,
    }
    let job = |key| run.and_then(|(_, jobs)| jobs.get(&key));
    let unfit = |lease: &&LeaseUse| !job(lease.key()).is_some_and(|job| fits(lease, job, now));
    if let Some(lease) = commit.leases.iter().find(unfit) {
        return Err(CommitError::StaleLease(lease.key()));
    }
    check_keys(&commit.add, |key| match commit.leases.iter().find(|lease| lease.key() == key) {
        Some(lease) => matches!(lease, LeaseUse::Keep { .. }),
        None => commit.others != Others::Drop && job(key).is_some(),
    })
}

/// The guard of everything that was decided on a version of a run: it is there, at that version.
pub fn check_version(expected: u64, found: Option<u64>) -> Result<(), CommitError> {
    match found == Some(expected) {
        true => Ok(()),
        false => Err(CommitError::Conflict { expected, found }),
    }
}

fn fits<L>(lease: &LeaseUse, job: &StoredJob<L>, now: Time) -> bool {
    match *lease {
        LeaseUse::Finish { attempt, token, .. } | LeaseUse::Keep { attempt, token, .. } => {
            job.leased_with(attempt, token).is_some()
        }
        LeaseUse::Whole { attempt, token, .. } => {
            job.leased_with(attempt, token).is_some_and(|lease| lease.lines == 0)
        }
        LeaseUse::Expired { attempt, token, lines, .. } => {
            job.leased_with(attempt, token).is_some_and(|lease| lease.expires <= now && lease.lines == lines)
        }
        LeaseUse::Due { attempt, .. } => {
            job.attempt == attempt && job.lease.is_none() && !job.held && job.due <= now
        }
        LeaseUse::Unleased { attempt, .. } => job.attempt == attempt && job.lease.is_none(),
    }
}

/// Every key that is added is free, and comes once. `stays`: whether a job with this key is there and isn't removed.
fn check_keys(add: &[NewJob], stays: impl Fn(JobKey) -> bool) -> Result<(), CommitError> {
    for (at, NewJob { key, .. }) in add.iter().enumerate() {
        if stays(*key) || add[..at].iter().any(|other| other.key == *key) {
            return Err(CommitError::StaleLease(*key));
        }
    }
    Ok(())
}

/// What a commit that [`check`] allows does to the jobs of its run.
pub fn changes<'c, L>(
    commit: &'c Commit,
    now: Time,
    jobs: &Jobs<L>,
    is_paused: impl Fn(&Lane) -> bool,
) -> Vec<JobChange<'c>> {
    let mut changes = Vec::with_capacity(commit.leases.len() + commit.add.len());
    changes.extend(commit.leases.iter().map(|lease| match *lease {
        LeaseUse::Keep { key, lines, .. } => JobChange::AddLines(key, lines),
        _ => JobChange::Remove(lease.key()),
    }));
    if commit.others != Others::Leave {
        let named: BTreeSet<JobKey> = commit.leases.iter().map(LeaseUse::key).collect();
        let others = jobs.iter().filter(|(key, _)| !named.contains(key));
        changes.extend(others.filter_map(|(key, job)| match commit.others {
            Others::Drop => Some(JobChange::Remove(*key)),
            Others::Hold if job.lease.is_none() && !job.held => Some(JobChange::Hold(*key)),
            Others::Release if job.held => Some(JobChange::Release(*key)),
            _ => None,
        }));
    }
    changes.extend(commit.add.iter().map(|job| {
        let is_step = matches!(job.key, JobKey::Step(_));
        let grantable = is_step && !job.held && job.due <= now && !is_paused(&job.lane);
        let handoff = job.handoff.as_ref().filter(|_| grantable);
        let lease = handoff.map(|asked| StoredLease::new(asked.token, &asked.worker, now, asked.ttl));
        JobChange::Add(job, lease)
    }));
    changes
}

/// The keys of jobs that were handed off.
pub fn granted(changes: &[JobChange<'_>]) -> Vec<JobKey> {
    let granted = changes.iter().filter_map(|change| match change {
        JobChange::Add(job, Some(_)) => Some(job.key),
        _ => None,
    });
    granted.collect()
}

/// What a repair of jobs does to them, whatever state they are in. Nobody waits for the answer to a hand-off here, so
/// jobs that it adds wait to be claimed.
pub fn repair<'c, L>(
    add: &'c [NewJob],
    remove: &[JobKey],
    jobs: &Jobs<L>,
) -> Result<Vec<JobChange<'c>>, CommitError> {
    check_keys(add, |key| jobs.contains_key(&key) && !remove.contains(&key))?;
    let removed = remove.iter().map(|key| JobChange::Remove(*key));
    Ok(removed.chain(add.iter().map(|job| JobChange::Add(job, None))).collect())
}

/// Which lines an append may write. `job` is the one that it names, if it is there.
pub fn fence<'a, L>(append: &'a Append, job: Option<&StoredJob<L>>) -> Result<FencedLines<'a>, AppendError> {
    let lease = job.and_then(|job| job.leased_with(append.attempt, append.token));
    let Some(there) = lease.map(|lease| lease.lines).filter(|there| append.from_line <= *there) else {
        return Err(AppendError::StaleLease(append.key));
    };
    let known = (there - append.from_line) as usize;
    let new = append.lines.get(known..).unwrap_or_default();
    Ok(FencedLines { new, total: there + new.len() as u32 })
}

impl<L> StoredJob<L> {
    pub fn new(number: u64, job: &NewJob, lane: L, lease: Option<StoredLease>) -> StoredJob<L> {
        let NewJob { attempt, priority, due, held, .. } = *job;
        StoredJob { number, name: job.name.clone(), attempt, lane, priority, due, held, lease }
    }

    /// A job of another store. Its lease is held with `token` now, which nobody knows.
    pub fn restored(number: u64, job: &JobRow, lane: L, token: Token) -> StoredJob<L> {
        let JobRow { attempt, priority, due, lines, released, .. } = *job;
        let lease = (job.state == JobState::Leased).then(|| StoredLease {
            token,
            worker: job.worker.clone().unwrap_or_else(|| "".into()),
            leased_at: job.leased_at.unwrap_or_default(),
            expires: job.expires.unwrap_or_default(),
            lines,
            released,
        });
        let held = job.state == JobState::Held;
        StoredJob { number, name: job.name.clone(), attempt, lane, priority, due, held, lease }
    }

    fn leased_with(&self, attempt: u32, token: Token) -> Option<&StoredLease> {
        self.lease.as_ref().filter(|lease| self.attempt == attempt && lease.token == token)
    }

    /// The lease that its holder may still extend or give back. One that ran out is still held: nobody else has the job.
    pub fn held_with(&mut self, token: Token) -> Option<&mut StoredLease> {
        self.lease.as_mut().filter(|lease| lease.token == token && !lease.released)
    }
}

impl StoredLease {
    pub fn new(token: Token, worker: &Arc<str>, now: Time, ttl: Duration) -> StoredLease {
        StoredLease {
            token,
            worker: worker.clone(),
            leased_at: now,
            expires: now + ttl,
            lines: 0,
            released: false,
        }
    }

    /// What its holder does with it.
    pub fn renew(&mut self, now: Time, renewal: Renewal) {
        match renewal {
            Renewal::Extend(ttl) => self.expires = now + ttl,
            Renewal::Release => {
                self.released = true;
                self.expires = self.expires.min(now);
            }
        }
    }
}
