//! What clients and operators do to the runs of a program, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::Json;
use flowline_core::decide::Sender;
use flowline_core::definition::Priority;

use super::machine::{EVENTS, ROLES};
use super::toy::Play;
use super::{Version, one_in, percent, pick, weight};

/// Operations in the order of their times.
#[derive(Debug, Clone, Default)]
pub struct ClientScript {
    pub ops: Vec<Timed>,
}

/// An operation, and when a client begins it, counted from the beginning of the simulation.
#[derive(Debug, Clone)]
pub struct Timed {
    pub at: Duration,
    pub op: ClientOp,
}

/// What a client does. Runs are numbered within the program; starts and retries say which run they create. Two starts with
/// one key make one run. An operation on a run that doesn't exist yet has no effect.
#[derive(Debug, Clone)]
pub enum ClientOp {
    /// Starts a run.
    Start(ScriptedStart),
    /// Sends an event. `id` identifies it if it's sent again; `None` makes one up on the spot. `fresh` if the id is new and
    /// nobody will repeat it.
    Send { run: usize, event: String, payload: Json, id: Option<String>, sender: Sender, fresh: bool },
    /// Pauses a run.
    Pause { run: usize },
    /// Resumes a run.
    Resume { run: usize },
    /// Cancels a run.
    Cancel { run: usize },
    /// An operator ends the run as completed.
    Complete { run: usize, result: Json },
    /// An operator ends the run as failed.
    Fail { run: usize, error: String },
    /// Retries a run, if it has ended, as another.
    Retry { run: usize, into: usize, from: Option<String> },
    /// Sends a machine an event that its current state handles.
    Play(Play),
    /// Pauses a queue.
    PauseQueue { queue: String },
    /// Resumes a queue.
    ResumeQueue { queue: String },
}

#[derive(Debug, Clone)]
pub struct ScriptedStart {
    pub run: usize,
    /// The definition, by its place in [`super::SimProgram::versions`].
    pub version: usize,
    pub input: Json,
    pub key: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub delay: Duration,
    pub priority: Priority,
}

impl Timed {
    /// Starts the only run of a program, at once.
    pub(super) fn only_start(input: Json) -> Timed {
        let start = ScriptedStart {
            run: 0,
            version: 0,
            input,
            key: None,
            labels: BTreeMap::new(),
            delay: Duration::ZERO,
            priority: Priority::Normal,
        };
        Timed { at: Duration::ZERO, op: ClientOp::Start(start) }
    }
}

impl ClientOp {
    /// An event for a flow.
    pub(super) fn send(run: usize, event: String, payload: Json) -> ClientOp {
        ClientOp::Send { run, event, payload, id: None, sender: Sender::default(), fresh: false }
    }
}

impl ClientScript {
    pub(super) fn of(mut ops: Vec<Timed>) -> ClientScript {
        ops.sort_by_key(|timed| timed.at);
        ClientScript { ops }
    }

    /// Has an operator end each run that is started, at some moment of its first seconds.
    pub(super) fn cut_short(&mut self, rng: &mut Rng) {
        let begun = |timed: &Timed| match &timed.op {
            ClientOp::Start(start) => Some((start.run, timed.at)),
            _ => None,
        };
        let starts: Vec<_> = self.ops.iter().filter_map(begun).collect();
        for (run, begin) in starts {
            let op = pick(rng, &[ClientOp::Cancel { run }, complete(run), fail(run)]);
            self.ops.push(Timed { at: begin + Duration::from_millis(rng.u64(1_000..=12_000)), op });
        }
        self.ops.sort_by_key(|timed| timed.at);
    }

    /// How many runs there are at most.
    pub fn runs(&self) -> usize {
        let numbers = self.ops.iter().filter_map(|timed| match &timed.op {
            ClientOp::Start(start) => Some(start.run),
            ClientOp::Retry { into, .. } => Some(*into),
            _ => None,
        });
        numbers.max().map_or(0, |last| last + 1)
    }

    /// The definition that a run is started from; a repeated run has that of the run it repeats.
    pub fn version_of(&self, run: usize) -> Option<usize> {
        self.ops.iter().find_map(|timed| match &timed.op {
            ClientOp::Start(start) if start.run == run => Some(start.version),
            ClientOp::Retry { run: of, into, .. } if *into == run && *of < run => self.version_of(*of),
            _ => None,
        })
    }

    /// The starts that make a run: several with one key.
    pub fn starts_of(&self, run: usize) -> impl Iterator<Item = &ScriptedStart> {
        self.ops.iter().filter_map(move |timed| match &timed.op {
            ClientOp::Start(start) if start.run == run => Some(start),
            _ => None,
        })
    }

    /// When its last operation begins.
    pub fn end(&self) -> Duration {
        self.ops.last().map_or(Duration::ZERO, |timed| timed.at)
    }
}

pub(super) fn random(rng: &mut Rng, versions: &[Version]) -> ClientScript {
    let mut ops = Vec::new();
    let starts = pick(rng, &[1, 1, 1, 2, 2, 3]);
    let mut runs = starts;
    for run in 0..starts {
        let begin = Duration::from_millis(if run == 0 { 0 } else { rng.u64(0..=8_000) });
        let start = start(rng, run, versions);
        let definition = &versions[start.version].plan.definition;
        for event in definition.accepts.keys().filter(|_| percent(rng, 85)).cloned().collect::<Vec<_>>() {
            let times = if one_in(rng, 6) { 2 } else { 1 };
            for _ in 0..times {
                let payload = Json::from(serde_json::json!({ "n": weight(&event) }));
                push(rng, &mut ops, begin, ClientOp::send(run, event.clone(), payload));
            }
        }
        if start.key.is_some() && one_in(rng, 2) {
            let mut again = start.clone();
            if one_in(rng, 3) {
                again.input = input(rng);
            }
            push(rng, &mut ops, begin, ClientOp::Start(again));
        }
        ops.push(Timed { at: begin, op: ClientOp::Start(start) });
        steer(rng, &mut ops, begin, run);
        if one_in(rng, 6) {
            let steps = &definition.steps;
            let from = one_in(rng, 3).then(|| steps[rng.usize(0..steps.len())].name.clone());
            let at = begin + Duration::from_secs(rng.u64(20..=90));
            ops.push(Timed { at, op: ClientOp::Retry { run, into: runs, from } });
            runs += 1;
        }
    }
    if one_in(rng, 10) {
        let queue = "mail".to_owned();
        let at = Duration::from_millis(rng.u64(0..=5_000));
        let later = at + Duration::from_millis(rng.u64(100..=20_000));
        ops.push(Timed { at, op: ClientOp::PauseQueue { queue: queue.clone() } });
        ops.push(Timed { at: later, op: ClientOp::ResumeQueue { queue } });
    }
    ClientScript::of(ops)
}

/// What is sent to machines: mostly what they take, sometimes again under the same id.
pub(super) fn of_machines(rng: &mut Rng, versions: &[Version]) -> ClientScript {
    let mut ops = Vec::new();
    let starts = pick(rng, &[1, 1, 1, 2, 2, 3]);
    let mut runs = starts;
    for run in 0..starts {
        let begin = Duration::from_millis(if run == 0 { 0 } else { rng.u64(0..=8_000) });
        let mut start = start(rng, run, versions);
        if !one_in(rng, 40) {
            // The time by the clock that worlds begin with.
            let due = crate::shared::BEGINNING + rng.i64(0..=40_000);
            start.input =
                serde_json::json!({ "n": rng.i64(0..4), "a": 1, "b": rng.i64(0..3), "due": due }).into();
        }
        let events: Vec<String> = versions[start.version].plan.definition.accepts.keys().cloned().collect();
        let count = pick(rng, &[2, 5, 8, 14]);
        // Some come one upon the other, some far apart.
        let within = pick(rng, &[300, 5_000, 30_000]);
        for number in 0..count {
            let at = begin + Duration::from_millis(rng.u64(1..=within));
            let op = event(rng, run, number, &events);
            if matches!(op, ClientOp::Send { fresh: false, .. }) && one_in(rng, 4) {
                push(rng, &mut ops, at, op.clone());
            }
            ops.push(Timed { at, op });
        }
        if start.key.is_some() && one_in(rng, 2) {
            push(rng, &mut ops, begin, ClientOp::Start(start.clone()));
        }
        ops.push(Timed { at: begin, op: ClientOp::Start(start) });
        steer(rng, &mut ops, begin, run);
        if one_in(rng, 8) {
            let at = begin + Duration::from_secs(rng.u64(20..=90));
            ops.push(Timed { at, op: ClientOp::Retry { run, into: runs, from: None } });
            for number in 0..3 {
                let op = event(rng, runs, number, &events);
                push(rng, &mut ops, at, op);
            }
            runs += 1;
        }
    }
    ClientScript::of(ops)
}

/// An event for a machine, from somebody who may or may not send it.
fn event(rng: &mut Rng, run: usize, number: usize, events: &[String]) -> ClientOp {
    let event = if one_in(rng, 25) { pick(rng, &EVENTS).to_owned() } else { pick(rng, events) };
    let payload = match rng.u32(0..8) {
        0 => Json::null(),
        _ => serde_json::json!({ "n": rng.i64(0..4) }).into(),
    };
    let roles: Vec<String> =
        ROLES.iter().filter(|_| percent(rng, 40)).map(|role| (*role).to_owned()).collect();
    let user = rng.bool().then(|| format!("u{}", rng.u32(0..3)));
    let fresh = one_in(rng, 3);
    ClientOp::Send {
        run,
        event,
        payload,
        id: Some(format!("m{run}-{number}")),
        sender: Sender { user, roles, sent_by: None },
        fresh,
    }
}

fn start(rng: &mut Rng, run: usize, versions: &[Version]) -> ScriptedStart {
    let labels =
        if one_in(rng, 4) { BTreeMap::from([("team".to_owned(), "a".to_owned())]) } else { BTreeMap::new() };
    ScriptedStart {
        run,
        version: rng.usize(0..versions.len()),
        input: input(rng),
        key: one_in(rng, 3).then(|| format!("key-{run}")),
        labels,
        delay: Duration::from_millis(if one_in(rng, 6) { rng.u64(1..=10_000) } else { 0 }),
        priority: if one_in(rng, 4) { pick(rng, &Priority::ALL) } else { Priority::Normal },
    }
}

fn input(rng: &mut Rng) -> Json {
    // Sometimes what a schema refuses.
    let value =
        if one_in(rng, 30) { serde_json::json!([]) } else { serde_json::json!({ "n": rng.i64(0..4) }) };
    value.into()
}

/// What operators do to a run: mostly nothing.
fn steer(rng: &mut Rng, ops: &mut Vec<Timed>, begin: Duration, run: usize) {
    if one_in(rng, 6) {
        let at = push(rng, ops, begin, ClientOp::Pause { run });
        push(rng, ops, at, ClientOp::Resume { run });
    }
    match rng.u32(0..30) {
        0 | 1 => drop(push(rng, ops, begin, ClientOp::Cancel { run })),
        2 => drop(push(rng, ops, begin, complete(run))),
        3 => drop(push(rng, ops, begin, fail(run))),
        _ => {}
    }
}

fn complete(run: usize) -> ClientOp {
    ClientOp::Complete { run, result: Json::from(true) }
}

fn fail(run: usize) -> ClientOp {
    ClientOp::Fail { run, error: "stopped by hand".to_owned() }
}

/// Adds an operation soon after `begin`, and says when.
fn push(rng: &mut Rng, ops: &mut Vec<Timed>, begin: Duration, op: ClientOp) -> Duration {
    let within = pick(rng, &[20, 500, 5_000, 20_000]);
    let at = begin + Duration::from_millis(rng.u64(1..=within));
    ops.push(Timed { at, op });
    at
}
