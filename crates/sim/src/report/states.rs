//! What many seeds of a user's machine show together: states that it can be stuck in, events that no guard lets through,
//! ways to fail, states that it never enters.
//!
//! A machine is stuck in a state where nothing is left that could move it: no timer is set, no action runs, and every event
//! that could lead out of the state was sent, more than once, and turned down.

use std::collections::{BTreeMap, BTreeSet};

use flowline_core::definition::{Definition, Ends, StateDefinition};
use flowline_core::{Event, EventType};
use serde::Serialize;
use serde_json::Value;

use super::{RunEnding, Sight, SimulationReport, Trial, by_seeds};
use crate::program::users_of;

/// How often an event that could lead out of a state must have been turned down there, whoever sent it.
const TRIES: usize = 6;

#[derive(Debug, Clone, Default)]
pub(super) struct StateSights {
    stuck: BTreeMap<String, (Sight, Value)>,
    lost: BTreeMap<(String, String), (Sight, Value)>,
    entered: BTreeSet<String>,
}

/// A state that nothing can move the machine out of any more.
#[derive(Debug, Clone, Serialize)]
pub struct StuckState {
    pub state: String,
    /// Events that could lead out of it, and were turned down.
    pub events: Vec<String>,
    /// What the context was.
    pub context: Value,
    #[serde(flatten)]
    pub sight: Sight,
}

/// An event that was taken in, and turned down in a state that answers it, because no condition held.
#[derive(Debug, Clone, Serialize)]
pub struct LostEvent {
    pub event: String,
    pub state: String,
    pub context: Value,
    #[serde(flatten)]
    pub sight: Sight,
}

/// One run of a machine, as its log tells it.
#[derive(Default)]
struct Story {
    state: Option<String>,
    context: Value,
    /// States and what led from one to the next.
    path: Vec<String>,
    armed: BTreeSet<u64>,
    running: BTreeSet<String>,
    /// Events turned down since the state was entered: how often, and who had sent them.
    refused: BTreeMap<String, (usize, BTreeSet<String>)>,
    /// Who sent each event, by number, and how many there are that send.
    senders: BTreeMap<u64, String>,
    users: usize,
    lost: Vec<(String, String, Value)>,
    unsettled: BTreeSet<String>,
    /// The step and the code of a failure, or what else ended the run.
    failure: Option<(String, Option<String>)>,
    ending: Option<RunEnding>,
}

impl Story {
    fn of(log: &[Event]) -> Story {
        let mut story = Story { context: Value::Object(Default::default()), ..Story::default() };
        log.iter().for_each(|event| story.event(event));
        story
    }

    fn event(&mut self, event: &Event) {
        let data = event.data.as_ref().map(|data| data.value()).unwrap_or_default();
        let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
        let step = || event.step_name.as_deref().unwrap_or_default().to_owned();
        match event.kind {
            EventType::StateChanged => self.moved(&data),
            EventType::TimerSet => drop(self.armed.insert(data["timer"].as_u64().unwrap_or_default())),
            EventType::TimerFired | EventType::TimerCancelled => {
                self.armed.remove(&data["timer"].as_u64().unwrap_or_default());
            }
            EventType::FlowStart => self.users = users_of(&data["input"]).len(),
            EventType::EventReceived => {
                self.senders.insert(data["number"].as_u64().unwrap_or_default(), text("userId"));
            }
            EventType::EventRejected => {
                let sender = self.senders.remove(&data["number"].as_u64().unwrap_or_default());
                self.rejected(text("name"), text("state"), &text("code"), sender.unwrap_or_default());
            }
            EventType::StepStarted => drop(self.running.insert(step())),
            EventType::StepCompleted | EventType::StepSkipped => drop(self.running.remove(&step())),
            EventType::StepFailed => {
                self.running.remove(&step());
                let code = data["code"].as_str().map(str::to_owned);
                let detail = code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
                self.path.push(format!("{} fails{detail}", step()));
                self.failure = Some((step(), code));
            }
            EventType::FlowCompleted => self.ending = Some(RunEnding::Completed),
            EventType::FlowCancelled => self.ending = Some(RunEnding::Cancelled),
            EventType::FlowFailed => {
                self.ending = Some(RunEnding::Failed);
                if data["step"].is_null() {
                    let state = self.state.clone().unwrap_or_default();
                    let timeout = data["code"] == "timeout";
                    let code = if timeout { "timeout".to_owned() } else { format!("state {state}") };
                    self.failure = Some((String::new(), Some(code)));
                    if timeout {
                        self.path.push("the run's timeout passes".to_owned());
                    }
                }
            }
            _ => {}
        }
    }

    fn moved(&mut self, data: &Value) {
        let to = data["to"].as_str().unwrap_or_default().to_owned();
        match (data["event"].as_str(), data["timer"].is_null(), data["action"].is_null()) {
            (Some(event), ..) => self.path.push(event.to_owned()),
            (None, false, _) => self.path.push("a timer".to_owned()),
            (None, true, false) => {}
            (None, true, true) => self.path.push("start".to_owned()),
        }
        if data["stays"] != true {
            self.path.push(to.clone());
        }
        if self.state.as_ref() != Some(&to) {
            self.refused.clear();
        }
        self.state = Some(to);
        self.failure = None;
        if let Value::Object(_) = data["context"] {
            self.context = data["context"].clone();
        }
    }

    fn rejected(&mut self, event: String, state: String, code: &str, sender: String) {
        match code {
            "guard" => {
                let (times, senders) = self.refused.entry(event.clone()).or_default();
                *times += 1;
                senders.insert(sender);
                self.lost.push((state, event, self.context.clone()));
            }
            "expression" | "too_costly" => drop(self.unsettled.insert(format!("{event} in {state}"))),
            _ => {}
        }
    }

    fn ending(&self) -> RunEnding {
        match self.ending {
            Some(ending) => ending,
            None if self.armed.is_empty() && self.running.is_empty() => RunEnding::Waiting,
            None => RunEnding::Unfinished,
        }
    }
}

/// Events that could lead out of a state.
fn ways_out(state: &StateDefinition) -> Vec<String> {
    let leaves = |to: &Option<String>| to.as_ref().is_some_and(|to| *to != state.name);
    let out = state.on.iter().filter(|(_, all)| all.iter().any(|each| leaves(&each.to)));
    out.map(|(event, _)| event.clone()).collect()
}

impl SimulationReport {
    pub(super) fn add_machine(&mut self, trial: Trial<'_>) {
        let story = Story::of(trial.log);
        let ending = if trial.log.is_empty() { RunEnding::Unstarted } else { story.ending() };
        let (seed, weight) = (trial.seed, trial.log.len());
        self.outcomes.entry(ending).or_default().see(seed, weight);
        self.add_ran(trial);
        self.add_twice(trial);
        let entered = trial.log.iter().filter(|event| event.kind == EventType::StateChanged);
        let to = entered.filter_map(|event| event.data.as_ref()?.value()["to"].as_str().map(str::to_owned));
        self.states.entered.extend(to);
        self.guessed.extend(story.unsettled.iter().cloned());
        if let (RunEnding::Failed, Some(failure)) = (ending, &story.failure) {
            let (sight, path) = self.failures.entry(failure.clone()).or_default();
            if sight.see(seed, story.path.len() * 1_000 + weight) {
                *path = story.path.iter().cloned().chain(["the run fails".to_owned()]).collect();
            }
        }
        let once: BTreeMap<(String, String), Value> = story
            .lost
            .iter()
            .map(|(state, event, context)| ((state.clone(), event.clone()), context.clone()))
            .collect();
        for (key, context) in once {
            let (sight, kept) = self.states.lost.entry(key).or_default();
            if sight.see(seed, weight) {
                *kept = context;
            }
        }
        if let Some(state) = story.state.as_ref().filter(|_| ending == RunEnding::Waiting)
            && self.is_stuck(state, &story)
        {
            let (sight, kept) = self.states.stuck.entry(state.clone()).or_default();
            if sight.see(seed, weight) {
                *kept = story.context;
            }
        }
    }

    fn is_stuck(&self, state: &str, story: &Story) -> bool {
        let refused = |event: &String| {
            let tried = story.refused.get(event);
            tried.is_some_and(|(times, senders)| *times >= TRIES && senders.len() >= story.users)
        };
        state_of(&self.flow, state).is_some_and(|state| ways_out(state).iter().all(refused))
    }

    /// StateSights that a run can be stuck in.
    pub fn stuck(&self) -> Vec<StuckState> {
        let all = self.states.stuck.iter().map(|(state, (sight, context))| StuckState {
            state: state.clone(),
            events: state_of(&self.flow, state).map(ways_out).unwrap_or_default(),
            context: context.clone(),
            sight: sight.clone(),
        });
        by_seeds(all.collect(), |stuck| &stuck.sight)
    }

    /// Events that can be lost to a guard.
    pub fn lost(&self) -> Vec<LostEvent> {
        let all = self.states.lost.iter().map(|((state, event), (sight, context))| LostEvent {
            event: event.clone(),
            state: state.clone(),
            context: context.clone(),
            sight: sight.clone(),
        });
        by_seeds(all.collect(), |lost| &lost.sight)
    }

    /// StateSights that no seed entered.
    pub fn never_entered(&self) -> Vec<String> {
        let states = self.flow.machine.iter().flat_map(|machine| &machine.states);
        states.map(|state| state.name.clone()).filter(|name| !self.states.entered.contains(name)).collect()
    }
}

fn state_of<'a>(flow: &'a Definition, name: &str) -> Option<&'a StateDefinition> {
    flow.machine.as_ref()?.state(name).filter(|state| state.ends == Ends::No)
}
