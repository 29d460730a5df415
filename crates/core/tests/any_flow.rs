//! Any flow under any schedule: what must hold whatever the definition and whatever order things happen in.
//!
//! `scenario` checks each decision against the fold, the bytes, the jobs and a repeated delivery. Here a model that
//! knows only the definition and the log says, by its own reading of `subscribes`, which steps should have been
//! triggered and whether the run may go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::scenario::{Came, EPOCH, Scenario, failure};
use flowline_core::decide::{AttemptFailure, DecideInput, Known, Moment, Retryable, decide};
use flowline_core::definition::{Definition, OnFailure, Runner, StepDefinition, Subscribes};
use flowline_core::limits::Limits;
use flowline_core::run::Phase;
use flowline_core::{EventType, Plan, RunId, RunState};
use proptest::collection::vec;
use proptest::prelude::*;

const OUTSIDE: [&str; 2] = ["x0", "x1"];
/// Two emits for each step; a step waits only for steps before it, so there are no circles.
const EMITS: [&str; 2] = ["a", "b"];

fn emit(step: usize, which: usize) -> String {
    format!("e{step}{}", EMITS[which])
}

/// Something to wait for, by numbers that are brought into range when the flow is built.
#[derive(Debug, Clone)]
enum Part {
    Emit(usize, usize),
    Step(usize),
    Outside(usize),
    Any(Vec<Part>),
    All(Vec<Part>),
}

#[derive(Debug, Clone)]
struct Shape {
    wants: Vec<Part>,
    condition: usize,
    attempts: u32,
    goes_on: bool,
}

/// One thing that happens: what, to which of the candidates, and which emits.
type Happening = (u8, usize, usize);

fn part() -> impl Strategy<Value = Part> {
    let leaf = prop_oneof![
        4 => (0usize..8, 0usize..2).prop_map(|(step, which)| Part::Emit(step, which)),
        2 => (0usize..8).prop_map(Part::Step),
        1 => (0usize..2).prop_map(Part::Outside),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![vec(inner.clone(), 1..4).prop_map(Part::Any), vec(inner, 1..4).prop_map(Part::All)]
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    (vec(part(), 0..4), 0usize..8, 1u32..4, any::<bool>())
        .prop_map(|(wants, condition, attempts, goes_on)| Shape { wants, condition, attempts, goes_on })
}

fn subscribes(part: &Part, before: usize) -> Subscribes {
    let all = |parts: &[Part]| parts.iter().map(|part| subscribes(part, before)).collect();
    match part {
        Part::Emit(step, which) => Subscribes::Event(emit(step % before, *which)),
        Part::Step(step) => Subscribes::Step(format!("s{}", step % before)),
        Part::Outside(which) => Subscribes::Event(OUTSIDE[*which].to_owned()),
        Part::Any(parts) => Subscribes::Any(all(parts)),
        Part::All(parts) => Subscribes::All(all(parts)),
    }
}

fn flow(shapes: &[Shape], fail_fast: bool) -> Definition {
    let mut definition = Definition::new("any");
    definition.fail_fast = fail_fast;
    definition.accepts = OUTSIDE.iter().map(|name| ((*name).to_owned(), None)).collect();
    for (at, shape) in shapes.iter().enumerate() {
        let mut step = StepDefinition::new(&format!("s{at}"), Runner::Function("f".to_owned()));
        step.emits = (0..2).map(|which| (emit(at, which), None)).collect();
        if at > 0 && !shape.wants.is_empty() {
            step.subscribes =
                Some(Subscribes::All(shape.wants.iter().map(|part| subscribes(part, at)).collect()));
        }
        step.condition = match shape.condition {
            0 => Some("input.n > 1".to_owned()),
            1 => Some("input.n == 1 && size(events) >= 0".to_owned()),
            2 => Some("input.missing".to_owned()),
            _ => None,
        };
        step.retry.attempts = shape.attempts;
        step.on_failure = if shape.goes_on { OnFailure::Continue } else { OnFailure::Fail };
        definition.steps.push(step);
    }
    definition
}

/// What the log alone says of a run.
struct Seen {
    emitted: BTreeSet<String>,
    /// Completed or failed, by step, with whether it completed.
    settled: BTreeMap<String, bool>,
    /// Why it was skipped.
    skipped: BTreeMap<String, String>,
    tried: BTreeSet<String>,
}

impl Seen {
    fn of(run: &Scenario) -> Seen {
        let mut seen = Seen {
            emitted: BTreeSet::new(),
            settled: BTreeMap::new(),
            skipped: BTreeMap::new(),
            tried: BTreeSet::new(),
        };
        for event in &run.log {
            let data = event.data.as_ref().map(|data| data.value()).unwrap_or_default();
            let step = event.step_name.as_deref().unwrap_or_default().to_owned();
            match event.kind {
                EventType::Emit => {
                    let name = data["name"].as_str().unwrap().to_owned();
                    assert!(seen.emitted.insert(name), "emitted twice");
                }
                EventType::StepCompleted | EventType::StepFailed => {
                    let before = seen.settled.insert(step, event.kind == EventType::StepCompleted);
                    assert_eq!(before, None, "settled twice");
                }
                EventType::StepSkipped => {
                    let reason = data["reason"].as_str().unwrap().to_owned();
                    assert_eq!(seen.skipped.insert(step, reason), None, "skipped twice");
                }
                EventType::StepStarted | EventType::StepRetry => drop(seen.tried.insert(step)),
                _ => {}
            }
        }
        seen
    }

    fn holds(&self, want: &Subscribes, flow: &Definition, also: &BTreeSet<&str>) -> bool {
        match want {
            Subscribes::Event(name) => self.emitted.contains(name) || also.contains(name.as_str()),
            Subscribes::Step(name) => match self.settled.get(name) {
                Some(completed) => *completed || flow.step(name).unwrap().on_failure == OnFailure::Continue,
                None => false,
            },
            Subscribes::All(parts) => parts.iter().all(|part| self.holds(part, flow, also)),
            Subscribes::Any(parts) => parts.iter().any(|part| self.holds(part, flow, also)),
        }
    }

    fn satisfied(&self, step: &StepDefinition, flow: &Definition, also: &BTreeSet<&str>) -> bool {
        step.subscribes.as_ref().is_none_or(|want| self.holds(want, flow, also))
    }

    /// Whether any choice of events from outside would trigger a step that was never triggered.
    fn could_go_on(&self, flow: &Definition, untriggered: &[&StepDefinition]) -> bool {
        let choices = [vec![], vec!["x0"], vec!["x1"], vec!["x0", "x1"]];
        choices.iter().any(|choice| {
            let also = choice.iter().copied().collect();
            untriggered.iter().any(|step| self.satisfied(step, flow, &also))
        })
    }
}

/// Compares the run with the model.
fn agree(run: &Scenario) -> Result<(), TestCaseError> {
    let flow = &run.plan.definition;
    let seen = Seen::of(run);
    let failed = |step: &StepDefinition| {
        seen.settled.get(&step.name) == Some(&false) && step.on_failure == OnFailure::Fail
    };
    let failing = flow.steps.iter().any(failed);
    let stopping = flow.fail_fast && failing;
    let live = run.live();
    let ended = run.state.ended.is_some();
    let mut untriggered = Vec::new();
    for step in &flow.steps {
        let reason = seen.skipped.get(&step.name).map(String::as_str);
        let triggered = live.contains(&step.name)
            || seen.settled.contains_key(&step.name)
            || seen.tried.contains(&step.name)
            || reason == Some("condition");
        if triggered {
            prop_assert!(seen.satisfied(step, flow, &BTreeSet::new()), "{} ran too early", step.name);
        } else if reason != Some("fail_fast") {
            untriggered.push(step);
        }
        if ended {
            let places = [seen.settled.contains_key(&step.name), reason.is_some()];
            prop_assert_eq!(places.iter().filter(|place| **place).count(), 1, "{} is left open", step.name);
        }
    }
    if !stopping {
        for step in &untriggered {
            prop_assert!(!seen.satisfied(step, flow, &BTreeSet::new()), "{} was forgotten", step.name);
        }
    }
    let may_go_on = !live.is_empty() || (!stopping && seen.could_go_on(flow, &untriggered));
    prop_assert_eq!(ended, !may_go_on, "ended or hanging\n{}", run.transcript);
    if ended {
        let kind = if failing { EventType::FlowFailed } else { EventType::FlowCompleted };
        prop_assert_eq!(run.log.last().unwrap().kind, kind);
    }
    Ok(())
}

fn happen(run: &mut Scenario, (what, pick, mask): Happening) {
    let live = run.live();
    let outside = OUTSIDE[pick % 2];
    match what {
        10 => return drop(run.send(outside, "1")),
        11 => return drop(if run.state.paused { run.resume() } else { run.pause() }),
        12 => return drop(run.apply(DecideInput::Revisit)),
        13 => {
            let step = (pick % run.plan.steps.len()) as u32;
            let attempt = run.state.step(step).attempt.wrapping_sub(1 + mask as u32 % 2);
            let name = run.plan.step(step).name.to_string();
            let came = run.done_at(&name, attempt, "1", &[]);
            assert!(!matches!(came, Came::Decided(_)), "an attempt that is over was applied: {came:?}");
            return;
        }
        _ => {}
    }
    if live.is_empty() {
        return;
    }
    let step = &live[pick % live.len()];
    let at: usize = step[1..].parse().unwrap();
    let names: Vec<String> =
        (0..2).filter(|which| mask >> which & 1 == 1).map(|which| emit(at, which)).collect();
    let emits: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    match what {
        0..=4 => drop(run.done(step, "1", &emits)),
        5 => drop(run.fail(step, "x")),
        6 => drop(run.fail_with(step, AttemptFailure { retry: Retryable::Never, ..failure("never") })),
        7 => drop(run.lose(step)),
        8 => drop(run.release(step)),
        9 => drop(run.emit_now(step, &emit(at, mask % 2), "2")),
        14 => drop(run.done(step, "1", &[("undeclared", "1")])),
        _ => drop(run.claim(step)),
    }
}

/// Completes whatever is left, then sends what may come from outside, until the run ends.
fn drain(run: &mut Scenario) -> Result<(), TestCaseError> {
    for _ in 0..200 {
        if run.state.ended.is_some() {
            return Ok(());
        }
        let live = run.live();
        if live.is_empty() {
            let before = run.log.len();
            OUTSIDE.iter().for_each(|name| drop(run.send(name, "1")));
            prop_assert!(run.log.len() > before, "nothing can move this run\n{}", run.transcript);
        } else {
            happen(run, (0, 0, 3));
        }
        agree(run)?;
    }
    Err(TestCaseError::fail(format!("the run does not end\n{}", run.transcript)))
}

fn settings() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn every_run_ends_once_with_every_step_accounted_for(
        shapes in vec(shape(), 1..8),
        fail_fast in any::<bool>(),
        n in 0u8..3,
        schedule in vec((0u8..17, 0usize..8, 0usize..4), 0..40),
    ) {
        let mut run = Scenario::new(flow(&shapes, fail_fast));
        run.start(&format!(r#"{{"n":{n}}}"#));
        agree(&run)?;
        for happening in schedule {
            happen(&mut run, happening);
            run.wait(10);
            agree(&run)?;
        }
        drain(&mut run)?;
        let ended = run.log.clone();
        for what in 0..17 {
            happen(&mut run, (what, 1, 1));
        }
        prop_assert_eq!(run.log, ended, "an ended run was changed");
    }

    #[test]
    fn a_cancelled_run_stays_as_it_was(
        shapes in vec(shape(), 1..8),
        schedule in vec((0u8..17, 0usize..8, 0usize..4), 0..30),
        at in 0usize..30,
    ) {
        let mut run = Scenario::new(flow(&shapes, false));
        run.start(r#"{"n":1}"#);
        let mut cancelled = None;
        for (now, happening) in schedule.into_iter().enumerate() {
            if now == at && run.state.ended.is_none() {
                run.cancel();
                cancelled = Some(run.log.clone());
            }
            happen(&mut run, happening);
        }
        if let Some(log) = cancelled {
            prop_assert_eq!(run.log, log);
        }
    }

    #[test]
    fn the_order_of_independent_completions_does_not_matter(
        shapes in vec(shape(), 1..8),
        failing in vec(any::<bool>(), 8),
        picks in vec(0usize..8, 40),
    ) {
        // Without `any`, a step's condition sees the same events whatever came first.
        fn joined(part: Part) -> Part {
            match part {
                Part::Any(parts) | Part::All(parts) => Part::All(parts.into_iter().map(joined).collect()),
                leaf => leaf,
            }
        }
        let joined = |shape: Shape| Shape { wants: shape.wants.into_iter().map(joined).collect(), ..shape };
        let shapes: Vec<Shape> = shapes.into_iter().map(joined).collect();
        let plan = Arc::new(Plan::build(flow(&shapes, false)).unwrap());
        let outcome = |picks: &[usize]| {
            let mut run = Scenario::planned(plan.clone());
            run.start(r#"{"n":1}"#);
            OUTSIDE.iter().for_each(|name| drop(run.send(name, "1")));
            for pick in picks.iter().chain([&0; 40]) {
                let live = run.live();
                if live.is_empty() {
                    break;
                }
                let at = pick % live.len();
                let step: usize = live[at][1..].parse().unwrap();
                happen(&mut run, (if failing[step] { 6 } else { 0 }, at, 3));
            }
            assert!(run.state.ended.is_some());
            (run.status(), run.steps(Phase::Completed), run.steps(Phase::Failed), run.steps(Phase::Skipped))
        };
        prop_assert_eq!(outcome(&picks), outcome(&[]));
    }

    #[test]
    fn a_repeated_run_never_repeats_what_was_completed(
        shapes in vec(shape(), 1..8),
        schedule in vec((0u8..10, 0usize..8, 0usize..4), 0..40),
    ) {
        let mut first = Scenario::new(flow(&shapes, false));
        first.start(r#"{"n":1}"#);
        schedule.into_iter().for_each(|happening| happen(&mut first, happening));
        drain(&mut first)?;
        let mut run = Scenario::planned(first.plan.clone());
        let inherited = first.inheritance();
        run.start_with(flowline_core::decide::Start { inherited, ..crate::scenario::start_of(r#"{"n":1}"#) });
        let done = first.steps(Phase::Completed);
        prop_assert!(run.live().iter().all(|step| !done.contains(step)));
        prop_assert!(done.iter().all(|step| run.phase(step) == Phase::Completed));
        for _ in 0..200 {
            if run.state.ended.is_some() {
                break;
            }
            if run.live().is_empty() {
                OUTSIDE.iter().for_each(|name| drop(run.send(name, "1")));
            }
            happen(&mut run, (0, 0, 3));
        }
        prop_assert!(run.state.ended.is_some(), "the run does not end\n{}", run.transcript);
    }

    #[test]
    fn damaged_bytes_are_refused_or_mean_what_they_say(
        shapes in vec(shape(), 1..8),
        schedule in vec((0u8..10, 0usize..8, 0usize..4), 0..20),
        damage in vec((0usize..64, any::<u8>()), 1..4),
        cut in 0usize..3,
    ) {
        let mut run = Scenario::new(flow(&shapes, false));
        run.start(r#"{"n":1}"#);
        schedule.into_iter().for_each(|happening| happen(&mut run, happening));
        let mut bytes = run.state.encode();
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        if let Ok(state) = RunState::decode(&run.plan, &bytes) {
            prop_assert_eq!(RunState::decode(&run.plan, &state.encode()), Ok(state.clone()));
            let id = RunId::new("r").unwrap();
            let (now, limits) = (EPOCH + Duration::from_secs(1), Limits::default());
            let moment = Moment { run: &id, created_at: EPOCH, now, limits };
            decide(&run.plan, &state, &DecideInput::Revisit, &Known::default(), moment);
        }
    }
}
