//! Plays one run of a program on `decide` alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::decide::{
    AddJob, AttemptFailure, DecideInput, Decided, Decision, Finish, Inherited, Job, Known, Missing, Moment,
    OtherJobs, Retryable, Start, decide,
};
use flowline_core::event::{Event, EventType, NewEvent, PayloadSlot};
use flowline_core::limits::Limits;
use flowline_core::run::Phase;
use flowline_core::{Json, Plan, RunId, RunState, Tenant, Time};
use flowline_sim::program::{ClientOp, Doing, ScriptedAttempt, ScriptedOutcome, SimProgram};

const EPOCH: Time = Time::from_millis(1_767_225_600_000);

pub struct Player {
    pub plan: Arc<Plan>,
    pub state: RunState,
    pub log: Vec<Event>,
    id: RunId,
    now: Time,
    slots: BTreeMap<PayloadSlot, Json>,
    jobs: BTreeMap<u32, AddJob>,
    running: BTreeMap<u32, RunningAttempt>,
    /// What is to come, by time and then by the order in which it was planned.
    agenda: BTreeMap<(Time, u64), Next>,
    planned: u64,
    rng: Rng,
    losing: u32,
}

struct RunningAttempt {
    attempt: u32,
    act: ScriptedAttempt,
    refused: bool,
}

enum Next {
    ClientOp(ClientOp),
    Claim { step: u32, attempt: u32 },
    Doing { step: u32, attempt: u32, doing: Doing },
    End { step: u32, attempt: u32 },
    Lose { step: u32, attempt: u32 },
    TimeOut,
}

/// The run that a run repeats.
pub fn parent_of(program: &SimProgram, run: usize) -> Option<usize> {
    program.script.ops.iter().find_map(|timed| match &timed.op {
        ClientOp::Retry { run: of, into, .. } if *into == run => Some(*of),
        _ => None,
    })
}

impl Player {
    /// Plays a run to its end, or to where only somebody outside could move it; `None` where it never comes to be.
    /// `losing` is how many attempts in a hundred are lost.
    pub fn play(program: &SimProgram, run: usize, parent: Option<&Player>, losing: u32) -> Option<Player> {
        let plan = program.plan(run)?.clone();
        let mut player = Player {
            state: RunState::new(&plan),
            plan,
            log: Vec::new(),
            id: RunId::new(&format!("run-{run}")).unwrap(),
            now: EPOCH,
            slots: BTreeMap::new(),
            jobs: BTreeMap::new(),
            running: BTreeMap::new(),
            agenda: BTreeMap::new(),
            planned: 0,
            rng: Rng::with_seed(program.seed ^ u64::from(losing) << 32 ^ run as u64),
            losing,
        };
        for timed in &program.script.ops {
            let meant = match &timed.op {
                ClientOp::Start(start) => start.run == run,
                ClientOp::Retry { into, .. } => *into == run,
                ClientOp::Send { run: of, .. }
                | ClientOp::Pause { run: of }
                | ClientOp::Resume { run: of }
                | ClientOp::Cancel { run: of }
                | ClientOp::Complete { run: of, .. }
                | ClientOp::Fail { run: of, .. } => *of == run,
                ClientOp::Play(_) | ClientOp::PauseQueue { .. } | ClientOp::ResumeQueue { .. } => false,
            };
            if meant {
                player.plan_at(EPOCH + timed.at, Next::ClientOp(timed.op.clone()));
            }
        }
        while let Some(((at, _), next)) = player.agenda.pop_first() {
            player.now = player.now.max(at);
            player.step(program, run, parent, next);
        }
        (!player.log.is_empty()).then_some(player)
    }

    pub fn transcript(&self) -> String {
        self.log.iter().fold(String::new(), |mut text, event| {
            let step = event.step_name.as_deref().unwrap_or("");
            let data = event.data.as_ref().map_or(String::new(), |data| data.to_string());
            let at = event.ts.since(EPOCH);
            let _ =
                writeln!(text, "{:>3} {at:>8?} {} {step} {:?} {data}", event.seq, event.kind, event.attempt);
            text
        })
    }

    fn plan_at(&mut self, at: Time, next: Next) {
        self.planned += 1;
        self.agenda.insert((at, self.planned), next);
    }

    fn step(&mut self, program: &SimProgram, run: usize, parent: Option<&Player>, next: Next) {
        match next {
            Next::ClientOp(op) => self.op(op, parent),
            Next::Claim { step, attempt } => self.claim(program, run, step, attempt),
            Next::TimeOut => drop(self.apply(&DecideInput::TimedOut)),
            Next::Lose { step, attempt } => {
                if self.is_running(step, attempt) {
                    self.running.remove(&step);
                    self.jobs.remove(&step);
                    let released = self.rng.u32(0..5) == 0;
                    self.apply(&DecideInput::LeaseLost { step, attempt, released });
                }
            }
            Next::Doing { step, attempt, doing } => {
                if let (true, Doing::EmitNow(name, payload)) = (self.is_running(step, attempt), doing) {
                    let came = self.apply(&DecideInput::EmitNow { step, attempt, name, payload });
                    if matches!(came, Decided::Refused(_)) {
                        self.running.get_mut(&step).unwrap().refused = true;
                    }
                }
            }
            Next::End { step, attempt } => {
                if self.is_running(step, attempt) {
                    self.end(step, attempt);
                }
            }
        }
    }

    fn is_running(&self, step: u32, attempt: u32) -> bool {
        self.running.get(&step).is_some_and(|running| running.attempt == attempt)
    }

    fn op(&mut self, op: ClientOp, parent: Option<&Player>) {
        let input = match op {
            ClientOp::Start(start) => DecideInput::Start(Box::new(Start {
                at: (!start.delay.is_zero()).then(|| self.now + start.delay),
                priority: start.priority,
                ..Start::new(start.input)
            })),
            ClientOp::Retry { from, .. } => {
                let Some(parent) = parent.filter(|p| p.state.ended.is_some() && p.now <= self.now) else {
                    return;
                };
                DecideInput::Start(Box::new(parent.repeat(from.as_deref())))
            }
            ClientOp::Send { event, payload, .. } => {
                DecideInput::External { name: event, payload, event_id: None, sender: Default::default() }
            }
            ClientOp::Pause { .. } => DecideInput::Pause,
            ClientOp::Resume { .. } => DecideInput::Resume,
            ClientOp::Cancel { .. } => DecideInput::Cancel { reason: None },
            ClientOp::Complete { result, .. } => DecideInput::Finish(Finish::Completed { result }),
            ClientOp::Fail { error, .. } => DecideInput::Finish(Finish::Failed { error }),
            ClientOp::Play(_) | ClientOp::PauseQueue { .. } | ClientOp::ResumeQueue { .. } => return,
        };
        self.apply(&input);
    }

    fn claim(&mut self, program: &SimProgram, run: usize, step: u32, attempt: u32) {
        let ready = self.jobs.get(&step).is_some_and(|job| job.attempt == attempt && !job.held);
        if !ready || self.running.contains_key(&step) {
            return;
        }
        let state = self.state.step(step);
        let act = program.act(run, step, state.tries);
        self.running.insert(step, RunningAttempt { attempt, act: act.clone(), refused: false });
        if state.phase == Phase::Delayed {
            self.apply(&DecideInput::Started { step, attempt, data: Json::null() });
        } else {
            let name = self.plan.step(step).name.clone();
            self.append(NewEvent::step(EventType::StepStarted, &name, attempt, None));
        }
        let takes =
            self.plan.step_definition(step).timeout.map_or(act.takes, |timeout| act.takes.min(timeout));
        if self.rng.u32(0..100) < self.losing {
            let at = self.now + Duration::from_millis(self.rng.u64(0..=takes.as_millis() as u64));
            self.plan_at(at, Next::Lose { step, attempt });
        }
        for (after, doing) in act.doings {
            self.plan_at(self.now + after, Next::Doing { step, attempt, doing });
        }
        self.plan_at(self.now + takes, Next::End { step, attempt });
    }

    fn end(&mut self, step: u32, attempt: u32) {
        let RunningAttempt { act, refused, .. } = self.running.remove(&step).unwrap();
        self.jobs.remove(&step);
        let late = self.plan.step_definition(step).timeout.is_some_and(|timeout| act.takes > timeout);
        let failed = |code: Option<String>, retry: Retryable| {
            let failure = AttemptFailure { error: "broke".to_owned(), code, stack: None, retry };
            DecideInput::Failed { step, attempt, failure }
        };
        let input = match act.outcome {
            _ if refused => failed(Some("emit_refused".to_owned()), Retryable::Never),
            _ if late => failed(Some("timeout".to_owned()), Retryable::ByPolicy),
            ScriptedOutcome::Done { result, emits } => DecideInput::Done { step, attempt, result, emits },
            ScriptedOutcome::Failed { code, retry, .. } => failed(code, retry),
        };
        self.apply(&input);
    }

    /// Decides, and makes the decision true.
    fn apply(&mut self, input: &DecideInput) -> Decided {
        let mut known = Known::default();
        loop {
            let limits = Limits::default();
            let moment = Moment { run: &self.id, created_at: EPOCH, now: self.now, limits };
            match decide(&self.plan, &self.state, input, &known, moment) {
                Decided::Missing(Missing::Leases) => {
                    known.leased = Some(self.running.keys().copied().collect());
                }
                Decided::Missing(Missing::Payloads(slots)) => {
                    for slot in slots {
                        let data = self.slots.get(&slot).cloned().unwrap_or_else(Json::null);
                        known.payloads.insert(slot, slot.open(&data));
                    }
                }
                Decided::Decision(decision) => {
                    self.commit(&decision);
                    return Decided::Decision(decision);
                }
                other => return other,
            }
        }
    }

    fn commit(&mut self, decision: &Decision) {
        decision.events.iter().for_each(|event| self.append(event.clone()));
        self.state = decision.state.clone();
        for (job, _) in &decision.drop {
            if let Job::Step(step) = job {
                self.jobs.remove(step);
            }
        }
        match decision.others {
            OtherJobs::Leave => {}
            OtherJobs::Drop => {
                self.jobs.clear();
                self.running.clear();
            }
            OtherJobs::Hold => self.jobs.values_mut().for_each(|job| job.held = true),
            OtherJobs::Release => {
                self.jobs.values_mut().for_each(|job| job.held = false);
                let jobs: Vec<AddJob> = self.jobs.values().cloned().collect();
                jobs.iter().for_each(|job| self.queue(job));
            }
        }
        for add in &decision.add {
            match add.job {
                Job::RunTimeout => self.plan_at(add.due, Next::TimeOut),
                Job::Begin | Job::Timer(_) => {}
                Job::Step(step) => {
                    self.jobs.insert(step, add.clone());
                    self.queue(add);
                }
            }
        }
    }

    fn queue(&mut self, job: &AddJob) {
        if let Job::Step(step) = job.job {
            let at = job.due.max(self.now) + Duration::from_millis(self.rng.u64(0..50));
            self.plan_at(at, Next::Claim { step, attempt: job.attempt });
        }
    }

    fn append(&mut self, new: NewEvent) {
        if let (Some(slot), Some(data)) = (new.slot, &new.data) {
            self.slots.insert(slot, data.clone());
        }
        let seq = self.log.len() as u64 + 1;
        let event = Event::stored(&self.id, &self.plan.flow, &Tenant::default(), seq, self.now.millis(), new);
        self.log.push(event);
    }

    /// What a repetition of this run starts from.
    fn repeat(&self, from: Option<&str>) -> Start {
        let mut start = Start { retry_of: Some(self.id.clone()), ..Start::new(Json::null()) };
        let again = from.map(|from| self.downstream(self.plan.step_index(from).unwrap())).unwrap_or_default();
        for event in &self.log {
            let data = event.data.clone().unwrap_or_else(Json::null);
            let of = event.step_name.clone().zip(event.attempt);
            let kept = |step: &Arc<str>| {
                let step = self.plan.step_index(step).unwrap();
                self.state.step(step).phase == Phase::Completed && !again.contains(&step)
            };
            if of.as_ref().is_some_and(|(step, _)| !kept(step)) {
                continue;
            }
            match (event.kind, of) {
                (EventType::FlowStart, _) => start.input = PayloadSlot::Input.open(&data),
                (EventType::Emit, of) => start.inherited.push(Inherited::Emit {
                    of,
                    name: data.value()["name"].as_str().unwrap().to_owned(),
                    payload: PayloadSlot::Emit(0).open(&data),
                }),
                (EventType::StepCompleted, Some((step, attempt))) => {
                    let result = PayloadSlot::Result(0).open(&data);
                    start.inherited.push(Inherited::Completed { step, attempt, result });
                }
                _ => {}
            }
        }
        start
    }

    fn downstream(&self, from: u32) -> Vec<u32> {
        let mut found = vec![from];
        let mut at = 0;
        while let Some(&step) = found.get(at) {
            let step = self.plan.step(step);
            let listeners = step.emits.keys().flat_map(|&event| &self.plan.events[event as usize].listeners);
            let next: Vec<u32> = step.followers.iter().chain(listeners).copied().collect();
            for step in next {
                if !found.contains(&step) {
                    found.push(step);
                }
            }
            at += 1;
        }
        found
    }
}
