//! A store under test, and the few sentences that most cases begin with.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::{Event, Json, RunKey, Time};

use super::given;
use crate::{
    Claim, Claimed, Clock, Commit, CommitError, Committed, EventQuery, JobRow, LeasedJob, NewDocument,
    RunRow, StateEdit, StateSpace, Store,
};

/// A fresh, empty store, and how its time passes.
#[derive(Clone)]
pub struct Fixture {
    pub store: Arc<dyn Store>,
    time: Passing,
    /// What must live as long as the store (a folder that is removed on drop).
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Clone)]
enum Passing {
    Manual(Clock),
    Real,
}

impl Fixture {
    /// A store whose time stands still until the clock is turned.
    pub fn manual(store: Arc<dyn Store>, clock: Clock) -> Fixture {
        Fixture { store, time: Passing::Manual(clock), keep: None }
    }

    /// A store with a clock of its own: time passes by waiting for it.
    pub fn waiting(store: Arc<dyn Store>) -> Fixture {
        Fixture { store, time: Passing::Real, keep: None }
    }

    /// Ties something to the life of the fixture.
    pub fn keeping(mut self, guard: impl Any + Send + Sync) -> Fixture {
        self.keep = Some(Arc::new((self.keep.take(), guard)));
        self
    }

    /// Lets at least `time` pass by the store's clock.
    pub async fn pass(&self, time: Duration) {
        match &self.time {
            Passing::Manual(clock) => clock.advance(time),
            Passing::Real => tokio::time::sleep(time + Duration::from_millis(1)).await,
        }
    }

    /// Turns the store's time back, where that can be done: a clock of a server's own stays as it is.
    pub fn turn_back(&self, time: Duration) {
        if let Passing::Manual(clock) = &self.time {
            clock.set(Time::from_millis(clock.now().millis() - time.as_millis() as i64));
        }
    }

    /// The clock that turns the store's time by hand, where there is one.
    pub fn clock(&self) -> Option<&Clock> {
        match &self.time {
            Passing::Manual(clock) => Some(clock),
            Passing::Real => None,
        }
    }

    pub async fn now(&self) -> Time {
        self.store.now().await.expect("the store tells the time")
    }

    /// Writes a document.
    pub async fn put(&self, collection: &str, id: &str, body: Json, ttl: Option<Duration>) {
        let new = NewDocument::new(collection, id, body, ttl);
        assert_eq!(self.store.put_document(new).await.expect("the document is stored"), None);
    }

    /// Writes a value, or without one deletes the key.
    pub async fn set(&self, space: &StateSpace, key: &str, value: Option<Json>) {
        let edit = StateEdit::new(key, value, None);
        self.store.change_state(space, edit).await.expect("the store changes state");
    }

    /// Stores the definition that [`given::start`] pins its runs to, for the run's tenant.
    pub async fn define(&self, run: &RunKey) {
        let definition = given::definition(&run.tenant, given::FLOW, given::HASH);
        self.store.put_definition(definition).await.expect("the definition is stored");
    }

    pub async fn try_commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        let mut answers = self.store.commit(vec![commit]).await.expect("the store answers");
        assert_eq!(answers.len(), 1, "one answer for one commit");
        answers.remove(0)
    }

    /// Commits what must land.
    pub async fn commit(&self, commit: Commit) -> Committed {
        self.try_commit(commit).await.expect("the commit lands")
    }

    /// Commits what must be refused, and checks that the run, its log and its jobs are as before.
    pub async fn refused(&self, commit: Commit) -> CommitError {
        let run = commit.run.clone();
        let before = self.whole(&run).await;
        let error = self.try_commit(commit).await.expect_err("the commit is refused");
        assert_eq!(self.whole(&run).await, before, "a refused commit leaves nothing behind");
        error
    }

    /// A run of [`given::start`] with these jobs.
    pub async fn started(&self, id: &str, jobs: Vec<crate::NewJob>) -> RunKey {
        let run = given::run(id);
        self.define(&run).await;
        self.commit(Commit { add: jobs, ..given::start(&run) }).await;
        run
    }

    /// A run with one leased job, `Step(0)`, held by token 1 for [`given::TTL`].
    pub async fn leased(&self, id: &str) -> (RunKey, LeasedJob) {
        self.leased_for(id, given::TTL).await
    }

    /// A run with one leased job, `Step(0)`, held by token 1.
    pub async fn leased_for(&self, id: &str, ttl: Duration) -> (RunKey, LeasedJob) {
        let run = self.started(id, vec![given::step(0)]).await;
        let mut claimed = self.claim(Claim { ttl, ..given::claim(&[1]) }).await;
        assert_eq!(claimed.jobs.len(), 1, "the one job is claimed");
        let job = claimed.jobs.remove(0);
        assert_eq!(job.run, run);
        (run, job)
    }

    pub async fn claim(&self, claim: Claim) -> Claimed {
        self.store.claim(claim).await.expect("the store answers a claim")
    }

    /// Claims with the standard claim, one token per number, and gives the names of the jobs.
    pub async fn claimed_names(&self, tokens: &[u128]) -> Vec<String> {
        self.claim(given::claim(tokens)).await.jobs.iter().map(|job| job.name.to_string()).collect()
    }

    pub async fn row(&self, run: &RunKey) -> RunRow {
        self.try_row(run).await.expect("the run exists")
    }

    pub async fn try_row(&self, run: &RunKey) -> Option<RunRow> {
        let mut found = self.store.load(std::slice::from_ref(run)).await.expect("the store loads");
        found.remove(0).map(|snapshot| snapshot.row)
    }

    /// A run's whole log, page by page.
    pub async fn log(&self, run: &RunKey) -> Vec<Event> {
        let mut log: Vec<Event> = Vec::new();
        loop {
            let after = log.last().map_or(0, |event| event.seq);
            let page = self.store.events(run, EventQuery { after, ..EventQuery::default() }).await;
            let page = page.expect("the store gives a page");
            log.extend(page.events);
            if !page.more {
                return log;
            }
        }
    }

    pub async fn jobs(&self, run: &RunKey) -> Vec<JobRow> {
        self.store.jobs(run).await.expect("the store lists jobs")
    }

    pub async fn append(&self, append: crate::Append) -> Result<u32, crate::AppendError> {
        let mut answers = self.store.append(vec![append]).await.expect("the store answers");
        assert_eq!(answers.len(), 1, "one answer for one append");
        answers.remove(0)
    }

    /// Gives up an expired lease of `Step(0)` as a recovering instance does: the next attempt takes its place.
    pub async fn give_up(&self, job: &LeasedJob) -> Committed {
        let run = &job.run;
        let version = self.row(run).await.version;
        let there =
            self.jobs(&job.run).await.iter().find(|row| row.key == job.key).map_or(0, |row| row.lines);
        let expired = given::expired(job, there);
        let again = crate::NewJob { attempt: 2, ..given::step(0) };
        self.commit(Commit { leases: vec![expired], add: vec![again], ..given::next(run, version) }).await
    }

    async fn whole(&self, run: &RunKey) -> (Option<RunRow>, Vec<Event>, Vec<JobRow>) {
        (self.try_row(run).await, self.log(run).await, self.jobs(run).await)
    }
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fixture")
    }
}
