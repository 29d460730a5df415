//! Prints what one decision costs as a flow grows: `cargo run --release -p flowline-core --example decide_cost`.
//!
//! A chain decides on one completion that triggers one step; a fan-out on one of many parallel completions; a join on
//! one of the events that a single step waits for. The state's copy and its bytes, which every decision makes, are
//! shown beside it: they are the part that must grow with the flow. Two decisions that don't grow follow: a start whose
//! input has a schema, and a completion whose event has a schema and sets off a step with an `if`.
//!
//! Arguments name the flows to decide, for counting instructions of one: `valgrind --tool=callgrind
//! --toggle-collect='flowline_core::decide::decide' …/decide_cost judged`.

// A benchmark reads the clock; the crate itself never does.
#![allow(clippy::disallowed_types)]

use std::hint::black_box;
use std::time::Instant;

use flowline_core::decide::{DecideInput, Decided, Known, Moment, Start, decide};
use flowline_core::definition::{Definition, Format, Runner, StepDefinition, Subscribes, read};
use flowline_core::limits::Limits;
use flowline_core::{Json, Plan, RunId, RunState, Time};

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
/// Parallel branches that one event triggers, within the limit on one commit.
const WIDE: usize = 900;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|wanted| wanted == name);
    println!("{:>8} {:>8} {:>12} {:>12} {:>12}", "flow", "steps", "decide ns", "copy ns", "encode ns");
    for size in SIZES {
        for (name, definition) in [("chain", chain(size)), ("fan-out", fan_out(size)), ("join", join(size))] {
            if !wanted(name) {
                continue;
            }
            let plan = Plan::build(definition).expect("a valid flow");
            let state = halfway(&plan);
            let Some(step) = state.live().find(|&step| leads_to_one(&plan, step)) else { continue };
            let input = done(&state, step);
            let rounds = 2_000_000 / (size + 100);
            let decided = time(rounds, || decide(&plan, &state, &input, &Known::default(), moment(&run())));
            let copied = time(rounds, || state.clone());
            let encoded = time(rounds, || state.encode());
            println!("{name:>8} {size:>8} {decided:>12} {copied:>12} {encoded:>12}");
        }
    }
    if wanted("judged") {
        judged();
    }
}

const ROUNDS: usize = 5_000;
const JUDGED: &str = r#"
flow: judged
input: &order
  type: object
  required: [id, total, lines]
  properties:
    id: { type: string, pattern: "^[a-z]+-[0-9]+$" }
    total: { type: number, minimum: 0 }
    lines: { type: array, items: { type: object, properties: { sku: { type: string }, count: { type: integer } } } }
steps:
  pay:
    function: f
    returns: order.paid
    emits: { order.paid: *order }
  ship:
    function: f
    subscribes: [order.paid]
    if: "events['order.paid'].total > 100 && events['order.paid'].lines.exists(line, line.count > 1)"
"#;

fn judged() {
    let read = read("judged.yaml", JUDGED, Format::Yaml).expect("a valid file");
    let plan = Plan::build(read.definition).expect("a valid flow");
    let order = Json::parse(
        r#"{"id": "order-7", "total": 120, "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}]}"#,
    )
    .expect("JSON");
    let start = DecideInput::Start(Box::new(Start::new(order.clone())));
    let empty = RunState::new(&plan);
    let begun = next(&plan, &empty, &start);
    let paid =
        DecideInput::Done { step: 0, attempt: begun.step(0).attempt, result: order, emits: Vec::new() };
    assert_eq!(next(&plan, &begun, &paid).live().count(), 1, "the condition holds");
    for (name, state, input) in [("start", &empty, &start), ("judged", &begun, &paid)] {
        let decided = time(ROUNDS, || decide(&plan, state, input, &Known::default(), moment(&run())));
        println!("{name:>8} {:>8} {decided:>12}", plan.steps.len());
    }
}

fn time<T>(rounds: usize, mut work: impl FnMut() -> T) -> u128 {
    let begun = Instant::now();
    for _ in 0..rounds {
        black_box(work());
    }
    begun.elapsed().as_nanos() / rounds as u128
}

fn run() -> RunId {
    RunId::new("run-1").expect("a run id")
}

fn moment(run: &RunId) -> Moment<'_> {
    Moment { run, created_at: Time::from_millis(0), now: Time::from_millis(1), limits: Limits::default() }
}

fn step(name: String, subscribes: Option<Vec<String>>, emits: Option<String>) -> StepDefinition {
    let mut step = StepDefinition::new(&name, Runner::Function("f".to_owned()));
    step.subscribes = subscribes.map(|all| Subscribes::All(all.into_iter().map(Subscribes::Event).collect()));
    step.returns = emits;
    step
}

fn flow(steps: Vec<StepDefinition>) -> Definition {
    Definition { steps, ..Definition::new("cost") }
}

fn chain(size: usize) -> Definition {
    let before = |at: usize| (at > 0).then(|| vec![format!("e{}", at - 1)]);
    flow((0..size).map(|at| step(format!("s{at}"), before(at), Some(format!("e{at}")))).collect())
}

/// Groups of parallel steps, each group set off by one step of a chain.
fn fan_out(size: usize) -> Definition {
    let source = |at: usize| match at {
        0 => None,
        at if at % WIDE == 0 => Some(vec![format!("e{}", at - WIDE)]),
        at => Some(vec![format!("e{}", at / WIDE * WIDE)]),
    };
    flow((0..size).map(|at| step(format!("s{at}"), source(at), Some(format!("e{at}")))).collect())
}

/// A fan-out whose every event the last step waits for.
fn join(size: usize) -> Definition {
    let mut definition = fan_out(size - 1);
    let all = (0..size - 1).map(|at| format!("e{at}")).collect();
    definition.steps.push(step("join".to_owned(), Some(all), None));
    definition
}

/// The state once half of the steps are completed.
fn halfway(plan: &Plan) -> RunState {
    let start = Box::new(Start::new(Json::null()));
    let mut state = next(plan, &RunState::new(plan), &DecideInput::Start(start));
    for _ in 0..plan.steps.len() / 2 {
        let Some(step) = state.live().next() else { break };
        state = next(plan, &state, &done(&state, step));
    }
    state
}

/// What it publishes sets off one step at most: else the cost is that of the steps triggered.
fn leads_to_one(plan: &Plan, step: u32) -> bool {
    plan.step(step).returns.is_none_or(|event| plan.events[event as usize].listeners.len() <= 1)
}

fn done(state: &RunState, step: u32) -> DecideInput {
    DecideInput::Done { step, attempt: state.step(step).attempt, result: Json::null(), emits: Vec::new() }
}

fn next(plan: &Plan, state: &RunState, input: &DecideInput) -> RunState {
    match decide(plan, state, input, &Known::default(), moment(&run())) {
        Decided::Decision(decision) => decision.state,
        other => panic!("{other:?}"),
    }
}
