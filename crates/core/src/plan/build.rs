//! A plan from a definition: names become numbers, expressions and schemas are compiled, steps linked by what they wait for.

use std::collections::BTreeMap;

use super::{Bits, Plan, PlanError, PlanEvent, PlanMachine, PlanStep, Want, Wants, machine};
use crate::call::CallTemplate;
use crate::definition::{Definition, Runner, StepDefinition, Subscribes};
use crate::expr::Expr;
use crate::limits;
use crate::request::RequestTemplate;
use crate::schema::Schema;

impl Plan {
    pub fn build(definition: Definition) -> Result<Plan, PlanError> {
        let fail = |place: &str, problem: String| PlanError {
            flow: definition.flow.clone(),
            place: place.to_owned(),
            problem,
        };
        let names = Names::of(&definition);
        let mut schemas = Schemas::default();
        let mut events = names.events.keys().map(|name| PlanEvent::named(name)).collect::<Vec<_>>();
        for (name, schema) in &definition.accepts {
            let schema = schemas.of(schema);
            events[names.events[name.as_str()] as usize].accepted = Some(schema);
        }
        let mut steps = Vec::with_capacity(definition.steps.len());
        for (index, step) in definition.steps.iter().enumerate() {
            let index = index as u32;
            let planned = PlanStep::build(step, &names, &mut schemas)
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
                "no step starts with the run; remove `subscribes` from one".to_owned(),
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
        let input = schemas.of(&definition.input);
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
}

impl PlanEvent {
    fn named(name: &str) -> PlanEvent {
        PlanEvent { name: name.into(), listeners: Vec::new(), emitters: Vec::new(), accepted: None }
    }
}

impl PlanStep {
    fn build(step: &StepDefinition, names: &Names, schemas: &mut Schemas) -> Result<PlanStep, String> {
        let mut emits = BTreeMap::new();
        for (name, schema) in &step.emits {
            emits.insert(names.events[name.as_str()], schemas.of(schema));
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

/// The schemas of a definition, each compiled once: generated flows repeat them.
#[derive(Default)]
struct Schemas(BTreeMap<String, Schema>);

impl Schemas {
    fn of(&mut self, schema: &Option<serde_json::Value>) -> Option<Schema> {
        let schema = schema.as_ref()?;
        let compiled = self.0.entry(schema.to_string()).or_insert_with(|| Schema::of_registered(schema));
        Some(compiled.clone())
    }
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
