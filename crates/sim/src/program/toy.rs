//! Programs around a machine of the user's: its own states and expressions, its actions replaced by stubs, and somebody who
//! sends it events.
//!
//! What is sent is chosen when its time comes, from what the state that the machine is in answers, with a role that the
//! transition asks for and a payload that fits its schema. In the end every transition of the state is tried in turn, so that a
//! machine which stands still then cannot be moved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::decide::Sender;
use flowline_core::definition::{Definition, Machine, Runner, Transition, When};
use flowline_core::expr::Expr;
use flowline_core::plan::PlanError;
use flowline_core::{Json, Plan, Time};
use serde_json::{Value, json};

use super::flow::FUNCTION;
use super::sample::{Literals, value};
use super::script::{ClientOp, ClientScript, Timed};
use super::stub::{literals, shorten, temper};
use super::{SimProgram, Version, mix, one_in, pick};
use crate::shared::BEGINNING;

/// All timers, time-outs and pauses of a machine together, as they are played; see the flows' own.
const LONGEST: Duration = Duration::from_secs(120);
/// How often the transitions of the last state are tried before it counts as stuck.
const ROUNDS: usize = 4;
/// Users that send, no more than there are rounds in the end.
const USERS: usize = 2 * ROUNDS;
/// Events of one seed at most.
const EVENTS: usize = 80;

/// A machine, from which each seed makes a program.
#[derive(Debug)]
pub(super) struct Toy {
    definition: Definition,
    plan: Arc<Plan>,
    literals: Literals,
    /// What expressions read of the input and of payloads, and of these what must be a time.
    input: Fields,
    payload: Fields,
}

#[derive(Debug, Default)]
struct Fields {
    /// Each with what it is compared with.
    read: BTreeMap<String, Literals>,
    times: BTreeSet<String>,
}

impl Toy {
    pub(super) fn new(definition: Definition) -> Result<Toy, PlanError> {
        let plan = Plan::build(stubbed(&definition))?;
        let machine = definition.machine.clone().unwrap_or_default();
        let texts = expressions(&definition, &machine);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut toy = Toy {
            literals: literals(&texts),
            input: Fields::default(),
            payload: Fields::default(),
            plan: Arc::new(plan),
            definition,
        };
        toy.read(&machine, &texts);
        Ok(toy)
    }

    /// Looks for what has to be made up.
    fn read(&mut self, machine: &Machine, texts: &[&str]) {
        for text in texts {
            let Ok(expr) = Expr::parse(text) else { continue };
            let near = literals(&[text]);
            // Without a `context` the input is what the context begins with.
            let paths: &[&str] = if machine.context.is_empty() { &["input", "context"] } else { &["input"] };
            for path in paths {
                self.input.add(expr.members_of(&[path]).into_iter().map(|member| member.name), &near);
            }
            self.payload.add(expr.members_of(&["payload"]).into_iter().map(|member| member.name), &near);
        }
        for due in machine.states.iter().flat_map(|state| &state.after) {
            let When::At(text) = &due.when else { continue };
            let Ok(expr) = Expr::parse(text) else { continue };
            self.input.times.extend(expr.members_of(&["input"]).into_iter().map(|member| member.name));
            for key in expr.members_of(&["context"]) {
                self.time(machine, &key.name);
            }
        }
    }

    /// This key of the context is read as a time: so is what it is made of.
    fn time(&mut self, machine: &Machine, key: &str) {
        let of = |text: &String, path: &str| {
            let members = Expr::parse(text).map(|expr| expr.members_of(&[path])).unwrap_or_default();
            members.into_iter().map(|member| member.name)
        };
        match machine.context.get(key) {
            Some(text) => self.input.times.extend(of(text, "input")),
            None if machine.context.is_empty() => drop(self.input.times.insert(key.to_owned())),
            None => {}
        }
        for text in transitions(machine).filter_map(|each| each.set.get(key)) {
            self.payload.times.extend(of(text, "payload"));
            self.input.times.extend(of(text, "input"));
        }
    }

    pub(super) fn program(self: Arc<Toy>, seed: u64, input: Option<Json>) -> SimProgram {
        let mut rng = Rng::with_seed(mix(seed, &[6]));
        let schema = self.definition.input.as_ref();
        let input = input.unwrap_or_else(|| self.made_up(&mut rng, schema, &self.input));
        let temper = temper(&mut rng, &self.plan.definition);
        let script = self.script(&mut rng, input);
        let version = Version { plan: self.plan.clone(), conditions: Vec::new(), machine: None };
        SimProgram { toy: Some(self), ..SimProgram::new(seed, vec![version], script, temper) }
    }

    fn script(&self, rng: &mut Rng, input: Json) -> ClientScript {
        let mut ops = vec![Timed::only_start(input)];
        let mut at = Duration::from_millis(1);
        let gap = pick(rng, &[20, 1_000, 1_000, 8_000, 40_000]);
        let mut play = |ops: &mut Vec<Timed>, rng: &mut Rng, gap: u64, aim: Try| {
            at += Duration::from_millis(rng.u64(1..=gap));
            let number = ops.len();
            ops.push(Timed { at, op: ClientOp::Play(Play { run: 0, number, luck: rng.u64(..), aim }) });
        };
        for _ in 0..pick(rng, &[2, 5, 10, 20]) {
            play(&mut ops, rng, gap, Try::Any);
        }
        // Sometimes nobody sends any more.
        if !one_in(rng, 4) {
            let most = self.definition.machine.iter().flat_map(|machine| &machine.states);
            let most = most.map(|state| state.on.values().map(Vec::len).sum::<usize>()).max().unwrap_or(0);
            for turn in 0..(most.max(1) * USERS).min(EVENTS) {
                play(&mut ops, rng, 3_000, Try::Next(turn));
            }
        }
        ClientScript::of(ops)
    }

    /// A value of a schema, with all that expressions read of it where the schema lets it be there.
    fn made_up(&self, rng: &mut Rng, schema: Option<&Value>, fields: &Fields) -> Json {
        let mut made = schema.map_or(Value::Null, |schema| value(schema, &self.literals, rng));
        let open =
            schema.is_none_or(|schema| schema.get("additionalProperties") != Some(&Value::Bool(false)));
        if made.is_null()
            && !fields.read.is_empty()
            && schema.is_none_or(|schema| schema.get("type").is_none())
        {
            made = json!({});
        }
        let Value::Object(object) = &mut made else { return made.into() };
        for (name, near) in &fields.read {
            let kind = |property: &Value| property.get("type").and_then(Value::as_str).map(str::to_owned);
            let property = schema.and_then(|schema| schema.get("properties")?.get(name));
            if fields.times.contains(name) && (property.is_some() || open) {
                let due = Time::from_millis(BEGINNING + rng.i64(0..=LONGEST.as_millis() as i64));
                let number = matches!(property.and_then(kind).as_deref(), Some("integer" | "number"));
                let due = if number { json!(due.millis()) } else { json!(due.to_string()) };
                object.insert(name.clone(), due);
            } else if property.is_none() && open {
                object.insert(name.clone(), guess(rng, near));
            }
        }
        made.into()
    }
}

impl Fields {
    fn add(&mut self, names: impl Iterator<Item = String>, near: &Literals) {
        for name in names {
            let known = self.read.entry(name).or_default();
            known.numbers.extend(&near.numbers);
            known.texts.extend(near.texts.iter().cloned());
        }
    }
}

/// A value for what nothing describes: near what it is compared with.
fn guess(rng: &mut Rng, near: &Literals) -> Value {
    let mut values: Vec<Value> =
        near.numbers.iter().flat_map(|n| [json!(n - 1), json!(n), json!(n + 1)]).collect();
    values.extend(near.texts.iter().map(|text| json!(text)));
    // It may be compared with nothing, or with another value of the same expression.
    values.extend([json!(rng.i64(0..100)), json!(true), json!(false)]);
    pick(rng, &values)
}

/// What a client sends to a machine, chosen when it does.
#[derive(Debug, Clone)]
pub struct Play {
    pub run: usize,
    /// Names the event.
    pub number: usize,
    luck: u64,
    aim: Try,
}

#[derive(Debug, Clone, Copy)]
enum Try {
    /// Mostly something that the present state answers.
    Any,
    /// The transitions of the present state in turn.
    Next(usize),
}

impl SimProgram {
    /// What to send to a machine that is in this state: the event, its payload, and who sends it.
    pub(crate) fn choose(&self, play: &Play, state: Option<&str>) -> Option<(String, Json, Sender)> {
        let toy = self.toy.as_ref()?;
        let machine = toy.definition.machine.as_ref()?;
        let mut rng = Rng::with_seed(play.luck);
        let stray = matches!(play.aim, Try::Any) && one_in(&mut rng, 12);
        let here = machine.states.iter().filter(|known| stray || Some(known.name.as_str()) == state);
        let ways: Vec<(&String, &Transition)> = here
            .flat_map(|state| {
                state.on.iter().flat_map(|(event, all)| all.iter().map(move |each| (event, each)))
            })
            .collect();
        let (event, way) = match play.aim {
            _ if ways.is_empty() => return None,
            Try::Any => pick(&mut rng, &ways),
            Try::Next(turn) => ways[turn % ways.len()],
        };
        let schema = toy.definition.accepts.get(event).and_then(Option::as_ref);
        let payload = toy.made_up(&mut rng, schema, &toy.payload);
        // Now and then it is somebody who may not.
        let stranger = matches!(play.aim, Try::Any) && one_in(&mut rng, 12);
        let roles =
            if way.roles.is_empty() || stranger { Vec::new() } else { vec![pick(&mut rng, &way.roles)] };
        let users = users_of(&self.script.starts_of(0).next()?.input.value());
        let user = match play.aim {
            Try::Any => pick(&mut rng, &users),
            // Each transition by everybody in turn.
            Try::Next(turn) => users[turn / ways.len() % users.len()].clone(),
        };
        Some((event.clone(), payload, Sender { user: Some(user), roles, sent_by: None }))
    }
}

/// Who sends to a run with this input: strangers, and whoever it names, whom a guard may ask for.
pub(crate) fn users_of(input: &Value) -> Vec<String> {
    let mut users = vec!["user-1".to_owned(), "user-2".to_owned()];
    let named = input.as_object().into_iter().flat_map(|object| object.values()).filter_map(Value::as_str);
    for name in named {
        if users.len() < USERS && !users.iter().any(|user| user == name) {
            users.push(name.to_owned());
        }
    }
    users
}

/// The machine as it is played: nothing runs, nothing is refused for its shape, and time is short.
fn stubbed(definition: &Definition) -> Definition {
    let mut definition = definition.clone();
    (definition.input, definition.output) = (None, None);
    definition.accepts.values_mut().for_each(|schema| *schema = None);
    definition.steps.iter_mut().for_each(|action| action.runner = Runner::Function(FUNCTION.to_owned()));
    shorten(&mut definition, LONGEST);
    definition
}

fn transitions(machine: &Machine) -> impl Iterator<Item = &Transition> {
    let on = machine.states.iter().flat_map(|state| state.on.values().flatten());
    on.chain(machine.states.iter().flat_map(|state| state.after.iter().map(|timer| &timer.then)))
}

/// Every expression that a run evaluates.
fn expressions(definition: &Definition, machine: &Machine) -> Vec<String> {
    let mut texts: Vec<String> = machine.context.values().cloned().collect();
    for each in transitions(machine) {
        texts.extend(each.condition.iter().chain(each.set.values()).cloned());
    }
    let timers = machine.states.iter().flat_map(|state| &state.after);
    texts.extend(timers.filter_map(|timer| match &timer.when {
        When::At(text) => Some(text.clone()),
        When::In(_) => None,
    }));
    texts.extend(definition.steps.iter().filter_map(|action| action.condition.clone()));
    texts
}
