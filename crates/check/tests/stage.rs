//! A store that is watched at every call, and a run of two steps on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_check::{Checker, Invariant, Violation, Watch};
use flowline_core::definition::{Format, Priority, read};
use flowline_core::event::{EventType, NewEvent};
use flowline_core::{Json, RunId, RunKey, Status, Tenant, Time};
use flowline_store::{
    Base, Claim, Commit, Index, JobKey, Lane, LeaseUse, Memory, NewJob, NewRun, Others, StoredDefinition,
    Token,
};
use serde_json::{Value, json};

pub const FLOW: &str = "flow: pair\nsteps:\n  a: { function: a, returns: a.done }\n  \
    b: { function: b, subscribes: [a.done] }\n";
pub const TTL: Duration = Duration::from_secs(30);

/// A store, the watch beside it, and the time.
pub struct Stage {
    pub memory: Memory,
    pub watch: Watch,
    pub now: Time,
    pub hash: Arc<str>,
}

pub fn lane() -> Lane {
    Lane { queue: "default".into(), need: "function".into() }
}

pub fn run(id: &str) -> RunKey {
    RunKey::new(Tenant::default(), RunId::new(id).unwrap())
}

pub fn event(kind: EventType, data: Value) -> NewEvent {
    NewEvent::run(kind, Some(Json::from(data)))
}

pub fn of(kind: EventType, step: &str, attempt: u32, data: Value) -> NewEvent {
    NewEvent::step(kind, &step.into(), attempt, Some(Json::from(data)))
}

pub fn job(step: u32, attempt: u32, due: Time) -> NewJob {
    NewJob {
        key: JobKey::Step(step),
        name: ["a", "b"][step as usize].into(),
        attempt,
        lane: lane(),
        priority: Priority::Normal,
        due,
        held: false,
        handoff: None,
    }
}

pub fn index(status: Status, completed: u32) -> Index {
    Index { status, state: None, completed_steps: completed, failed_steps: 0, retries: 0, failure: None }
}

impl Stage {
    pub fn new() -> Stage {
        let definition = read("pair.yaml", FLOW, Format::Yaml).unwrap().definition;
        let mut memory = Memory::new();
        let now = Time::from_millis(100_000);
        let hash: Arc<str> = definition.hash().into();
        let stored = StoredDefinition {
            tenant: Tenant::default(),
            flow: "pair".into(),
            hash: hash.clone(),
            body: definition.canonical(),
            origin: None,
            created_at: now,
            latest: true,
        };
        memory.put_definition(now, stored);
        Stage { memory, watch: Watch::new(Checker::default()), now, hash }
    }

    pub fn start(&self, id: &str) -> Commit {
        let new = NewRun {
            flow: "pair".into(),
            definition: self.hash.clone(),
            step_count: 2,
            labels: BTreeMap::new(),
            input_digest: String::new(),
            idempotency_key: None,
            retry_of: None,
            retain: None,
        };
        Commit {
            run: run(id),
            base: Base::New(new),
            leases: Vec::new(),
            events: vec![event(EventType::FlowStart, json!({"input": 1}))],
            state: Vec::new(),
            index: index(Status::Running, 0),
            others: Others::Leave,
            add: vec![job(0, 1, self.now)],
            receipts: Vec::new(),
            clear_state: false,
        }
    }

    /// `a` is done and triggers `b`.
    pub fn a_done(&self, version: u64, token: Token) -> Commit {
        let events = vec![
            of(EventType::StepStarted, "a", 1, json!({})),
            of(EventType::Emit, "a", 1, json!({"name": "a.done", "payload": 1})),
            of(EventType::StepCompleted, "a", 1, json!({"result": 1})),
        ];
        let finish = LeaseUse::Finish { key: JobKey::Step(0), attempt: 1, token };
        Commit {
            base: Base::Version(version),
            leases: vec![finish],
            events,
            index: index(Status::Running, 1),
            add: vec![job(1, 1, self.now)],
            ..self.start("r1")
        }
    }

    pub fn cancelled(&self, version: u64, completed: u32) -> Commit {
        Commit {
            base: Base::Version(version),
            events: vec![event(EventType::FlowCancelled, json!({}))],
            index: index(Status::Cancelled, completed),
            others: Others::Drop,
            add: Vec::new(),
            ..self.start("r1")
        }
    }

    /// Writes a commit, and tells the watch of it.
    pub fn commit(&mut self, commit: Commit) -> Vec<Violation> {
        let told = commit.clone();
        self.commit_telling(commit, told)
    }

    /// Writes one commit, and tells the watch of another.
    pub fn commit_telling(&mut self, commit: Commit, told: Commit) -> Vec<Violation> {
        let answer = self.memory.commit(self.now, vec![commit]).pop().unwrap();
        self.watch.committed(&self.memory, self.now, &told, &answer)
    }

    pub fn claim(&mut self, token: u128) -> (Claim, flowline_store::Claimed) {
        let claim = Claim {
            tenant: None,
            needs: vec!["function".into()],
            free: Vec::new(),
            free_elsewhere: 1,
            tokens: vec![Token(token)],
            ttl: TTL,
            worker: "w".into(),
        };
        let claimed = self.memory.claim(self.now, claim.clone());
        assert_eq!(claimed.jobs.len(), 1);
        (claim, claimed)
    }

    /// A run whose `a` is leased with token 7.
    pub fn leased() -> Stage {
        let mut stage = Stage::new();
        let start = stage.start("r1");
        assert_eq!(stage.commit(start), []);
        let (claim, claimed) = stage.claim(7);
        assert_eq!(stage.watch.claimed(stage.now, &claim, &claimed), []);
        stage
    }
}

#[track_caller]
pub fn only(found: &[Violation], invariant: Invariant) {
    assert!(!found.is_empty(), "nothing was found");
    assert!(found.iter().all(|violation| violation.invariant == invariant), "{found:#?}");
}

#[track_caller]
pub fn names(found: &[Violation], invariant: Invariant, text: &str) {
    let named = |v: &Violation| v.invariant == invariant && v.message.contains(text);
    assert!(found.iter().any(named), "{invariant} {text:?}: {found:#?}");
}

pub const HELD: Token = Token(7);
