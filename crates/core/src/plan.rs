//! A checked definition, indexed for `decide`: steps and events by number, expressions and schemas compiled.
//!
//! A plan is built once per definition and shared. Its numbers (a step's index, an event's index) are what the run
//! state is dense by, so they follow from the definition alone and never change for a given hash.

mod machine;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::call::CallTemplate;
use crate::definition::{Definition, Runner, StepDefinition, Subscribes};
use crate::event::Slot;
use crate::expr::Expr;
use crate::json::{self, Json};
use crate::limits;
use crate::request::RequestTemplate;
use crate::run::RunState;
use crate::schema::Schema;

pub use machine::{PlanMachine, PlanState, PlanTimer, PlanTransition, PlanWhen};

/// A definition ready to be decided on.
#[derive(Debug)]
pub struct Plan {
    pub definition: Definition,
    pub hash: Arc<str>,
    pub flow: Arc<str>,
    pub steps: Vec<PlanStep>,
    /// Every event that is emitted or accepted, by name.
    pub events: Vec<PlanEvent>,
    pub input: Option<Schema>,
    pub output: Option<Expr>,
    /// Steps that start with the run.
    pub entries: Vec<u32>,
    /// Steps that can be triggered before all their events have come: an `any` is in their subscription.
    pub choosers: Vec<u32>,
    /// The states of a machine, whose actions are the steps.
    pub machine: Option<PlanMachine>,
    by_name: BTreeMap<Arc<str>, u32>,
}

#[derive(Debug)]
pub struct PlanStep {
    pub name: Arc<str>,
    pub queue: Arc<str>,
    /// What a worker must be able to run.
    pub need: Arc<str>,
    pub condition: Option<Expr>,
    /// What an `http` step sends. Boxed, for most steps have none.
    pub request: Option<Box<RequestTemplate>>,
    /// What a `start` or `send` step asks of the engine.
    pub call: Option<Box<CallTemplate>>,
    /// What this step may emit, with the compiled schema.
    pub emits: BTreeMap<u32, Option<Schema>>,
    pub returns: Option<u32>,
    /// Events that its subscription mentions, in the order of the file: the keys of its input.
    pub inputs: Vec<u32>,
    /// Its place in [`Plan::choosers`].
    pub chooser: Option<u32>,
    /// Steps that wait for this one by `step:NAME`.
    pub followers: Vec<u32>,
    /// Actions that go before this one, where they are asked for together.
    pub after: Vec<u32>,
    /// The state that a machine moves to when this action is out of attempts.
    pub on_error: Option<u32>,
    /// Nothing waits for this step or for what it publishes.
    pub leaf: bool,
    /// Its result is read again when the run ends.
    pub keeps_result: bool,
    wants: Wants,
}

#[derive(Debug)]
pub struct PlanEvent {
    pub name: Arc<str>,
    /// Steps whose subscription mentions it.
    pub listeners: Vec<u32>,
    pub emitters: Vec<u32>,
    /// Whether it may come from outside, and what it must look like.
    pub accepted: Option<Option<Schema>>,
}

#[derive(Debug)]
enum Wants {
    /// The start of the run.
    Start,
    /// A transition of a machine.
    Transition,
    /// All of these events and steps. Compared word by word, so that a join of thousands costs little.
    All {
        events: Bits,
        steps: Vec<u32>,
    },
    Nested(Want),
}

#[derive(Debug)]
enum Want {
    Event(u32),
    Step(u32),
    All(Vec<Want>),
    Any(Vec<Want>),
}

/// A set of small numbers, dense.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    pub fn new(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(64)])
    }

    pub fn insert(&mut self, n: u32) {
        self.0[n as usize / 64] |= 1 << (n % 64);
    }

    pub fn contains(&self, n: u32) -> bool {
        self.0.get(n as usize / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    fn holds_all(&self, of: &Bits) -> bool {
        of.0.iter().zip(&self.0).all(|(want, have)| have & want == *want)
    }

    /// Its words, low bits first.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

/// Why a definition cannot be planned. A definition that passed `definition::check` always can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("flow {flow:?}, {place}: {problem}")]
pub struct PlanError {
    pub flow: String,
    pub place: String,
    pub problem: String,
}

impl Plan {
    pub fn build(definition: Definition) -> Result<Plan, PlanError> {
        let fail = |place: &str, problem: String| PlanError {
            flow: definition.flow.clone(),
            place: place.to_owned(),
            problem,
        };
        let names = Names::of(&definition);
        let mut events = names.events.keys().map(|name| PlanEvent::named(name)).collect::<Vec<_>>();
        for (name, schema) in &definition.accepts {
            let schema = compile(schema).map_err(|problem| fail(&format!("accepts.{name}"), problem))?;
            events[names.events[name.as_str()] as usize].accepted = Some(schema);
        }
        let mut steps = Vec::with_capacity(definition.steps.len());
        for (index, step) in definition.steps.iter().enumerate() {
            let index = index as u32;
            let planned = PlanStep::build(step, &names)
                .map_err(|problem| fail(&format!("steps.{}", step.name), problem))?;
            for event in &planned.inputs {
                events[*event as usize].listeners.push(index);
            }
            for event in step.published() {
                events[names.events[event] as usize].emitters.push(index);
            }
            steps.push(planned);
        }
        link(&mut steps, &events, &definition);
        let entries: Vec<u32> =
            (0..steps.len() as u32).filter(|&s| matches!(steps[s as usize].wants, Wants::Start)).collect();
        let mut choosers = Vec::new();
        for (at, step) in steps.iter_mut().enumerate() {
            if matches!(step.wants, Wants::Nested(_)) && !step.inputs.is_empty() {
                step.chooser = Some(choosers.len() as u32);
                choosers.push(at as u32);
            }
        }
        let machine =
            names.machine(&definition, &mut steps).map_err(|(place, problem)| fail(&place, problem))?;
        if entries.is_empty() && definition.accepts.is_empty() && machine.is_none() {
            return Err(fail(
                "steps",
                "no step starts with the run; leave `subscribes` out of one".to_owned(),
            ));
        }
        if let Some(place) = too_wide(&steps, &events, &entries) {
            let limit = limits::TRIGGERS;
            return Err(fail(
                &place,
                format!("triggers more than {limit} steps at once; put a step in between"),
            ));
        }
        let output = match &definition.output {
            Some(text) => Some(Expr::parse(text).map_err(|problem| fail("output", problem.to_string()))?),
            None => None,
        };
        let keeps_all = output.as_ref().is_some_and(|expr| expr.reads().results);
        for step in &mut steps {
            step.keeps_result = match (&machine, &output) {
                // Those that come after it are given it.
                (Some(_), _) => !step.followers.is_empty(),
                (None, Some(_)) => keeps_all,
                (None, None) => step.leaf,
            };
        }
        let input = compile(&definition.input).map_err(|problem| fail("input", problem))?;
        let by_name = steps.iter().enumerate().map(|(at, step)| (step.name.clone(), at as u32)).collect();
        Ok(Plan {
            by_name,
            hash: definition.hash().into(),
            flow: definition.flow.as_str().into(),
            steps,
            events,
            input,
            output,
            entries,
            choosers,
            machine,
            definition,
        })
    }

    pub fn step(&self, index: u32) -> &PlanStep {
        &self.steps[index as usize]
    }

    /// The part of the definition that a step came from.
    pub fn step_definition(&self, index: u32) -> &StepDefinition {
        &self.definition.steps[index as usize]
    }

    pub fn step_index(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Events are sorted by name.
    pub fn event_index(&self, name: &str) -> Option<u32> {
        self.events.binary_search_by(|event| (*event.name).cmp(name)).ok().map(|at| at as u32)
    }

    /// Whether what a step waits for has happened.
    pub fn satisfied(&self, step: u32, state: &RunState) -> bool {
        match &self.step(step).wants {
            Wants::Start => true,
            Wants::Transition => false,
            Wants::All { events, steps } => {
                state.emitted.holds_all(events) && steps.iter().all(|&s| self.satisfied_by_step(s, state))
            }
            Wants::Nested(want) => {
                self.holds(want, &|e| state.emitted.contains(e), &|s| self.satisfied_by_step(s, state))
            }
        }
    }

    /// Whether a step's subscription could be satisfied if these events and steps came to pass.
    pub fn satisfiable(&self, step: u32, event: &dyn Fn(u32) -> bool, done: &dyn Fn(u32) -> bool) -> bool {
        match &self.step(step).wants {
            Wants::Start => true,
            Wants::Transition => false,
            Wants::All { steps, .. } => {
                self.step(step).inputs.iter().all(|&e| event(e)) && steps.iter().all(|&s| done(s))
            }
            Wants::Nested(want) => self.holds(want, event, done),
        }
    }

    fn holds(&self, want: &Want, event: &dyn Fn(u32) -> bool, done: &dyn Fn(u32) -> bool) -> bool {
        match want {
            Want::Event(e) => event(*e),
            Want::Step(s) => done(*s),
            Want::All(parts) => parts.iter().all(|part| self.holds(part, event, done)),
            Want::Any(parts) => parts.iter().any(|part| self.holds(part, event, done)),
        }
    }

    /// `step:NAME` holds after completion, or after a failure that lets the run continue; never after a skip.
    pub fn satisfied_by_step(&self, step: u32, state: &RunState) -> bool {
        use crate::definition::OnFailure;
        use crate::run::Phase;
        match state.step(step).phase {
            Phase::Completed => true,
            Phase::Failed => self.step_definition(step).on_failure == OnFailure::Continue,
            _ => false,
        }
    }

    /// Puts a step's input together: the run's input as it is, or an object keyed by event name; for an action, what it is
    /// about. Gives the addresses that are missing from `payloads` otherwise.
    pub fn input_of(
        &self,
        step: u32,
        state: &RunState,
        payloads: &BTreeMap<Slot, Json>,
    ) -> Result<Json, Vec<Slot>> {
        if self.machine.is_some() {
            return machine::action_input(self, step, state, payloads);
        }
        let slots: Vec<Slot> = match self.is_entry(step) {
            true => vec![Slot::Input],
            false => state.given(self, step).map(Slot::Emit).collect(),
        };
        let missing: Vec<Slot> = slots.iter().copied().filter(|slot| !payloads.contains_key(slot)).collect();
        if !missing.is_empty() {
            return Err(missing);
        }
        if self.is_entry(step) {
            return Ok(payloads[&Slot::Input].clone());
        }
        Ok(json::object(slots.iter().filter_map(|slot| match slot {
            Slot::Emit(event) => Some((&*self.events[*event as usize].name, payloads.get(slot))),
            _ => None,
        })))
    }

    pub fn is_entry(&self, step: u32) -> bool {
        matches!(self.step(step).wants, Wants::Start)
    }
}

impl PlanEvent {
    fn named(name: &str) -> PlanEvent {
        PlanEvent { name: name.into(), listeners: Vec::new(), emitters: Vec::new(), accepted: None }
    }
}

impl PlanStep {
    fn build(step: &StepDefinition, names: &Names) -> Result<PlanStep, String> {
        let mut emits = BTreeMap::new();
        for (name, schema) in &step.emits {
            let schema = compile(schema).map_err(|problem| format!("emits.{name}: {problem}"))?;
            emits.insert(names.events[name.as_str()], schema);
        }
        let returns = step.returns.as_deref().map(|name| names.events[name]);
        if let Some(event) = returns {
            emits.entry(event).or_insert(None);
        }
        let condition = match &step.condition {
            Some(text) => Some(Expr::parse(text).map_err(|problem| format!("if: {problem}"))?),
            None => None,
        };
        let request = match &step.runner {
            Runner::Http(request) => Some(Box::new(RequestTemplate::compile(request)?)),
            _ => None,
        };
        let call = CallTemplate::compile(&step.runner)?.map(Box::new);
        let (wants, inputs) = match &step.subscribes {
            None if names.of_machine => (Wants::Transition, Vec::new()),
            None => (Wants::Start, Vec::new()),
            Some(subscribes) => names.wants(subscribes)?,
        };
        Ok(PlanStep {
            name: step.name.as_str().into(),
            queue: step.queue.as_str().into(),
            need: need(&step.runner).into(),
            condition,
            request,
            call,
            emits,
            returns,
            inputs,
            chooser: None,
            followers: Vec::new(),
            after: Vec::new(),
            on_error: None,
            leaf: false,
            keeps_result: false,
            wants,
        })
    }
}

/// What a worker must be able to run for this runner.
fn need(runner: &Runner) -> String {
    match runner {
        Runner::Command(_) => "command".to_owned(),
        Runner::Http(_) => "http".to_owned(),
        Runner::Worker(_) => "remote".to_owned(),
        Runner::Function(name) => format!("function:{name}"),
        Runner::Start(_) => "start".to_owned(),
        Runner::Send(_) => "send".to_owned(),
    }
}

fn compile(schema: &Option<serde_json::Value>) -> Result<Option<Schema>, String> {
    schema.as_ref().map(Schema::compile).transpose()
}

/// The numbers of a definition's steps and events.
struct Names<'a> {
    events: BTreeMap<&'a str, u32>,
    steps: BTreeMap<&'a str, u32>,
    of_machine: bool,
}

impl<'a> Names<'a> {
    fn of(definition: &'a Definition) -> Names<'a> {
        let mut events: BTreeMap<&str, u32> = BTreeMap::new();
        let emitted = definition.steps.iter().flat_map(StepDefinition::published);
        for name in definition.accepts.keys().map(String::as_str).chain(emitted) {
            events.insert(name, 0);
        }
        for (index, number) in events.values_mut().enumerate() {
            *number = index as u32;
        }
        let steps =
            definition.steps.iter().enumerate().map(|(i, step)| (step.name.as_str(), i as u32)).collect();
        Names { events, steps, of_machine: definition.machine.is_some() }
    }

    /// The machine's part of a plan, and what its actions wait for.
    fn machine(
        &self,
        definition: &Definition,
        steps: &mut [PlanStep],
    ) -> Result<Option<PlanMachine>, (String, String)> {
        let Some(machine) = &definition.machine else { return Ok(None) };
        let numbers = machine::Numbers { events: &self.events, actions: &self.steps };
        let mut planned = PlanMachine::build(machine, &numbers)?;
        for (at, action) in definition.steps.iter().enumerate() {
            let fail = |problem: String| (format!("actions.{}", action.name), problem);
            for before in &action.after {
                let before = self.step(before).map_err(fail)?;
                steps[at].after.push(before);
                steps[before as usize].followers.push(at as u32);
            }
            if let Some(to) = &action.on_error {
                let found = machine.states.iter().position(|state| state.name == *to);
                let to = found.ok_or_else(|| fail(format!("there is no state {to:?}")))?;
                steps[at].on_error = Some(to as u32);
            }
            planned.reads_input |= steps[at].condition.as_ref().is_some_and(|expr| expr.reads().input);
        }
        Ok(Some(planned))
    }

    fn wants(&self, subscribes: &Subscribes) -> Result<(Wants, Vec<u32>), String> {
        let mut inputs = Vec::new();
        for leaf in subscribes.leaves() {
            if let Subscribes::Event(name) = leaf {
                let event = *self.events.get(name.as_str()).ok_or(format!("nothing emits {name:?}"))?;
                if !inputs.contains(&event) {
                    inputs.push(event);
                }
            }
        }
        let flat = match subscribes {
            Subscribes::All(parts) => {
                parts.iter().all(|p| matches!(p, Subscribes::Event(_) | Subscribes::Step(_)))
            }
            Subscribes::Event(_) | Subscribes::Step(_) => true,
            Subscribes::Any(_) => false,
        };
        if !flat {
            return Ok((Wants::Nested(self.want(subscribes)?), inputs));
        }
        let mut events = Bits::new(self.events.len());
        inputs.iter().for_each(|&event| events.insert(event));
        let mut steps = Vec::new();
        for leaf in subscribes.leaves() {
            if let Subscribes::Step(name) = leaf {
                steps.push(self.step(name)?);
            }
        }
        Ok((Wants::All { events, steps }, inputs))
    }

    fn want(&self, subscribes: &Subscribes) -> Result<Want, String> {
        let parts =
            |parts: &[Subscribes]| parts.iter().map(|part| self.want(part)).collect::<Result<Vec<_>, _>>();
        Ok(match subscribes {
            Subscribes::Event(name) => {
                Want::Event(*self.events.get(name.as_str()).ok_or(format!("nothing emits {name:?}"))?)
            }
            Subscribes::Step(name) => Want::Step(self.step(name)?),
            Subscribes::All(all) => Want::All(parts(all)?),
            Subscribes::Any(any) => Want::Any(parts(any)?),
        })
    }

    fn step(&self, name: &str) -> Result<u32, String> {
        self.steps.get(name).copied().ok_or(format!("there is no step {name:?}"))
    }
}

/// Fills in what follows from all steps together: followers and leaves.
fn link(steps: &mut [PlanStep], events: &[PlanEvent], definition: &Definition) {
    let index: BTreeMap<&str, usize> =
        definition.steps.iter().enumerate().map(|(i, step)| (step.name.as_str(), i)).collect();
    for (follower, step) in definition.steps.iter().enumerate() {
        for leaf in step.subscribes.iter().flat_map(Subscribes::leaves) {
            if let Subscribes::Step(name) = leaf
                && let Some(&at) = index.get(name.as_str())
                && !steps[at].followers.contains(&(follower as u32))
            {
                steps[at].followers.push(follower as u32);
            }
        }
    }
    for step in steps {
        step.leaf = step.followers.is_empty()
            && step.emits.keys().all(|&event| events[event as usize].listeners.is_empty());
    }
}

/// The place in the definition that could trigger more steps in one commit than a commit takes.
fn too_wide(steps: &[PlanStep], events: &[PlanEvent], entries: &[u32]) -> Option<String> {
    if entries.len() > limits::TRIGGERS {
        return Some("steps".to_owned());
    }
    let accepted = events.iter().find(|e| e.accepted.is_some() && e.listeners.len() > limits::TRIGGERS);
    if let Some(event) = accepted {
        return Some(format!("accepts.{}", event.name));
    }
    steps.iter().find_map(|step| {
        let listeners: usize = step.emits.keys().map(|&event| events[event as usize].listeners.len()).sum();
        (listeners + step.followers.len() > limits::TRIGGERS).then(|| format!("steps.{}", step.name))
    })
}
