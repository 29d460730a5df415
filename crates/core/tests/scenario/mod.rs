//! Plays a run against `decide` the way an engine and a store would, and checks after every decision what must always
//! hold. Tests read the transcript: each input, the events and jobs it made, the status after it.

mod holds;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flowline_core::decide::{
    AddJob, AttemptFailure, AttemptLog, DecideInput, Decided, Decision, Finish, Inherited, Job, Known,
    Missing, Moment, OtherJobs, Refusal, Retryable, Sender, Start, decide,
};
use flowline_core::definition::{Definition, Format, read};
use flowline_core::event::{AttemptOf, Event, EventType, NewEvent, PayloadSlot};
use flowline_core::limits::Limits;
use flowline_core::receipt::ReceiptChange;
use flowline_core::report::ReportDigests;
use flowline_core::run::{Phase, Status};
use flowline_core::{Json, Plan, RunId, RunState, Tenant, Time};

/// Compares a text with its snapshot.
macro_rules! assert_shown {
    ($text:expr) => {
        insta::with_settings!({ omit_expression => true, snapshot_path => "scenario/snapshots" }, {
            insta::assert_snapshot!($text);
        })
    };
}

/// Compares the whole of a run: every input, event, job, receipt and status.
macro_rules! assert_run {
    ($scenario:expr) => {
        assert_shown!($scenario.transcript)
    };
}

/// Every run of these tests begins here.
pub const EPOCH: Time = Time::from_millis(1_767_225_600_000);

/// What came of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Came {
    Decided(Box<Decision>),
    Applied,
    Refused(Refusal),
}

/// What retention has left of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retained {
    Log,
    Digests,
    /// As an older build trimmed it.
    Nothing,
}

pub struct Scenario {
    pub plan: Arc<Plan>,
    pub state: RunState,
    pub log: Vec<Event>,
    /// Step jobs as the store would hold them.
    pub jobs: BTreeMap<u32, AddJob>,
    pub timer: Option<AddJob>,
    /// Timers of a machine, and its delayed start as `u32::MAX`.
    pub timers: BTreeMap<u32, AddJob>,
    /// What became of the events that a machine took in.
    pub receipts: BTreeMap<u32, ReceiptChange>,
    pub leased: BTreeSet<u32>,
    pub now: Time,
    /// What the next decision goes by.
    pub limits: Limits,
    /// Everything that decisions asked for, in order.
    pub asked: Vec<Missing>,
    pub retained: Retained,
    pub transcript: String,
    run: RunId,
    slots: BTreeMap<PayloadSlot, Json>,
    begun: BTreeSet<(u32, u32)>,
}

pub fn json(text: &str) -> Json {
    Json::parse(text).expect(text)
}

/// A failure as a step reports it, left to its retry policy.
pub fn failure(code: &str) -> AttemptFailure {
    AttemptFailure {
        error: format!("broke with {code}"),
        code: Some(code.to_owned()),
        stack: None,
        retry: Retryable::ByPolicy,
    }
}

pub fn start_of(input: &str) -> Start {
    Start::new(json(input))
}

impl Scenario {
    /// A flow's steps (and what else it has) in YAML; `flow:` is added.
    pub fn of(yaml: &str) -> Scenario {
        let text = if yaml.contains("machine:") { yaml.to_owned() } else { format!("flow: order\n{yaml}") };
        let read = read("order.yaml", &text, Format::Yaml).unwrap_or_else(|e| panic!("{}", e.render(false)));
        Scenario::new(read.definition)
    }

    pub fn new(definition: Definition) -> Scenario {
        Scenario::planned(Arc::new(Plan::build(definition).expect("a checked definition can be planned")))
    }

    pub fn planned(plan: Arc<Plan>) -> Scenario {
        Scenario {
            state: RunState::new(&plan),
            plan,
            log: Vec::new(),
            jobs: BTreeMap::new(),
            timer: None,
            timers: BTreeMap::new(),
            receipts: BTreeMap::new(),
            leased: BTreeSet::new(),
            now: EPOCH,
            limits: Limits::default(),
            asked: Vec::new(),
            retained: Retained::Log,
            transcript: String::new(),
            run: RunId::new("run-1").expect("a run id"),
            slots: BTreeMap::new(),
            begun: BTreeSet::new(),
        }
    }

    /// A flow that has started with this input.
    pub fn started(yaml: &str, input: &str) -> Scenario {
        let mut scenario = Scenario::of(yaml);
        scenario.start(input);
        scenario
    }

    pub fn start(&mut self, input: &str) -> Came {
        self.start_with(start_of(input))
    }

    pub fn start_with(&mut self, start: Start) -> Came {
        self.apply(DecideInput::Start(Box::new(start)))
    }

    /// Claims a step's job, as a worker does before it reports anything.
    pub fn claim(&mut self, step: &str) -> u32 {
        let step = self.index(step);
        let attempt = self.state.step(step).attempt;
        if !self.jobs.contains_key(&step) || !self.leased.insert(step) {
            return attempt;
        }
        let data = json(r#"{"worker":"w1"}"#);
        if self.state.step(step).phase == Phase::Delayed {
            let due = self.jobs[&step].due;
            self.now = self.now.max(due);
            self.apply(DecideInput::Started { step, attempt, data });
        } else if self.begun.insert((step, attempt)) {
            let name = self.plan.step(step).name.clone();
            self.append(NewEvent::step(EventType::StepStarted, &name, attempt, Some(data)));
        }
        attempt
    }

    pub fn done(&mut self, step: &str, result: &str, emits: &[(&str, &str)]) -> Came {
        let attempt = self.claim(step);
        self.done_at(step, attempt, result, emits)
    }

    pub fn done_at(&mut self, step: &str, attempt: u32, result: &str, emits: &[(&str, &str)]) -> Came {
        let emits = emits.iter().map(|(name, payload)| ((*name).to_owned(), json(payload))).collect();
        self.apply(DecideInput::Done { step: self.index(step), attempt, result: json(result), emits })
    }

    /// An attempt that fails and leaves it to its policy whether it is repeated.
    pub fn fail(&mut self, step: &str, code: &str) -> Came {
        self.fail_with(step, failure(code))
    }

    pub fn fail_with(&mut self, step: &str, failure: AttemptFailure) -> Came {
        let attempt = self.claim(step);
        self.apply(DecideInput::Failed { step: self.index(step), attempt, failure })
    }

    pub fn lose(&mut self, step: &str) -> Came {
        let attempt = self.claim(step);
        self.apply(DecideInput::LeaseLost { step: self.index(step), attempt, released: false })
    }

    pub fn release(&mut self, step: &str) -> Came {
        let attempt = self.claim(step);
        self.apply(DecideInput::LeaseLost { step: self.index(step), attempt, released: true })
    }

    pub fn emit_now(&mut self, step: &str, name: &str, payload: &str) -> Came {
        let attempt = self.claim(step);
        let (name, payload) = (name.to_owned(), json(payload));
        self.apply(DecideInput::EmitNow { step: self.index(step), attempt, name, payload })
    }

    pub fn send(&mut self, name: &str, payload: &str) -> Came {
        self.apply(DecideInput::External {
            name: name.to_owned(),
            payload: json(payload),
            event_id: None,
            sender: Default::default(),
        })
    }

    /// Sends an event to a machine.
    pub fn event(&mut self, id: &str, name: &str, payload: &str, roles: &[&str]) -> Came {
        let roles: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
        let sender =
            Sender { user: Some("u1".to_owned()).filter(|_| !roles.is_empty()), roles, sent_by: None };
        let (name, payload, event_id) = (name.to_owned(), json(payload), Some(id.to_owned()));
        self.apply(DecideInput::External { name, payload, event_id, sender })
    }

    /// The one timer that is set runs out, this long after its time.
    pub fn timer_due(&mut self, late: Duration) -> Came {
        let (&timer, job) = self.timers.first_key_value().expect("a timer is set");
        let (number, due) = (job.attempt, job.due);
        self.now = self.now.max(due + late);
        match timer {
            u32::MAX => self.apply(DecideInput::Begin),
            timer => self.apply(DecideInput::TimerDue { timer, number, due }),
        }
    }

    /// The state that a machine is in.
    pub fn at(&self) -> String {
        self.plan.state_name(&self.state).map(|name| name.to_string()).unwrap_or_default()
    }

    pub fn cancel(&mut self) -> Came {
        self.apply(DecideInput::Cancel { reason: None })
    }

    pub fn pause(&mut self) -> Came {
        self.apply(DecideInput::Pause)
    }

    pub fn resume(&mut self) -> Came {
        self.apply(DecideInput::Resume)
    }

    pub fn time_out(&mut self) -> Came {
        self.now = self.now.max(self.timer.as_ref().expect("the run has a time-out").due);
        self.apply(DecideInput::TimedOut)
    }

    pub fn finish(&mut self, finish: Finish) -> Came {
        self.apply(DecideInput::Finish(finish))
    }

    pub fn wait(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    pub fn index(&self, step: &str) -> u32 {
        self.plan.step_index(step).unwrap_or_else(|| panic!("no step {step:?}"))
    }

    pub fn phase(&self, step: &str) -> Phase {
        self.state.step(self.index(step)).phase
    }

    /// The input that a worker would get now for an attempt of this step.
    pub fn input(&self, step: &str) -> Json {
        let step = self.index(step);
        let payloads = self.slots.iter().map(|(slot, data)| (*slot, slot.open(data))).collect();
        self.plan.input_of(step, &self.state, &payloads).expect("every payload is there")
    }

    pub fn status(&self) -> Status {
        self.state.status()
    }

    /// Names of the steps that have a job.
    pub fn live(&self) -> Vec<String> {
        self.jobs.keys().map(|&step| self.plan.step(step).name.to_string()).collect()
    }

    /// Names of the steps in a phase, in the order of the definition.
    pub fn steps(&self, phase: Phase) -> Vec<String> {
        let steps = 0..self.plan.steps.len() as u32;
        let found = steps.filter(|&step| self.state.step(step).phase == phase);
        found.map(|step| self.plan.step(step).name.to_string()).collect()
    }

    /// The `data` of the last event of a type.
    pub fn data(&self, kind: EventType) -> serde_json::Value {
        let event = self.log.iter().rev().find(|event| event.kind == kind);
        event.unwrap_or_else(|| panic!("no {kind} in the log")).data.as_ref().expect("data").value()
    }

    pub fn kinds(&self) -> Vec<&'static str> {
        self.log.iter().map(|event| event.kind.as_str()).collect()
    }

    /// What a finished run hands to one that repeats it: what it received and its completed steps with their emits, in
    /// order.
    pub fn inheritance(&self) -> Vec<Inherited> {
        let completed = self.steps(Phase::Completed);
        let mut inherited = Vec::new();
        for event in &self.log {
            let (step, Some(data)) = (&event.step_name, &event.data) else { continue };
            if step.as_ref().is_some_and(|step| !completed.contains(&step.to_string())) {
                continue;
            }
            let of = step.clone().zip(event.attempt);
            match (event.kind, of) {
                (EventType::Emit, of) => {
                    let name = data.value()["name"].as_str().expect("a name").to_owned();
                    let payload = PayloadSlot::Emit(0).open(data);
                    inherited.push(Inherited::Emit { of, name, payload });
                }
                (EventType::StepCompleted, Some((step, attempt))) => {
                    let result = PayloadSlot::Result(0).open(data);
                    inherited.push(Inherited::Completed { step, attempt, result });
                }
                _ => {}
            }
        }
        inherited
    }

    /// Decides on an input, makes the decision durable, and checks what must always hold.
    pub fn apply(&mut self, input: DecideInput) -> Came {
        self.transcript += &format!("> {}\n", self.show_input(&input).trim_end());
        let came = self.ask(&input);
        match &came {
            Came::Decided(decision) => {
                self.commit(&input, decision);
                self.show(decision);
                self.check();
                let asked = self.asked.len();
                let again = self.ask(&input);
                self.asked.truncate(asked);
                assert!(
                    !matches!(again, Came::Decided(_)),
                    "a duplicate was decided: {input:?} -> {again:?}"
                );
            }
            Came::Applied => self.transcript += "  applied before\n",
            Came::Refused(refusal) => self.transcript += &format!("  refused: {refusal}\n"),
        }
        came
    }

    /// Calls `decide`, answering what it asks for as a store would.
    fn ask(&mut self, input: &DecideInput) -> Came {
        let mut known = Known::default();
        for _ in 0..10 {
            let moment = Moment { run: &self.run, created_at: EPOCH, now: self.now, limits: self.limits };
            match decide(&self.plan, &self.state, input, &known, moment) {
                Decided::Decision(decision) => return Came::Decided(decision),
                Decided::Applied => return Came::Applied,
                Decided::Refused(refusal) => return Came::Refused(refusal),
                Decided::Missing(missing) => {
                    match &missing {
                        Missing::Leases => {
                            assert!(known.leased.is_none(), "asked for leases twice");
                            known.leased = Some(self.leased.clone());
                        }
                        Missing::Receipt(id) => {
                            let opened = self.receipts.values().filter_map(|receipt| receipt.opened.as_ref());
                            let taken = opened.into_iter().any(|opened| *opened.event_id == **id);
                            assert!(
                                known.receipts.insert(id.clone(), taken).is_none(),
                                "asked for {id} twice"
                            );
                        }
                        Missing::Attempt(of) => {
                            assert!(known.attempt.is_none(), "asked for an attempt twice");
                            known.attempt = Some((of.clone(), self.reports_of(of)));
                        }
                        Missing::Payloads(slots) => {
                            assert!(!slots.is_empty(), "asked for nothing");
                            for slot in slots {
                                let found = self.slots.get(slot);
                                let data = found.unwrap_or_else(|| panic!("no event is kept for {slot:?}"));
                                let before = known.payloads.insert(*slot, slot.open(data));
                                assert!(before.is_none(), "asked for {slot:?} twice");
                            }
                        }
                    }
                    self.asked.push(missing);
                }
            }
        }
        panic!("decide never stops asking about {input:?}");
    }

    fn reports_of(&self, of: &AttemptOf) -> AttemptLog {
        match self.retained {
            Retained::Log => {}
            Retained::Digests => {
                return AttemptLog::Trimmed(ReportDigests::of(&self.log).attempt(of).to_vec());
            }
            Retained::Nothing => return AttemptLog::Forgotten,
        }
        let of =
            |event: &&Event| event.step_name.as_ref() == Some(&of.step) && event.attempt == Some(of.attempt);
        let reports = self.log.iter().filter(of).filter(|event| ReportDigests::KINDS.contains(&event.kind));
        AttemptLog::Kept(reports.map(|event| (event.kind, event.data.clone().unwrap())).collect())
    }

    fn append(&mut self, new: NewEvent) {
        if let (Some(slot), Some(data)) = (new.slot, &new.data) {
            let before = self.slots.insert(slot, data.clone());
            assert!(before.is_none(), "{slot:?} was written twice");
        }
        let seq = self.log.len() as u64 + 1;
        let ms = self.now.millis();
        self.log.push(Event::stored(&self.run, &self.plan.flow, &Tenant::default(), seq, ms, new));
    }

    fn commit(&mut self, input: &DecideInput, decision: &Decision) {
        if let DecideInput::TimerDue { timer, .. } = input {
            self.timers.remove(timer);
        }
        if let DecideInput::Begin = input {
            self.timers.remove(&u32::MAX);
        }
        if let DecideInput::Done { step, .. }
        | DecideInput::Failed { step, .. }
        | DecideInput::LeaseLost { step, .. } = input
        {
            self.jobs.remove(step);
            self.leased.remove(step);
        }
        for new in &decision.events {
            if let (Some(slot), Some(data)) = (new.slot, &new.data) {
                assert_eq!(decision.payloads.get(&slot), Some(&slot.open(data)), "{slot:?}");
            }
            self.append(new.clone());
        }
        for (job, attempt) in &decision.drop {
            let dropped = match job {
                Job::Step(step) => {
                    assert!(!self.leased.contains(step), "a leased job was dropped");
                    self.jobs.remove(step)
                }
                Job::Timer(timer) => self.timers.remove(timer),
                Job::RunTimeout | Job::Begin => None,
            };
            assert_eq!(dropped.expect("a dropped job exists").attempt, *attempt);
        }
        for receipt in &decision.receipts {
            self.note(receipt);
        }
        match decision.others {
            OtherJobs::Leave => {}
            OtherJobs::Drop => {
                self.jobs.clear();
                self.leased.clear();
                self.timers.clear();
                self.timer = None;
            }
            OtherJobs::Hold => self.jobs.values_mut().for_each(|job| job.held = true),
            OtherJobs::Release => self.jobs.values_mut().for_each(|job| job.held = false),
        }
        for add in &decision.add {
            let before = match add.job {
                Job::Step(step) => self.jobs.insert(step, add.clone()),
                Job::RunTimeout => self.timer.replace(add.clone()),
                Job::Begin => self.timers.insert(u32::MAX, add.clone()),
                Job::Timer(timer) => self.timers.insert(timer, add.clone()),
            };
            assert_eq!(before, None, "a second job");
        }
        self.state = decision.state.clone();
    }

    fn note(&mut self, receipt: &ReceiptChange) {
        match self.receipts.get_mut(&receipt.number) {
            Some(there) => {
                assert!(receipt.opened.is_none(), "a receipt was opened twice");
                assert!(!there.status.is_end(), "a receipt that was closed changed");
                there.status = receipt.status;
                there.outcome = receipt.outcome.clone().or(there.outcome.take());
            }
            None => {
                assert!(receipt.opened.is_some(), "a receipt was changed that was never opened");
                self.receipts.insert(receipt.number, receipt.clone());
            }
        }
    }
}
