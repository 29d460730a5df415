//! Predicts the log of a machine's run. Events, timers, attempts and operators can't be predicted and are read from the log;
//! everything that follows from them is predicted event by event. The model shares no code with the fold.

mod again;
mod receipts;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flowline_core::definition::{Definition, Machine, Missed, When};
use flowline_core::{Event, EventType};
use serde_json::{Map, Value, json};

use super::predict::{TryEnding, is_repeated};
use super::{Cut, ObservedRun, check_cut_of};
use crate::program::{ClientOp, Made, SimProgram};

use again::{Legacy, Over, Stood};
use receipts::Became;

/// What brings a transition about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Start,
    Event(u32),
    Timer(usize),
    Error(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Idle,
    Live,
    Completed,
    Failed,
    Skipped,
}

/// The transition whose actions run.
#[derive(Debug, Clone)]
struct Current {
    by: Turn,
    from: Option<usize>,
    /// Actions in order, each with its group.
    asked: Vec<(usize, usize)>,
}

/// An event that was taken in.
#[derive(Debug, Clone, Default)]
struct Letter {
    name: String,
    id: String,
    payload: Value,
    user: Value,
    roles: Vec<String>,
}

/// An event that must come next.
#[derive(Debug)]
struct Expected {
    kind: EventType,
    step: Option<String>,
    /// Members of its data; a null must not be there.
    fields: Map<String, Value>,
}

struct Model<'a> {
    program: &'a SimProgram,
    run: usize,
    definition: &'a Definition,
    machine: &'a Machine,
    made: &'a Made,
    /// The timers of all states: the state and the place in it.
    timers: Vec<(usize, usize)>,
    input: Value,
    context: Map<String, Value>,
    state: usize,
    transition: u32,
    letters: BTreeMap<u32, Letter>,
    inbox: VecDeque<Turn>,
    current: Option<Current>,
    phases: Vec<Phase>,
    /// Failed tries of each action in the present transition.
    tries: Vec<u32>,
    armed: BTreeSet<usize>,
    error: Option<usize>,
    failed: Option<usize>,
    paused: bool,
    ended: bool,
    /// Events were turned down because somebody ends the run.
    closing: bool,
    expected: VecDeque<Expected>,
    became: BTreeMap<u32, Became>,
    /// Events that have had their turn.
    past: u32,
    /// The last turn that no failed action brought about, and where the machine stood before it.
    root: Option<(Stood, Turn)>,
    /// Whether a failed action brought the last turn about.
    erred: bool,
    /// Where it stood when somebody ended the run.
    last: Option<Stood>,
    over: Option<Over>,
    /// When each timer was due, in the order in which they were set, and the last place of each there.
    set_at: Vec<Value>,
    timers_set: usize,
    places: BTreeMap<usize, usize>,
    /// What it takes over from the run that it repeats.
    legacy: Option<Legacy>,
}

/// Whether the run of a machine went as its program says.
pub(super) fn compare(program: &SimProgram, run: usize, seen: ObservedRun<'_>) -> Result<(), String> {
    let mut model = model(program, run)?;
    let repeats = program.script.ops.iter().find_map(|timed| match timed.op {
        ClientOp::Retry { run: of, into, .. } if into == run => Some(of),
        _ => None,
    });
    if let Some(of) = repeats.filter(|_| !program.retries_from_start(run)) {
        // Of a run that retention has trimmed nothing can be said.
        let Some(log) = seen.parent else { return Ok(()) };
        let mut parent = self::model(program, of)?;
        parent.read(log)?;
        model.legacy = parent.legacy()?;
    }
    model.read(seen.log)?;
    model.rest(seen.at_rest)?;
    model.check_receipts(seen.receipts)
}

fn model(program: &SimProgram, run: usize) -> Result<Model<'_>, String> {
    let version = program.version(run).ok_or_else(|| format!("no start creates run {run}"))?;
    let definition = version.definition();
    let (Some(machine), Some(made)) = (&definition.machine, &version.machine) else {
        return Err("it isn't a run of a machine".to_owned());
    };
    let timers = machine.states.iter().enumerate();
    let timers =
        timers.flat_map(|(at, state)| (0..state.after.len()).map(move |timer| (at, timer))).collect();
    Ok(Model {
        program,
        run,
        definition,
        machine,
        made,
        timers,
        input: Value::Null,
        context: Map::new(),
        state: 0,
        transition: 0,
        letters: BTreeMap::new(),
        inbox: VecDeque::new(),
        current: None,
        phases: vec![Phase::Idle; definition.steps.len()],
        tries: vec![0; definition.steps.len()],
        armed: BTreeSet::new(),
        error: None,
        failed: None,
        paused: false,
        ended: false,
        closing: false,
        expected: VecDeque::new(),
        became: BTreeMap::new(),
        past: 0,
        root: None,
        erred: false,
        last: None,
        over: None,
        set_at: Vec::new(),
        timers_set: 0,
        places: BTreeMap::new(),
        legacy: None,
    })
}

impl Expected {
    fn of(kind: EventType, step: Option<&str>, fields: Value) -> Expected {
        let fields = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        Expected { kind, step: step.map(str::to_owned), fields }
    }

    fn check(&self, event: &Event, data: &Value) -> Result<(), String> {
        let differs =
            |(key, value): &(&String, &Value)| data.get(key.as_str()).unwrap_or(&Value::Null) != *value;
        if self.kind != event.kind || self.step.as_deref() != event.step_name.as_deref() {
            return Err(format!("expected {} {:?} {:?} here", self.kind, self.step, self.fields));
        }
        match self.fields.iter().find(differs) {
            Some((key, value)) => Err(format!("{key:?} should be {value}, but is {:?}", data.get(key))),
            None => Ok(()),
        }
    }
}

impl Model<'_> {
    fn read(&mut self, log: &[Event]) -> Result<(), String> {
        for event in log {
            self.event(event)
                .map_err(|problem| format!("event {} ({}): {problem}", event.seq, event.kind))?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<(), String> {
        if self.ended {
            return Err("comes after the end of the run".to_owned());
        }
        let data = event.data.as_ref().map(|data| data.value()).unwrap_or_default();
        if event.kind == EventType::TimerSet {
            self.set_at.push(data["at"].clone());
        }
        if let Some(expected) = self.expected.pop_front() {
            self.ended = event.kind.is_terminal();
            return expected.check(event, &data);
        }
        if self.closing && !event.kind.is_terminal() {
            return Err("events were rejected, but the run hasn't ended".to_owned());
        }
        let timer = || data["timer"].as_u64().map(|timer| timer as usize).unwrap_or(usize::MAX);
        match event.kind {
            EventType::FlowStart => self.start(&data),
            EventType::StateChanged if self.transition == 0 => {
                self.begin();
                self.event(event)
            }
            EventType::EventReceived => self.receive(&data),
            EventType::TimerFired => {
                if !self.armed.remove(&timer()) {
                    return Err("this timer isn't set".to_owned());
                }
                self.inbox.push_back(Turn::Timer(timer()));
                self.advance();
                Ok(())
            }
            EventType::TimerCancelled => self.miss(timer(), &data),
            EventType::FlowPaused | EventType::FlowResumed => {
                self.paused = event.kind == EventType::FlowPaused;
                if !self.paused {
                    self.advance();
                }
                Ok(())
            }
            EventType::EventRejected => self.close(&data),
            EventType::FlowCompleted | EventType::FlowFailed | EventType::FlowCancelled => {
                self.cut(event, &data)
            }
            EventType::StepStarted
            | EventType::StepCompleted
            | EventType::StepRetry
            | EventType::StepFailed => self.attempt(event, &data),
            EventType::Log | EventType::State => Ok(()),
            _ => Err("nothing explains this event".to_owned()),
        }
    }

    fn start(&mut self, data: &Value) -> Result<(), String> {
        self.input = data["input"].clone();
        let given = self.program.script.starts_of(self.run);
        let repeats = self
            .program
            .script
            .ops
            .iter()
            .any(|timed| matches!(timed.op, ClientOp::Retry { into, .. } if into == self.run));
        if !repeats && !given.into_iter().any(|start| start.input.value() == self.input) {
            return Err(format!("the run has the input {}, which no start gave it", self.input));
        }
        match self.legacy.take() {
            Some(legacy) => self.take_over(legacy),
            None if data.get("startAt").is_none() => self.begin(),
            None => {}
        }
        Ok(())
    }

    fn receive(&mut self, data: &Value) -> Result<(), String> {
        let letter = Letter {
            name: data["name"].as_str().unwrap_or_default().to_owned(),
            id: data["eventId"].as_str().unwrap_or_default().to_owned(),
            payload: data["payload"].clone(),
            user: data["userId"].clone(),
            roles: texts(&data["roles"]),
        };
        let number = self.letters.len() as u32 + 1;
        if data["number"].as_u64() != Some(number.into()) {
            return Err(format!("it should have number {number}"));
        }
        if self.letters.values().any(|before| before.id == letter.id) {
            return Err(format!("{} was already accepted", letter.id));
        }
        let sent = self.program.script.ops.iter().any(|timed| match &timed.op {
            ClientOp::Send { run, event, payload, id, sender, .. } => {
                let user = sender.user.as_ref().map_or(Value::Null, |user| json!(user));
                (*run, event, &payload.value(), &sender.roles, user)
                    == (self.run, &letter.name, &letter.payload, &letter.roles, letter.user.clone())
                    && id.as_ref() == Some(&letter.id)
            }
            _ => false,
        });
        if !sent {
            return Err(format!("nobody sent {letter:?}"));
        }
        let Some(schema) = self.definition.accepts.get(&letter.name) else {
            return Err("the machine doesn't have this event".to_owned());
        };
        if schema.is_some() && letter.payload.get("n").is_none() {
            return Err("its payload doesn't match its schema".to_owned());
        }
        let ways: Vec<_> =
            self.machine.states.iter().filter_map(|state| state.on.get(&letter.name)).flatten().collect();
        if !ways.iter().any(|way| turns::allows(way, &letter.roles)) {
            return Err("no state would ever accept it from its sender".to_owned());
        }
        self.letters.insert(number, letter);
        self.inbox.push_back(Turn::Event(number));
        self.advance();
        Ok(())
    }

    /// A timer was found too late.
    fn miss(&mut self, timer: usize, data: &Value) -> Result<(), String> {
        let Some((state, at)) = self.timers.get(timer).copied() else {
            return Err("there is no such timer".to_owned());
        };
        let definition = &self.machine.states[state].after[at];
        if data["reason"] != "missed" || definition.missed == Missed::Fire || !self.armed.remove(&timer) {
            return Err("nothing cancels this timer".to_owned());
        }
        if definition.missed == Missed::Restart && matches!(definition.when, When::In(_)) {
            self.arm(timer, None);
        }
        self.advance();
        Ok(())
    }

    /// Somebody ends the run: whoever waits is told first.
    fn close(&mut self, data: &Value) -> Result<(), String> {
        let waiting = self.waiting_events();
        if data["code"] != "ended"
            || waiting.first().map(|number| json!(number)).as_ref() != Some(&data["number"])
        {
            return Err(format!("nothing rejects this event; {waiting:?} are pending"));
        }
        self.turn_all_down();
        self.expected.pop_front();
        self.closing = true;
        Ok(())
    }

    fn cut(&mut self, event: &Event, data: &Value) -> Result<(), String> {
        let by_hand = data.get("by").is_some();
        let cut = match event.kind {
            EventType::FlowCancelled => Cut::Cancelled,
            EventType::FlowCompleted if by_hand => Cut::CompletedByHand,
            EventType::FlowFailed if by_hand => Cut::FailedByHand,
            EventType::FlowFailed if data["code"] == "timeout" => Cut::OutOfTime,
            _ => return Err("nothing ends the run here".to_owned()),
        };
        check_cut_of(self.program, self.run, self.definition, cut)?;
        if !self.waiting_events().is_empty() {
            return Err("the run ended, but pending events weren't rejected".to_owned());
        }
        self.over = Some(Over::Cut { busy: self.current.is_some() });
        self.last = Some(self.stands());
        self.give_up_turn();
        self.ended = true;
        Ok(())
    }

    /// What the attempts of actions say is what the program has them do.
    fn attempt(&mut self, event: &Event, data: &Value) -> Result<(), String> {
        let name = event.step_name.as_deref().unwrap_or_default();
        let Some(action) = self.definition.steps.iter().position(|step| step.name == name) else {
            return Err(format!("there is no action {name:?}"));
        };
        if self.phases[action] != Phase::Live {
            return Err(format!("action {name:?} is {:?}", self.phases[action]));
        }
        let lost = data.get("cause").is_some();
        match event.kind {
            EventType::StepStarted => return Ok(()),
            EventType::StepRetry if lost => return Ok(()),
            _ => {}
        }
        let definition = &self.definition.steps[action];
        if !lost {
            let tries = self.tries[action];
            let act = self.program.act_in(self.run, self.transition, action as u32, tries);
            let code = data["code"].as_str().map(str::to_owned);
            let ending = TryEnding::of(definition, &act, code.as_deref() == Some("timeout"));
            let expected = match &ending.code {
                None => EventType::StepCompleted,
                Some(code) if is_repeated(definition, code.as_deref(), ending.may_retry, tries) => {
                    EventType::StepRetry
                }
                Some(_) => EventType::StepFailed,
            };
            if event.kind != expected || ending.code.is_some_and(|expected| expected != code) {
                return Err(format!("try {tries} of action {name:?} should end with {expected}"));
            }
            self.tries[action] += u32::from(event.kind != EventType::StepCompleted);
        }
        match event.kind {
            EventType::StepCompleted => self.phases[action] = Phase::Completed,
            EventType::StepFailed => self.fail(action),
            _ => return Ok(()),
        }
        self.advance();
        Ok(())
    }

    /// Nothing is under way any more.
    fn rest(&self, at_rest: bool) -> Result<(), String> {
        if let Some(expected) = self.expected.front() {
            return Err(format!("the log ends, but {} should follow", expected.kind));
        }
        if self.closing && !self.ended {
            return Err("events were rejected, but the run hasn't ended".to_owned());
        }
        if self.ended || !at_rest {
            return Ok(());
        }
        let live = self.phases.iter().position(|phase| *phase == Phase::Live);
        match live {
            _ if self.transition == 0 => Err("the machine never started".to_owned()),
            Some(action) => {
                Err(format!("action {:?} was triggered but never ended", self.definition.steps[action].name))
            }
            None if !self.armed.is_empty() => Err(format!("timers {:?} are set but never fired", self.armed)),
            None => Ok(()),
        }
    }
}

fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}
