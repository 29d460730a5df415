//! Random calls of the contract, made from a seed and from what the model knows: mostly sensible, often stale.

mod records;

use std::sync::Arc;
use std::time::Duration;

use flowline_core::definition::Priority;
use flowline_core::event::PayloadSlot;
use flowline_core::{EventType, Json, NewEvent, RunKey, Status, Tenant, Time};

use super::given;
use crate::memory::MemoryStore;
use crate::query::WantTotal;
use crate::row::{Pause, Repair, Retention};
use crate::{
    Append, AppendLine, Base, Catalog, Claim, Commit, DocumentQuery, EventQuery, Extend, Failure, Handoff,
    Index, JobKey, JobRow, JobState, LeaseUse, LockProof, LockRequest, NewDocument, NewJob, Others,
    ReceiptQuery, Renewal, RunQuery, RunRow, RunStore, StateChange, StateEdit, StateOwner, StateQuery,
    StateScope, StateSpace, StoredDefinition, Token,
};

/// One call, with all its arguments.
#[derive(Debug, Clone)]
pub(super) enum ContractCall {
    /// Lets time pass; negative: turns the clock back.
    Pass(i64),
    Define(StoredDefinition),
    SetLatest(Tenant, Option<String>),
    Commit(Vec<Commit>),
    Append(Vec<Append>),
    Claim(Claim),
    Renew(Vec<Extend>, Renewal),
    Sweep,
    Load(Vec<RunKey>),
    Payloads(RunKey, Vec<PayloadSlot>),
    Events(RunKey, EventQuery),
    /// All pages of this size.
    Runs(RunQuery),
    /// Reads on to the end in pages of this size.
    Feed(usize),
    Jobs(RunKey),
    States(StateSpace, StateQuery),
    Scopes(Tenant),
    ChangeState(StateSpace, StateEdit),
    Queues(Tenant),
    Pause(Tenant, &'static str, Pause),
    Retain(Retention),
    Delete(Vec<RunKey>),
    Reports(RunKey),
    Repair(Repair),
    Counters,
    Definitions(Tenant),
    Acquire(LockRequest),
    RenewLock(LockProof, Renewal),
    Locks(Tenant),
    Receipt(RunKey, String),
    /// All pages of this size.
    Receipts(ReceiptQuery),
    PutDocument(NewDocument),
    Document(&'static str, String),
    DeleteDocument(&'static str, String),
    /// All pages of this size.
    Documents(&'static str, DocumentQuery),
}

/// A lease that was given out at some time.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) run: RunKey,
    pub(super) key: JobKey,
    pub(super) attempt: u32,
    pub(super) token: Token,
}

/// A small generator of pseudo-random numbers (splitmix64): the same everywhere for a seed.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// Makes calls. Reads the model, never the store under test.
#[derive(Debug)]
pub(super) struct Maker {
    rng: Rng,
    model: MemoryStore,
    runs: Vec<RunKey>,
    /// Whether both stores read one clock that is turned by hand. If not, only "at once" and "in an hour" are used.
    exact: bool,
    last_token: u128,
    last_slot: u32,
}

const QUEUES: [&str; 2] = ["q0", "q1"];
/// A need belongs to one queue, so that a claim of one need and one tenant is a claim of one lane: the order between
/// lanes is a store's own.
const LANES: [(&str, &str); 3] = [("q0", "n0"), ("q1", "n1"), ("q0", "n2")];
const TENANTS: [&str; 2] = ["default", "other"];
/// Of key-value state. That of the run is there more than once: it is what a commit can clear.
const SCOPES: [&str; 6] = ["run", "run", "flow", "tenant", "order", "orders"];
pub(super) const LOCK: &str = given::STRANGE[0];
const COLLECTIONS: [&str; 2] = ["tokens", "audit:{x}"];
/// Of machines; a run may be a flow now and a machine then, which a store need not mind.
const STATES: [Option<&str>; 4] = [None, None, Some("review"), Some("paid.out")];
const WORKERS: [&str; 2] = ["w0", given::STRANGE[3]];
const HOUR: Duration = Duration::from_secs(3_600);

impl Maker {
    pub(super) fn new(seed: u64, model: MemoryStore, exact: bool) -> Maker {
        let runs = TENANTS.iter().flat_map(|tenant| {
            let tenant = given::tenant(tenant);
            (0..4).map(move |n| given::run_of(&tenant, &format!("r{n}")))
        });
        Maker { rng: Rng::new(seed), model, runs: runs.collect(), exact, last_token: 0, last_slot: 0 }
    }

    /// The calls that every sequence begins with: without definitions there are no runs.
    pub(super) fn opening() -> Vec<ContractCall> {
        let define = |tenant: &&str| {
            ContractCall::Define(given::definition(&given::tenant(tenant), given::FLOW, given::HASH))
        };
        TENANTS.iter().map(define).collect()
    }

    /// The calls that show everything there is.
    pub(super) fn closing(&self) -> Vec<ContractCall> {
        let mut ops = vec![
            ContractCall::Counters,
            ContractCall::Sweep,
            ContractCall::Feed(7),
            ContractCall::Load(self.runs.clone()),
        ];
        for tenant in TENANTS.map(given::tenant) {
            ops.push(ContractCall::Queues(tenant.clone()));
            ops.push(ContractCall::Runs(RunQuery::of(tenant.clone())));
            ops.push(ContractCall::Locks(tenant.clone()));
            ops.push(ContractCall::Receipts(ReceiptQuery::of(tenant.clone())));
            ops.push(ContractCall::Scopes(tenant.clone()));
            ops.push(ContractCall::Definitions(tenant));
        }
        ops.extend(
            COLLECTIONS.map(|collection| ContractCall::Documents(collection, DocumentQuery::default())),
        );
        for run in &self.runs {
            ops.push(ContractCall::Events(run.clone(), EventQuery::default()));
            ops.push(ContractCall::Jobs(run.clone()));
            ops.push(ContractCall::Reports(run.clone()));
            ops.extend(SCOPES[1..].iter().map(|scope| {
                let owner = StateScope::from(*scope).of(&run.run, &given::FLOW.into());
                ContractCall::States(StateSpace::new(&run.tenant, owner), StateQuery::first(1_000))
            }));
            let one = StateQuery::only(given::STRANGE[0]);
            ops.push(ContractCall::States(StateSpace::new(&run.tenant, StateOwner::Tenant), one));
            let slots = (0..=self.last_slot).map(PayloadSlot::Emit).collect();
            ops.push(ContractCall::Payloads(run.clone(), slots));
        }
        ops
    }

    pub(super) async fn next(&mut self, held: &[Held]) -> ContractCall {
        let run = self.run();
        match self.rng.below(119) {
            0..34 => self.commits(held).await,
            34..44 => self.appends(held).await,
            44..56 => ContractCall::Claim(self.claim()),
            56..60 => {
                let leases = self.leases(held);
                ContractCall::Renew(leases, Renewal::Extend(self.ttl()))
            }
            60..62 => ContractCall::Renew(self.leases(held), Renewal::Release),
            62..66 => ContractCall::Sweep,
            66..72 => self.pass(),
            72..74 => ContractCall::Pause(
                run.tenant,
                self.rng.pick(&QUEUES),
                self.rng.pick(&[Pause::Paused, Pause::Open, Pause::Open]),
            ),
            74..77 => ContractCall::Load(vec![run, self.run()]),
            77..79 => self.payloads(run),
            79..82 => self.events(run),
            82..86 => self.listing(run.tenant).await,
            86..89 => ContractCall::Feed(1 + self.rng.below(5)),
            89..91 => ContractCall::Jobs(run),
            91..93 => self.states(run).await,
            93..95 => ContractCall::Queues(run.tenant),
            95 => ContractCall::Counters,
            96 => self.define(run.tenant),
            97 if self.rng.percent(30) => ContractCall::Delete(vec![run]),
            97 if self.rng.percent(30) => ContractCall::Reports(run),
            97 => self.retain(),
            98..100 => self.repair(run).await,
            100..104 => self.lock(run.tenant),
            104..110 => self.document(),
            110..115 => self.receipts(run),
            _ => self.states(run).await,
        }
    }

    fn run(&mut self) -> RunKey {
        self.rng.pick(&self.runs)
    }

    async fn row(&self, run: &RunKey) -> Option<RunRow> {
        let found = self.model.load(std::slice::from_ref(run)).await.ok()?;
        found.into_iter().next()?.map(|snapshot| snapshot.row)
    }

    async fn jobs(&self, run: &RunKey) -> Vec<JobRow> {
        self.model.jobs(run).await.unwrap_or_default()
    }

    fn token(&mut self) -> Token {
        self.last_token += 1;
        // Tokens are shown by their upper bits.
        Token(self.last_token << 96 | self.last_token)
    }

    fn ttl(&mut self) -> Duration {
        match self.exact {
            true => {
                self.rng.pick(&[Duration::ZERO, Duration::from_millis(20), Duration::from_millis(100), HOUR])
            }
            false => self.rng.pick(&[Duration::ZERO, HOUR]),
        }
    }

    fn due(&mut self) -> Time {
        let now = self.model.clock().now().millis();
        match self.exact {
            true => Time::from_millis(now - 40 + self.rng.below(100) as i64),
            false => self.rng.pick(&[Time::from_millis(now - 3_600_000), Time::from_millis(now + 3_600_000)]),
        }
    }

    fn pass(&mut self) -> ContractCall {
        match self.rng.below(10) {
            0 => ContractCall::Pass(-(self.rng.below(60) as i64)),
            1 => ContractCall::Pass(2_000),
            _ => ContractCall::Pass(self.rng.below(80) as i64),
        }
    }

    fn data(&mut self) -> Option<Json> {
        let text = self.rng.pick(given::STRANGE);
        let n = self.rng.below(1_000);
        self.rng.percent(70).then(|| given::json(serde_json::json!({"text": text, "n": n})))
    }

    fn event(&mut self) -> NewEvent {
        let kind = self.rng.pick(&[
            EventType::StepStarted,
            EventType::Log,
            EventType::Emit,
            EventType::StepRetry,
            EventType::StepCompleted,
        ]);
        let step: Arc<str> = self.rng.pick(&["a", "b"]).into();
        let data = self.event_data(kind);
        let event = NewEvent::step(kind, &step, 1 + self.rng.below(2) as u32, data);
        match kind {
            EventType::Emit => {
                // An address is written once: what a second write would mean is not for a store to say.
                self.last_slot += 1;
                event.at(PayloadSlot::Emit(self.last_slot))
            }
            _ => event,
        }
    }

    async fn commits(&mut self, held: &[Held]) -> ContractCall {
        let mut runs = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let run = self.run();
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        let mut batch = Vec::new();
        for run in runs {
            batch.push(self.commit(run, held).await);
        }
        ContractCall::Commit(batch)
    }

    async fn commit(&mut self, run: RunKey, held: &[Held]) -> Commit {
        let row = self.row(&run).await;
        let jobs = self.jobs(&run).await;
        let base = self.base(row.as_ref());
        let mut events = Vec::new();
        for _ in 0..self.rng.below(4) {
            events.push(self.event());
        }
        let mut status = self.rng.pick(&[Status::Running, Status::Running, Status::Waiting, Status::Paused]);
        let mut others = self.others();
        if row.is_some() && self.rng.percent(12) {
            let (ended, kind) = self.rng.pick(&[
                (Status::Completed, EventType::FlowCompleted),
                (Status::Failed, EventType::FlowFailed),
                (Status::Cancelled, EventType::FlowCancelled),
            ]);
            events.push(NewEvent::run(kind, self.data()));
            (status, others) = (ended, self.rng.pick(&[Others::Drop, Others::Drop, Others::Leave]));
        }
        Commit {
            receipts: self.receipt_changes(&run).await,
            leases: self.uses(&run, &jobs, held),
            base,
            events,
            state: format!("state {}", self.rng.below(1_000)).into_bytes(),
            index: self.index(status),
            others,
            add: self.added(&jobs),
            clear_state: self.rng.percent(10),
            run,
        }
    }

    fn base(&mut self, row: Option<&RunRow>) -> Base {
        let mut new = given::new_run();
        new.labels = [("k".to_owned(), self.rng.pick(&given::STRANGE[..3]).to_owned())].into();
        new.flow = self.rng.pick(&[given::FLOW, "second"]).into();
        if self.rng.percent(5) {
            new.definition = "missing".into();
        }
        new.retain = self.own_retain();
        match row {
            None if self.rng.percent(90) => Base::New(new),
            None => Base::Version(1),
            Some(_) if self.rng.percent(5) => Base::New(new),
            // What a commit after the end would mean is not for a store to say.
            Some(row) if row.status.is_terminal() => Base::Version(row.version + 1),
            Some(row) if self.rng.percent(8) => Base::Version(row.version - 1),
            Some(row) if self.rng.percent(5) => Base::Version(row.version + 1),
            Some(row) => Base::Version(row.version),
        }
    }

    fn others(&mut self) -> Others {
        match self.rng.below(100) {
            0..10 => Others::Hold,
            10..25 => Others::Release,
            25..32 => Others::Drop,
            _ => Others::Leave,
        }
    }

    fn index(&mut self, status: Status) -> Index {
        let text = self.rng.pick(given::STRANGE).to_owned();
        Index {
            status,
            state: self.rng.pick(&STATES).map(Into::into),
            completed_steps: self.rng.below(4) as u32,
            failed_steps: self.rng.below(3) as u32,
            retries: self.rng.below(5) as u32,
            failure: self.rng.percent(10).then_some(Failure { error: text, step: None }),
        }
    }

    fn uses(&mut self, run: &RunKey, jobs: &[JobRow], held: &[Held]) -> Vec<LeaseUse> {
        let mut uses = Vec::new();
        for job in jobs {
            if !self.rng.percent(35) {
                continue;
            }
            let key = job.key;
            let attempt = if self.rng.percent(4) { job.attempt + 1 } else { job.attempt };
            // The last token given out for a job is the right one where the job is leased.
            let known = held.iter().rev().find(|held| held.run == *run && held.key == key);
            let token = match known {
                Some(known) if self.rng.percent(92) => known.token,
                _ => Token(7 << 96),
            };
            let lines = self.rng.below(3) as u32;
            let leased = job.state == JobState::Leased;
            uses.push(match self.rng.below(10) {
                0..3 if leased => LeaseUse::Finish { key, attempt, token },
                3 if leased => LeaseUse::Whole { key, attempt, token },
                4..6 if leased => LeaseUse::Keep { key, attempt, token, lines },
                6..9 if leased => LeaseUse::Expired { key, attempt, token, lines: job.lines },
                0..6 => LeaseUse::Unleased { key, attempt },
                6..9 => LeaseUse::Due { key, attempt },
                _ => LeaseUse::Finish { key, attempt, token },
            });
        }
        if self.rng.percent(3) && !jobs.iter().any(|job| job.key == JobKey::Step(9)) {
            uses.push(LeaseUse::Unleased { key: JobKey::Step(9), attempt: 1 });
        }
        uses
    }

    fn added(&mut self, jobs: &[JobRow]) -> Vec<NewJob> {
        let mut added: Vec<NewJob> = Vec::new();
        for _ in 0..self.rng.below(4) {
            let n = self.rng.below(5) as u32;
            let key = if self.rng.percent(80) { JobKey::Step(n) } else { JobKey::Timer(n % 2) };
            let taken = jobs.iter().any(|job| job.key == key) || added.iter().any(|job| job.key == key);
            if taken && self.rng.percent(85) {
                continue;
            }
            let (queue, need) = self.rng.pick(&LANES);
            let handoff = self.rng.percent(35).then(|| Handoff {
                token: self.token(),
                ttl: self.ttl(),
                worker: "handed".into(),
            });
            added.push(NewJob {
                key,
                name: format!("{key:?}").into(),
                attempt: 1 + self.rng.below(3) as u32,
                lane: given::lane(queue, need),
                priority: self.rng.pick(&Priority::ALL),
                due: self.due(),
                held: self.rng.percent(10),
                handoff,
            });
        }
        added
    }

    async fn appends(&mut self, held: &[Held]) -> ContractCall {
        let mut batch = Vec::new();
        for _ in 0..1 + self.rng.below(2) {
            let Some(lease) = self.some_lease(held) else { continue };
            let jobs = self.jobs(&lease.run).await;
            let lines = jobs.iter().find(|job| job.key == lease.key).map_or(0, |job| job.lines);
            let from_line = match self.rng.below(10) {
                0 => lines + 1,
                1 | 2 => lines.saturating_sub(1),
                3 => 0,
                _ => lines,
            };
            let mut lines = Vec::new();
            for _ in 0..self.rng.below(4) {
                let event = self.event();
                lines.push(AppendLine { event, state: self.state_change() });
            }
            let Held { run, key, attempt, token } = lease;
            batch.push(Append { run, key, attempt, token, from_line, lines });
        }
        ContractCall::Append(batch)
    }

    fn state_change(&mut self) -> Option<StateChange> {
        let ttl = self.ttl();
        let value = given::json(self.rng.below(100).into());
        let scope = self.scope();
        let edit = StateEdit {
            key: self.rng.pick(given::STRANGE).to_owned(),
            value: self.rng.percent(80).then_some(value),
            ttl: self.rng.percent(40).then_some(ttl),
        };
        self.rng.percent(50).then_some(StateChange { scope, edit })
    }

    /// Mostly one of the last leases given out, which is likely to be held still.
    fn some_lease(&mut self, held: &[Held]) -> Option<Held> {
        let recent = if self.rng.percent(80) { &held[held.len().saturating_sub(8)..] } else { held };
        if recent.is_empty() {
            return None;
        }
        let mut lease = self.rng.pick(recent);
        if self.rng.percent(5) {
            lease.token = Token(9 << 96);
        }
        Some(lease)
    }

    fn leases(&mut self, held: &[Held]) -> Vec<Extend> {
        let mut leases: Vec<Extend> = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let Some(Held { run, key, token, .. }) = self.some_lease(held) else { continue };
            let lease = Extend { run, key, token };
            if !leases.contains(&lease) {
                leases.push(lease);
            }
        }
        leases
    }

    fn claim(&mut self) -> Claim {
        let (queue, need) = self.rng.pick(&LANES);
        let count = 1 + self.rng.below(4);
        let tokens = (0..count).map(|_| self.token()).collect();
        let free = self.rng.percent(30).then(|| (Arc::from(queue), 1 + self.rng.below(2)));
        Claim {
            tenant: Some(given::tenant(self.rng.pick(&TENANTS))),
            needs: vec![need.into()],
            free: free.into_iter().collect(),
            free_elsewhere: 100,
            tokens,
            ttl: self.ttl(),
            worker: "claimer".into(),
        }
    }

    fn payloads(&mut self, run: RunKey) -> ContractCall {
        let slots =
            (0..3).map(|_| PayloadSlot::Emit(self.rng.below(self.last_slot as usize + 2) as u32)).collect();
        ContractCall::Payloads(run, slots)
    }

    fn events(&mut self, run: RunKey) -> ContractCall {
        let query = EventQuery {
            after: self.rng.below(6) as u64,
            kinds: if self.rng.percent(30) { vec![EventType::Log, EventType::FlowFailed] } else { vec![] },
            step: self.rng.percent(30).then(|| "a".to_owned()),
            attempt: self.rng.percent(20).then_some(2),
            limit: 1 + self.rng.below(6),
        };
        ContractCall::Events(run, query)
    }

    async fn listing(&mut self, tenant: Tenant) -> ContractCall {
        let run = self.run();
        let created = self.row(&run).await.map(|row| row.created_at).filter(|_| self.exact);
        let label = ("k".to_owned(), given::STRANGE[0].to_owned());
        ContractCall::Runs(RunQuery {
            flow: self.rng.percent(40).then(|| given::FLOW.to_owned()),
            status: if self.rng.percent(40) { Some(self.rng.pick(&Status::ALL)) } else { None },
            state: self.rng.pick(&STATES).map(str::to_owned),
            label: self.rng.percent(30).then_some(label),
            since: created.filter(|_| self.rng.percent(30)),
            until: created.filter(|_| self.rng.percent(20)),
            cursor: None,
            limit: 1 + self.rng.below(4),
            total: if self.rng.percent(80) { WantTotal::Yes } else { WantTotal::No },
            tenant,
        })
    }

    async fn states(&mut self, run: RunKey) -> ContractCall {
        let Some(row) = self.row(&run).await else { return ContractCall::Scopes(run.tenant) };
        let owner = self.scope().of(&run.run, &row.flow_name);
        if self.rng.percent(60) {
            return ContractCall::States(StateSpace::new(&run.tenant, owner), StateQuery::first(1_000));
        }
        let (ttl, key) = (self.ttl(), self.rng.pick(given::STRANGE));
        let value = given::json(self.rng.below(100).into());
        let value = self.rng.percent(80).then_some(value);
        let edit = StateEdit::new(key, value, self.rng.percent(40).then_some(ttl));
        ContractCall::ChangeState(StateSpace::new(&run.tenant, owner), edit)
    }

    fn scope(&mut self) -> StateScope {
        self.rng.pick(&SCOPES).into()
    }

    async fn repair(&mut self, run: RunKey) -> ContractCall {
        let Some(row) = self.row(&run).await.filter(|row| !row.status.is_terminal()) else {
            return ContractCall::Repair(Repair::Counters { tenant: run.tenant });
        };
        let version = if self.rng.percent(80) { row.version } else { row.version + 1 };
        let jobs = self.jobs(&run).await;
        let index = self.index(Status::Running);
        let state = b"mended".to_vec();
        ContractCall::Repair(match self.rng.below(3) {
            0 => {
                let remove = jobs.iter().map(|job| job.key).filter(|_| self.rng.percent(30)).collect();
                Repair::Jobs { run, version, add: self.added(&jobs), remove }
            }
            1 => Repair::Events { run, version, events: vec![self.event()], state, index },
            _ => Repair::Row {
                run,
                version,
                state,
                index,
                created_at: row.created_at,
                started_at: row.started_at,
                completed_at: row.completed_at,
                events: row.events,
                seen: row.events + u64::from(self.rng.percent(20)),
            },
        })
    }
}
