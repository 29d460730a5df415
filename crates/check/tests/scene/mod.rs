//! A run by hand: its events as they would be logged, the row and the jobs that go with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_check::{Checker, FlowMap, Invariant, RunCheck};
use flowline_core::definition::{Format, Priority, read};
use flowline_core::event::{Event, EventType, NewEvent};
use flowline_core::{Json, RunId, Status, Tenant, Time};
use flowline_store::{JobKey, JobRow, JobState, RunRow};
use serde_json::{Value, json};

/// Two branches, a join, a step behind a condition, and one that only an event from outside triggers.
pub const FLOW: &str = r#"
flow: scene
accepts: { approved: }
steps:
  a: { function: a, returns: a.done, retry: { attempts: 2, delay: 1s } }
  b: { function: b, emits: [b.done] }
  join: { function: j, subscribes: [a.done, b.done] }
  maybe: { function: m, subscribes: ["step:join"], if: "input.x > 1" }
  late: { function: l, subscribes: [approved] }
"#;

#[derive(Debug, Clone)]
pub struct Scene {
    pub flow: Arc<FlowMap>,
    pub row: RunRow,
    pub events: Vec<Event>,
    pub jobs: Vec<JobRow>,
    pub now: i64,
}

pub fn flow(text: &str) -> Arc<FlowMap> {
    Arc::new(FlowMap::new(read("scene.yaml", text, Format::Yaml).unwrap().definition))
}

impl Scene {
    pub fn new(text: &str) -> Scene {
        let flow = flow(text);
        let row = RunRow {
            run_id: RunId::new("r1").unwrap(),
            flow_name: flow.definition.flow.as_str().into(),
            tenant: Tenant::default(),
            definition: flow.hash.as_str().into(),
            status: Status::Running,
            state: None,
            created_at: Time::default(),
            started_at: None,
            completed_at: None,
            duration: None,
            step_count: flow.definition.steps.len() as u32,
            completed_steps: 0,
            failed_steps: 0,
            retries: 0,
            failure: None,
            labels: BTreeMap::new(),
            idempotency_key: None,
            retry_of: None,
            retain: None,
            version: 1,
            events: 0,
            events_trimmed: false,
            input_digest: String::new(),
        };
        Scene { flow, row, events: Vec::new(), jobs: Vec::new(), now: 1_000 }
    }

    /// Adds an event of the run.
    pub fn run(mut self, kind: EventType, data: Value) -> Scene {
        self.push(NewEvent::run(kind, Some(Json::from(data))));
        self
    }

    /// Adds an event of a step.
    pub fn step(mut self, kind: EventType, step: &str, attempt: u32, data: Value) -> Scene {
        self.push(NewEvent::step(kind, &step.into(), attempt, Some(Json::from(data))));
        self
    }

    pub fn start(self) -> Scene {
        self.run(EventType::FlowStart, json!({"input": {"x": 1}}))
    }

    /// A whole attempt that publishes these.
    pub fn done(mut self, step: &str, attempt: u32, emits: &[&str]) -> Scene {
        self = self.step(EventType::StepStarted, step, attempt, json!({"worker": "w"}));
        for name in emits {
            self = self.step(EventType::Emit, step, attempt, json!({"name": name, "payload": 1}));
        }
        self.step(EventType::StepCompleted, step, attempt, json!({"result": 1}))
    }

    pub fn skip(self, step: &str, reason: &str) -> Scene {
        self.step(EventType::StepSkipped, step, 0, json!({"reason": reason}))
    }

    pub fn job(mut self, step: &str, attempt: u32, state: JobState) -> Scene {
        let at = self.flow.definition.steps.iter().position(|known| known.name == step).unwrap();
        self.jobs.push(JobRow {
            key: JobKey::Step(at as u32),
            name: step.into(),
            attempt,
            queue: "default".into(),
            need: "function:a".into(),
            priority: Priority::Normal,
            due: Time::from_millis(1_000),
            state,
            worker: None,
            leased_at: None,
            expires: None,
            lines: 0,
            released: false,
        });
        self
    }

    fn push(&mut self, event: NewEvent) {
        self.now += 10;
        let seq = self.events.len() as u64 + 1;
        let row = &self.row;
        self.events.push(Event::stored(&row.run_id, &row.flow_name, &row.tenant, seq, self.now, event));
    }

    /// Takes the row from the log, as an undisturbed store would have it.
    pub fn settled(mut self) -> Scene {
        let mut look = RunCheck::new(Checker::default(), &self.row, self.flow.clone());
        self.events.iter().for_each(|event| look.event(event));
        let shape = look.shape();
        let row = &mut self.row;
        row.status = shape.status;
        row.state = shape.state;
        row.completed_steps = shape.completed_steps;
        row.failed_steps = shape.failed_steps;
        row.retries = shape.retries;
        row.failure = shape.failure;
        row.created_at = shape.created_at.unwrap_or_default();
        row.started_at = shape.started_at;
        row.completed_at = shape.completed_at;
        row.duration = shape.completed_at.map(|end| end.since(row.created_at).as_millis() as u64);
        row.events = shape.events;
        self
    }

    /// What the checker finds, as it is.
    pub fn found(&self) -> Vec<flowline_check::Violation> {
        let mut look = RunCheck::new(Checker::default(), &self.row, self.flow.clone());
        self.events.iter().for_each(|event| look.event(event));
        look.finish(&self.row, &self.jobs)
    }

    /// As [`Scene::found`], with what became of the events that a machine took in.
    pub fn found_with(&self, receipts: &[flowline_store::Receipt]) -> Vec<flowline_check::Violation> {
        let mut look = RunCheck::new(Checker::default(), &self.row, self.flow.clone());
        self.events.iter().for_each(|event| look.event(event));
        look.receipts(receipts);
        look.finish(&self.row, &self.jobs)
    }

    /// As [`Scene::found`], with the run's own key-value state.
    pub fn found_with_state(&self, values: &[flowline_store::StateValue]) -> Vec<flowline_check::Violation> {
        let mut look = RunCheck::new(Checker::default(), &self.row, self.flow.clone());
        self.events.iter().for_each(|event| look.event(event));
        look.state(values);
        look.finish(&self.row, &self.jobs)
    }

    /// The scene breaks exactly this invariant, and nothing is said without it.
    #[track_caller]
    pub fn breaks(&self, invariant: Invariant, text: &str) {
        let found = self.found();
        let broken: BTreeSet<Invariant> = found.iter().map(|violation| violation.invariant).collect();
        assert_eq!(broken, BTreeSet::from([invariant]), "{found:#?}");
        assert!(found.iter().any(|violation| violation.message.contains(text)), "{text:?}: {found:#?}");
        let checker = Checker { without: Some(invariant) };
        let mut look = RunCheck::new(checker, &self.row, self.flow.clone());
        self.events.iter().for_each(|event| look.event(event));
        assert_eq!(look.finish(&self.row, &self.jobs), []);
    }

    #[track_caller]
    pub fn holds(&self) {
        assert_eq!(self.found(), []);
    }
}
