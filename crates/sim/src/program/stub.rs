//! Programs around a flow of the user's: its own graph, its steps replaced by stubs.
//!
//! A stub takes some time, then succeeds with what its step declares or fails. Programs, schemas and the `output` are
//! left out: made-up data would break them and tell nothing about the flow. Conditions are kept where made-up input and
//! payloads give them something to read; where they do not, each seed guesses what the condition says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::definition::{Definition, Runner, Subscribes, TimerDefinition, When};
use flowline_core::expr::{Expr, GivenValues};
use flowline_core::plan::PlanError;
use flowline_core::{Json, Plan};
use serde_json::{Value, json};

use crate::report::longest_try;

use super::flow::FUNCTION;
use super::sample::{Literals, value};
use super::script::{ClientOp, ClientScript, Timed};
use super::toy::Toy;
use super::{Condition, SimProgram, Temper, Version, mix, one_in, pick};

/// Tries to make up an input that all conditions can read.
const TRIES: usize = 6;
/// All timeouts and delays of a flow together. In a flow with more, all are shortened by the same factor, which keeps their
/// order.
const LONGEST: Duration = Duration::from_secs(600);
/// A timer that is shortened stays this long: one that fires again and again would make an endless log.
const SHORTEST: Duration = Duration::from_millis(500);

/// A user's flow, from which each seed makes a program.
#[derive(Debug)]
pub struct Stub {
    definition: Definition,
    conditions: Vec<Option<Expr>>,
    literals: Literals,
    /// Members of the input that conditions read, where no schema says what it looks like.
    fields: Vec<String>,
    plans: BTreeMap<Vec<Option<bool>>, Arc<Plan>>,
    input: Option<Json>,
    /// Of a machine, which is played in another way.
    toy: Option<Arc<Toy>>,
}

/// A condition that made-up data could not settle, and what this program takes it to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guess {
    pub step: u32,
    pub holds: bool,
}

impl Stub {
    /// `input` is what every run gets; made up from the schema where there is none.
    pub fn new(definition: Definition, input: Option<Json>) -> Result<Stub, PlanError> {
        let toy = match definition.machine {
            Some(_) => Some(Arc::new(Toy::new(definition.clone())?)),
            None => None,
        };
        let plan = Plan::build(definition)?;
        let texts: Vec<&str> =
            plan.definition.steps.iter().filter_map(|step| step.condition.as_deref()).collect();
        let literals = literals(&texts);
        let fields = if plan.definition.input.is_some() { Vec::new() } else { fields(&texts) };
        let definition = plan.definition;
        let parse = |text: &String| Expr::parse(text).ok();
        let conditions =
            definition.steps.iter().map(|step| step.condition.as_ref().and_then(parse)).collect();
        Ok(Stub { definition, conditions, literals, fields, plans: BTreeMap::new(), input, toy })
    }

    /// The flow as the user wrote it.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The program of a seed.
    pub fn program(&mut self, seed: u64) -> Result<SimProgram, PlanError> {
        if let Some(toy) = &self.toy {
            return Ok(toy.clone().program(seed, self.input.clone()));
        }
        let mut rng = Rng::with_seed(mix(seed, &[2]));
        let payloads = self.payloads(&mut rng);
        let (input, verdicts) = self.make_up(&mut rng, &payloads);
        let mut guesses = Vec::new();
        let mut fixed = Vec::with_capacity(verdicts.len());
        let mut conditions = Vec::with_capacity(verdicts.len());
        for (step, verdict) in verdicts.into_iter().enumerate() {
            if verdict == Verdict::Unreadable {
                guesses.push(Guess { step: step as u32, holds: rng.bool() });
            }
            let guessed = guesses.last().filter(|guess| guess.step == step as u32).map(|guess| guess.holds);
            fixed.push(guessed);
            conditions.push(match verdict {
                Verdict::None => None,
                Verdict::Says(holds) => Some(Condition::Given(holds)),
                Verdict::Depends => Some(Condition::Unknown),
                Verdict::Unreadable => guessed.map(Condition::Given),
            });
        }
        let plan = self.plan(fixed)?;
        let temper = temper(&mut rng, &plan.definition);
        let script = script(&mut rng, &self.definition, input, &payloads);
        let version = Version { plan, conditions, machine: None };
        let payloads = Arc::new(payloads);
        Ok(SimProgram { payloads, guesses, ..SimProgram::new(seed, vec![version], script, temper) })
    }

    /// What each event carries in this program.
    fn payloads(&self, rng: &mut Rng) -> BTreeMap<String, Json> {
        let accepted = self.definition.accepts.iter();
        let emitted = self.definition.steps.iter().flat_map(|step| &step.emits);
        let mut payloads = BTreeMap::new();
        for (event, schema) in accepted.chain(emitted) {
            let value = schema.as_ref().map_or(json!({}), |schema| value(schema, &self.literals, rng));
            payloads.entry(event.clone()).or_insert_with(|| Json::from(value));
        }
        for event in self.definition.steps.iter().filter_map(|step| step.returns.as_ref()) {
            payloads.entry(event.clone()).or_insert_with(|| Json::from(json!({})));
        }
        payloads
    }

    /// An input, and what each condition says of it. A few are tried, to find one that all conditions can read.
    fn make_up(&self, rng: &mut Rng, payloads: &BTreeMap<String, Json>) -> (Json, Vec<Verdict>) {
        let mut best: Option<(usize, Json, Vec<Verdict>)> = None;
        for _ in 0..TRIES {
            let input = self.input.clone().unwrap_or_else(|| self.sample_input(rng));
            let verdicts: Vec<Verdict> =
                (0..self.conditions.len()).map(|step| self.verdict(step, &input, payloads)).collect();
            let unreadable = verdicts.iter().filter(|verdict| **verdict == Verdict::Unreadable).count();
            if best.as_ref().is_none_or(|(least, ..)| unreadable < *least) {
                best = Some((unreadable, input, verdicts));
            }
            if unreadable == 0 || self.input.is_some() {
                break;
            }
        }
        best.map_or_else(|| (Json::null(), Vec::new()), |(_, input, verdicts)| (input, verdicts))
    }

    fn sample_input(&self, rng: &mut Rng) -> Json {
        if let Some(schema) = &self.definition.input {
            return value(schema, &self.literals, rng).into();
        }
        let mut object = serde_json::Map::new();
        for field in &self.fields {
            let mut values = vec![Value::from(true), Value::from(false), Value::from(rng.i64(0..100))];
            values.extend(self.literals.numbers.iter().flat_map(|n| [json!(n - 1), json!(n), json!(n + 1)]));
            values.extend(self.literals.texts.iter().map(|text| json!(text)));
            object.insert(field.clone(), pick(rng, &values));
        }
        if object.is_empty() { Json::null() } else { Value::Object(object).into() }
    }

    fn verdict(&self, step: usize, input: &Json, payloads: &BTreeMap<String, Json>) -> Verdict {
        let Some(condition) = &self.conditions[step] else { return Verdict::None };
        let mut scope = GivenValues { input: Some(input.clone()), ..GivenValues::default() };
        let definition = &self.definition.steps[step];
        for leaf in definition.subscribes.iter().flat_map(Subscribes::leaves) {
            if let Subscribes::Event(event) = leaf
                && let Some(payload) = payloads.get(event)
            {
                scope.events.insert(event.clone(), payload.clone());
            }
        }
        let alternatives = definition.subscribes.as_ref().is_some_and(has_alternatives);
        match condition.test(&scope) {
            Err(_) => Verdict::Unreadable,
            // Which of its events are there when it is asked depends on which come first.
            Ok(_) if condition.reads().events && alternatives => Verdict::Depends,
            Ok(holds) => Verdict::Says(holds),
        }
    }

    /// The plan of the flow with stubs, where these conditions are fixed.
    fn plan(&mut self, fixed: Vec<Option<bool>>) -> Result<Arc<Plan>, PlanError> {
        if let Some(plan) = self.plans.get(&fixed) {
            return Ok(plan.clone());
        }
        let mut definition = self.definition.clone();
        (definition.input, definition.output) = (None, None);
        shorten(&mut definition, LONGEST);
        definition.accepts.values_mut().for_each(|schema| *schema = None);
        for (step, fixed) in definition.steps.iter_mut().zip(&fixed) {
            step.runner = Runner::Function(FUNCTION.to_owned());
            step.emits.values_mut().for_each(|schema| *schema = None);
            if let Some(holds) = fixed {
                step.condition = Some(holds.to_string());
            }
        }
        let plan = Arc::new(Plan::build(definition)?);
        self.plans.insert(fixed, plan.clone());
        Ok(plan)
    }
}

/// Scales the durations of a definition so that together they take at most `most`.
pub(super) fn shorten(definition: &mut Definition, most: Duration) {
    let timers = definition.machine.iter().flat_map(|machine| &machine.states).flat_map(|state| &state.after);
    let delay =
        |timer: &TimerDefinition| if let When::In(delay) = timer.when { delay.as_millis() } else { 0 };
    let delays: u128 = timers.map(delay).sum();
    let tries: u128 = definition.steps.iter().map(|step| longest_try(step).as_millis()).sum();
    let longest = definition.timeout.map_or(0, |timeout| timeout.as_millis()).max(tries).max(delays);
    if longest <= most.as_millis() {
        return;
    }
    let shorter = |duration: &mut Duration| {
        let ms = duration.as_millis() * most.as_millis() / longest;
        *duration = Duration::from_millis((ms as u64).max(1));
    };
    definition.timeout.iter_mut().for_each(shorter);
    for step in &mut definition.steps {
        let pauses = [&mut step.retry.delay, &mut step.retry.max_delay];
        step.timeout.iter_mut().chain(pauses).for_each(shorter);
    }
    let states = definition.machine.iter_mut().flat_map(|machine| &mut machine.states);
    for timer in states.flat_map(|state| &mut state.after) {
        if let When::In(delay) = &mut timer.when {
            let least = SHORTEST.min(*delay);
            shorter(delay);
            *delay = (*delay).max(least);
        }
    }
}

/// What a condition says of made-up data.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    /// There is none.
    None,
    Says(bool),
    /// On the order in which events come.
    Depends,
    Unreadable,
}

fn has_alternatives(subscribes: &Subscribes) -> bool {
    match subscribes {
        Subscribes::Event(_) | Subscribes::Step(_) => false,
        Subscribes::All(parts) => parts.iter().any(has_alternatives),
        Subscribes::Any(parts) => parts.len() > 1 || parts.iter().any(has_alternatives),
    }
}

/// In a third of the seeds nothing fails by itself, in another third one step does to the end, in the rest any may.
pub(super) fn temper(rng: &mut Rng, definition: &Definition) -> Temper {
    let steps = definition.steps.len() as u32;
    let tries: u32 = definition.steps.iter().map(|step| step.retry.attempts).sum();
    // All tries one after the other, on one slot, still come to an end.
    let most = (LONGEST / tries.max(1)).max(Duration::from_millis(1));
    let slowest = Duration::from_millis(pick(rng, &[500, 2_000, 10_000])).min(most);
    let calm = Temper { failing: 0, doomed: None, manners: super::Manners::Plain, slowest };
    match rng.u32(0..3) {
        0 => calm,
        1 => Temper { doomed: (steps > 0).then(|| rng.u32(0..steps)), ..calm },
        _ => Temper { failing: pick(rng, &[10, 25, 50]), ..calm },
    }
}

/// One run; events from outside come at any time, or never.
fn script(
    rng: &mut Rng,
    definition: &Definition,
    input: Json,
    payloads: &BTreeMap<String, Json>,
) -> ClientScript {
    let mut ops = vec![Timed::only_start(input)];
    for event in definition.accepts.keys() {
        if !one_in(rng, 5) {
            let within = pick(rng, &[100, 5_000, 60_000]);
            let at = Duration::from_millis(rng.u64(1..=within));
            let payload = payloads.get(event).cloned().unwrap_or_else(Json::null);
            ops.push(Timed { at, op: ClientOp::send(0, event.clone(), payload) });
        }
    }
    ClientScript::of(ops)
}

/// Numbers and texts that conditions mention.
pub(super) fn literals(conditions: &[&str]) -> Literals {
    let mut literals = Literals::default();
    for text in conditions {
        let mut rest = *text;
        while let Some(at) = rest.find(|c: char| c == '"' || c == '\'' || c.is_ascii_digit()) {
            let quote = rest.as_bytes()[at];
            let inside = &rest[at + 1..];
            if quote.is_ascii_digit() {
                let named = at > 0 && rest.as_bytes()[at - 1].is_ascii_alphanumeric();
                let digits = &rest[at..];
                let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
                literals.numbers.extend(digits[..end].parse::<i64>().ok().filter(|_| !named));
                rest = &digits[end..];
            } else {
                let end = inside.find(quote as char).unwrap_or(inside.len());
                literals.texts.push(inside[..end].to_owned());
                rest = inside.get(end + 1..).unwrap_or_default();
            }
        }
    }
    literals
}

/// The members of `input` that conditions name.
fn fields(conditions: &[&str]) -> Vec<String> {
    let mut fields = Vec::new();
    for text in conditions {
        for after in text.split("input.").skip(1) {
            let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
            let name = after[..end].to_owned();
            if !name.is_empty() && !fields.contains(&name) {
                fields.push(name);
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline_core::definition::{Format, read};

    fn stub(text: &str) -> Stub {
        let read =
            read("flow.yaml", text, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
        Stub::new(read.definition, None).unwrap()
    }

    #[test]
    fn conditions_on_a_described_input_are_kept_and_go_together() {
        let mut stub = stub(
            "flow: routes\ninput: { type: object, required: [method], properties: { method: { enum: [card, invoice] } } }\n\
             steps:\n  card: { command: [a], if: 'input.method == \"card\"' }\n  invoice: { command: [a], if: 'input.method == \"invoice\"' }\n",
        );
        for seed in 0..50 {
            let program = stub.program(seed).unwrap();
            assert_eq!(program.guesses, []);
            let says: Vec<_> = program.versions[0].conditions.clone();
            let given = |holds| Some(Condition::Given(holds));
            assert!(says == [given(true), given(false)] || says == [given(false), given(true)], "{says:?}");
        }
    }

    #[test]
    fn an_input_without_a_schema_is_made_up_from_what_conditions_read() {
        let mut stub = stub("flow: f\nsteps:\n  a: { command: [a], if: input.total > 1000 }\n");
        let says: Vec<_> =
            (0..100).map(|seed| stub.program(seed).unwrap().versions[0].conditions[0].clone()).collect();
        assert!(
            says.contains(&Some(Condition::Given(true))) && says.contains(&Some(Condition::Given(false)))
        );
    }

    #[test]
    fn a_condition_that_nothing_made_up_can_settle_is_guessed_both_ways() {
        let mut stub = stub(
            "flow: f\nsteps:\n  a: { command: [a], returns: done }\n  b: { command: [a], subscribes: done, if: events.done.deep.deeper > 3 }\n",
        );
        let guesses: Vec<Vec<Guess>> = (0..50).map(|seed| stub.program(seed).unwrap().guesses).collect();
        for holds in [true, false] {
            assert!(guesses.contains(&vec![Guess { step: 1, holds }]));
        }
    }

    #[test]
    fn long_times_are_shortened_alike() {
        let mut stub = stub(
            "flow: f\ntimeout: 10h\nsteps:\n  a: { command: [a], timeout: 1h, retry: { attempts: 2, delay: 1m, max_delay: 2h } }\n",
        );
        let program = stub.program(0).unwrap();
        let definition = &program.versions[0].plan.definition;
        let step = &definition.steps[0];
        assert_eq!(definition.timeout, Some(LONGEST));
        assert_eq!((step.timeout, step.retry.max_delay), (Some(LONGEST / 10), LONGEST / 5));
        assert_eq!(step.retry.delay, Duration::from_secs(1));
    }

    #[test]
    fn literals_are_found_in_conditions() {
        let found = literals(&["input.a1 > 30 && input.b == 'x y'", "events[\"e.2\"].n in [4, 5]"]);
        assert_eq!(found.numbers, [30, 4, 5]);
        assert_eq!(found.texts, ["x y", "e.2"]);
        assert_eq!(fields(&["input.a1 > 3 && has(input.b)"]), ["a1", "b"]);
    }
}
