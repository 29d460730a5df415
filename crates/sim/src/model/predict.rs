//! The prediction: for every step the fates that are allowed, and for the run the ways to end.
//!
//! It computes two closures from scratch: what happens for sure, and what may happen. Without chance, they're the same.

use std::collections::{BTreeMap, BTreeSet};

use flowline_core::Status;
use flowline_core::definition::{Definition, OnFailure, StepDefinition, Subscribes};
use serde_json::Value;

use super::{Observed, StepFate, counts_as_done, holds, satisfied};
use crate::program::{Condition, Doing, ScriptedAttempt, ScriptedOutcome, SimProgram, weight};

/// What is allowed to become of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prediction {
    pub fates: BTreeMap<String, BTreeSet<StepFate>>,
    /// Emitted whatever happens, and emitted if it happens so.
    pub emitted: (BTreeSet<String>, BTreeSet<String>),
    pub status: BTreeSet<Status>,
    /// The codes of each step's failed tries, if it gets that far.
    pub tries: BTreeMap<String, Vec<Option<String>>>,
    /// Something may end the run, or stop it, before all has happened that would.
    pub may_stop: bool,
}

/// What a step does once it is triggered.
#[derive(Debug, Clone, Default)]
struct Own {
    fates: BTreeSet<StepFate>,
    /// Emitted if it is triggered at all.
    emits: BTreeSet<String>,
    may_emit: BTreeSet<String>,
    tries: Vec<Option<String>>,
}

/// What has happened so far, as a closure sees it.
#[derive(Debug, Clone, Default, PartialEq)]
struct World {
    triggered: BTreeSet<String>,
    emitted: BTreeSet<String>,
    done: BTreeSet<String>,
}

pub fn predict(program: &SimProgram, run: usize, observed: &Observed) -> Prediction {
    let Some(version) = program.version(run) else { return Prediction::default() };
    let flow = version.definition();
    let own: BTreeMap<&str, Own> = flow
        .steps
        .iter()
        .enumerate()
        .map(|(at, step)| {
            let condition = version.conditions[at].as_ref();
            let verdicts = verdicts(flow, step, condition, observed);
            (step.name.as_str(), own(program, run, (at as u32, step), verdicts, observed))
        })
        .collect();
    let sure = closure(flow, observed, &own, true);
    let may = closure(flow, observed, &own, false);
    let fatal = |step: &&StepDefinition| step.on_failure == OnFailure::Fail;
    let fails = |step: &&StepDefinition| own[step.name.as_str()].fates.contains(&StepFate::Failed);
    let may_fail =
        flow.steps.iter().filter(|s| may.triggered.contains(&s.name)).filter(fatal).any(|s| fails(&s));
    let must_fail = flow.steps.iter().filter(fatal).any(|step| {
        sure.triggered.contains(&step.name)
            && own[step.name.as_str()].fates == BTreeSet::from([StepFate::Failed])
    });
    let stops = flow.fail_fast && may_fail;
    let fates = flow.steps.iter().map(|step| {
        let may_run = may.triggered.contains(&step.name);
        let runs = sure.triggered.contains(&step.name) && !stops;
        let mut fates = if may_run { own[step.name.as_str()].fates.clone() } else { BTreeSet::new() };
        if !runs {
            fates.insert(StepFate::Untriggered);
        }
        if stops {
            fates.insert(StepFate::Stopped);
            // A try that fails after the stop is not repeated.
            fates.extend((may_run && !own[step.name.as_str()].tries.is_empty()).then_some(StepFate::Failed));
        }
        (step.name.clone(), fates)
    });
    let mut status = BTreeSet::new();
    if !must_fail {
        status.insert(Status::Completed);
    }
    if may_fail {
        status.insert(Status::Failed);
    }
    Prediction {
        fates: fates.collect(),
        emitted: (sure.emitted, may.emitted),
        status,
        tries: own.iter().map(|(step, own)| ((*step).to_owned(), own.tries.clone())).collect(),
        may_stop: stops || observed.cut.is_some(),
    }
}

impl Prediction {
    pub(super) fn check(&self, flow: &Definition, observed: &Observed) -> Result<(), String> {
        let under_way = !observed.ended() || observed.cut.is_some();
        for step in &flow.steps {
            let fate = observed.fate(&step.name);
            let allowed = &self.fates[&step.name];
            let fits = if fate == StepFate::Open { under_way } else { allowed.contains(&fate) };
            if !fits {
                return Err(format!("step {:?} is {fate:?}; allowed: {allowed:?}", step.name));
            }
            self.check_tries(&step.name, fate, observed)?;
        }
        let (sure, may) = &self.emitted;
        if let Some(event) = observed.emitted.difference(may).next() {
            return Err(format!("{event:?} was emitted, but nothing should have emitted it"));
        }
        if !self.may_stop
            && !under_way
            && let Some(event) = sure.difference(&observed.emitted).next()
        {
            return Err(format!("{event:?} was never emitted"));
        }
        match observed.status {
            Some(status) if observed.cut.is_none() && !self.status.contains(&status) => {
                Err(format!("the run is {status}; allowed: {:?}", self.status))
            }
            _ => Ok(()),
        }
    }

    /// Tries fail with the codes and as often as the program says, unless something stops them.
    fn check_tries(&self, step: &str, fate: StepFate, observed: &Observed) -> Result<(), String> {
        let (none, lost) = (Vec::new(), observed.lost.contains(step));
        let expected = &self.tries[step];
        let found = observed.tries.get(step).unwrap_or(&none);
        let whole = matches!(fate, StepFate::Completed | StepFate::Failed) && !self.may_stop && !lost;
        let inherited = observed.inherited.contains_key(step);
        let fits = if whole { found == expected } else { expected.starts_with(found) };
        if fits || inherited {
            return Ok(());
        }
        Err(format!(
            "the attempts of step {step:?} failed with {found:?}, but should have failed with {expected:?}"
        ))
    }
}

/// Everything that happens, or may happen: gone over until nothing is added.
fn closure(flow: &Definition, observed: &Observed, own: &BTreeMap<&str, Own>, sure: bool) -> World {
    let mut world = World { emitted: observed.received.clone(), ..World::default() };
    for (step, emits) in &observed.inherited {
        world.emitted.extend(emits.iter().cloned());
        world.triggered.insert(step.clone());
        world.done.insert(step.clone());
    }
    loop {
        let before = world.clone();
        for step in &flow.steps {
            let inherited = observed.inherited.contains_key(&step.name);
            let now = satisfied(step, &|e| before.emitted.contains(e), &|s| before.done.contains(s));
            if inherited || !now {
                continue;
            }
            let own = &own[step.name.as_str()];
            world.triggered.insert(step.name.clone());
            let ends_well = |fate: &StepFate| {
                *fate == StepFate::Completed
                    || *fate == StepFate::Failed && step.on_failure == OnFailure::Continue
            };
            let done = if sure { own.fates.iter().all(ends_well) } else { own.fates.iter().any(ends_well) };
            world.done.extend(done.then(|| step.name.clone()));
            world.emitted.extend(if sure { own.emits.clone() } else { own.may_emit.clone() });
        }
        if world == before {
            return world;
        }
    }
}

/// What a step does if it is triggered: its condition, then try after try.
fn own(
    program: &SimProgram,
    run: usize,
    (at, step): (u32, &StepDefinition),
    verdicts: BTreeSet<Verdict>,
    observed: &Observed,
) -> Own {
    let mut own = Own::default();
    if observed.inherited.contains_key(&step.name) {
        own.fates.insert(StepFate::Completed);
        return own;
    }
    if verdicts.contains(&Verdict::Holds) {
        play(program, run, (at, step), observed, &mut own);
    }
    if verdicts.contains(&Verdict::Fails) {
        own.fates.insert(StepFate::Unwanted);
    }
    if verdicts.contains(&Verdict::Errs) {
        own.fates.insert(StepFate::Failed);
        let erred = vec![Some("condition".to_owned())];
        if verdicts.len() == 1 || observed.tries.get(&step.name) == Some(&erred) {
            own.tries = erred;
        }
    }
    if verdicts.len() > 1 {
        own.emits.clear();
    }
    own
}

fn play(
    program: &SimProgram,
    run: usize,
    (at, step): (u32, &StepDefinition),
    observed: &Observed,
    own: &mut Own,
) {
    let seen = observed.tries.get(&step.name);
    for tries in 0.. {
        let act = program.act(run, at, tries);
        let late_in_log =
            seen.and_then(|codes| codes.get(tries as usize)) == Some(&Some("timeout".to_owned()));
        let ending = TryEnding::of(step, &act, late_in_log);
        let now = act.doings.iter().filter_map(|(_, doing)| match doing {
            Doing::EmitNow(name, _) if step.published().any(|event| event == name) => Some(name.clone()),
            _ => None,
        });
        let now: Vec<String> = now.collect();
        own.may_emit.extend(now.iter().cloned());
        // An attempt that was cut off may not have come to its emits.
        if !ending.cut_off {
            own.emits.extend(now);
        }
        match ending.code {
            None => {
                let emits = published(step, &act);
                own.emits.extend(emits.iter().cloned());
                own.may_emit.extend(emits);
                own.fates.insert(StepFate::Completed);
                break;
            }
            Some(code) => {
                own.tries.push(code.clone());
                if !is_repeated(step, code.as_deref(), ending.may_retry, tries) {
                    own.fates.insert(StepFate::Failed);
                    break;
                }
            }
        }
    }
    if observed.lost.contains(&step.name) {
        own.fates = BTreeSet::from([StepFate::Failed]);
        own.emits.clear();
    }
}

/// Whether a try that failed with this code, after so many others, is followed by one more.
pub(super) fn is_repeated(step: &StepDefinition, code: Option<&str>, may_retry: bool, tries: u32) -> bool {
    let named = |codes: &[String]| code.is_some_and(|code| codes.iter().any(|named| named == code));
    may_retry
        && tries + 1 < step.retry.attempts
        && (step.retry.only.is_empty() || named(&step.retry.only))
        && !named(&step.retry.except)
}

/// How a try ends.
pub(super) struct TryEnding {
    /// The code that it fails with; none where it succeeds.
    pub(super) code: Option<Option<String>>,
    pub(super) may_retry: bool,
    /// By a time-out that the program did not foresee.
    cut_off: bool,
}

impl TryEnding {
    pub(super) fn of(step: &StepDefinition, act: &ScriptedAttempt, late_in_log: bool) -> TryEnding {
        let failed = |code: Option<&str>, may_retry: bool| TryEnding {
            code: Some(code.map(str::to_owned)),
            may_retry,
            cut_off: false,
        };
        let declared = |name: &str| step.published().any(|event| event == name);
        let refused =
            act.doings.iter().any(|(_, doing)| matches!(doing, Doing::EmitNow(name, _) if !declared(name)));
        if refused {
            return failed(Some("emit_refused"), false);
        }
        if step.timeout.is_some_and(|timeout| act.takes > timeout) {
            return failed(Some("timeout"), true);
        }
        if late_in_log && step.timeout.is_some() {
            return TryEnding { cut_off: true, ..failed(Some("timeout"), true) };
        }
        match &act.outcome {
            ScriptedOutcome::Failed { code, .. } => failed(code.as_deref(), !act.outcome.is_fatal()),
            ScriptedOutcome::Done { emits, .. } => {
                // In the order in which they are checked: the first that is wrong gives the code.
                for (name, payload) in emits {
                    if !declared(name) {
                        return failed(Some("undeclared_emit"), false);
                    }
                    let described = step.emits.get(name).is_some_and(Option::is_some);
                    if described && !payload.value().is_object() {
                        return failed(Some("schema"), false);
                    }
                }
                TryEnding { code: None, may_retry: false, cut_off: false }
            }
        }
    }
}

fn published(step: &StepDefinition, act: &ScriptedAttempt) -> Vec<String> {
    let ScriptedOutcome::Done { emits, .. } = &act.outcome else { return Vec::new() };
    emits.iter().map(|(name, _)| name.clone()).chain(step.returns.clone()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Holds,
    Fails,
    Errs,
}

/// What a condition can come to. It sees the events that were there when its step was triggered.
fn verdicts(
    flow: &Definition,
    step: &StepDefinition,
    condition: Option<&Condition>,
    observed: &Observed,
) -> BTreeSet<Verdict> {
    let says = |holds: bool| if holds { Verdict::Holds } else { Verdict::Fails };
    let n = observed.input.get("n").and_then(Value::as_i64);
    let read = |test: &dyn Fn(i64) -> bool| n.map_or(Verdict::Errs, |n| says(test(n)));
    let one = match condition {
        None => Verdict::Holds,
        Some(Condition::Broken) => Verdict::Errs,
        Some(Condition::InputOver(than)) => read(&|n| n > *than),
        Some(Condition::InputIs(what)) => read(&|n| n == *what),
        Some(Condition::Given(holds)) => says(*holds),
        Some(Condition::EventOver(event, than)) => {
            let holds_now = says(weight(event) > *than);
            match triggered_at(flow, step, observed) {
                Some(at) if observed.emitted_at(event).is_some_and(|emitted| emitted <= at) => holds_now,
                Some(_) => Verdict::Errs,
                None if always_there(step, event) => holds_now,
                None => return BTreeSet::from([holds_now, Verdict::Errs]),
            }
        }
        Some(Condition::Unknown) => return BTreeSet::from([Verdict::Holds, Verdict::Fails, Verdict::Errs]),
    };
    BTreeSet::from([one])
}

/// The number of the event that brought the last of what a step waits for; none where that has not come.
fn triggered_at(flow: &Definition, step: &StepDefinition, observed: &Observed) -> Option<u64> {
    let leaves = step.subscribes.iter().flat_map(Subscribes::leaves);
    let mut moments: Vec<u64> = leaves
        .filter_map(|leaf| match leaf {
            Subscribes::Event(name) => observed.emitted_at(name),
            Subscribes::Step(name) => observed.ended_at(name),
            _ => None,
        })
        .collect();
    moments.sort_unstable();
    moments.into_iter().find(|&now| {
        let emitted = |event: &str| observed.emitted_at(event).is_some_and(|at| at <= now);
        let done = |name: &str| {
            counts_as_done(flow, observed, name) && observed.ended_at(name).is_some_and(|at| at <= now)
        };
        satisfied(step, &emitted, &done)
    })
}

/// Whether a step cannot be triggered before this event has come.
fn always_there(step: &StepDefinition, event: &str) -> bool {
    let without = |want: &Subscribes| holds(want, &|name| name != event, &|_| true);
    step.subscribes.as_ref().is_some_and(|want| !without(want))
}
