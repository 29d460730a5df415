//! Machines in Rust: the same definition that a file gives, with functions as actions.
//!
//! A machine is built into a [`Flow`], because to the engine both are definitions with functions.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::Json;
use flowline_core::definition::{
    Cleanup, Definition, Ends, Machine as States, Missed, OnFailure, Priority, Retain, Retry, Runner as Run,
    StateDefinition, StepDefinition, TimerDefinition, Transition, When,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::engine::EngineError;
use crate::flow::{Flow, StepOutput, function_runner, shared_methods};
use crate::runner::Runner;
use crate::step::{Step, StepError};

/// Describes a machine: `Machine::new(…)….build()`.
///
/// ```
/// use flowline::machine::to;
/// use flowline::{ActionInput, Machine, Step, StepError};
///
/// async fn notify(_: Step, input: ActionInput) -> Result<(), StepError> {
///     println!("now {}", input.state);
///     Ok(())
/// }
///
/// let door = Machine::new("door")
///     .events(["open", "close"])
///     .action("notify", notify)
///     .state("closed")
///     .on("open", to("opened").actions(["notify"]))
///     .state("opened")
///     .on("close", to("closed"))
///     .build()?;
/// # Ok::<(), flowline::EngineError>(())
/// ```
#[derive(Debug)]
pub struct Machine;

impl Machine {
    #[allow(clippy::new_ret_no_self)] // `Machine::new(…)….build()` is how a machine reads.
    pub fn new(name: &str) -> MachineBuilder {
        let mut definition = Definition::new(name);
        definition.machine = Some(States::default());
        MachineBuilder { definition, functions: Vec::new(), problem: None }
    }
}

/// The input of an action.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionInput {
    /// The machine's current state.
    pub state: String,
    /// The state before; none at the start.
    pub previous_state: Option<String>,
    /// The number of the transition that asked for the action.
    pub transition: u32,
    /// The event that caused the transition, if one did.
    pub event: Option<String>,
    pub event_id: Option<String>,
    #[serde(default)]
    pub payload: serde_json::Value,
    pub user_id: Option<String>,
    pub context: serde_json::Value,
    /// Results of the actions that this one comes after, by name.
    #[serde(default)]
    pub results: serde_json::Map<String, serde_json::Value>,
}

/// A transition to a state.
pub fn to(state: &str) -> TransitionBuilder {
    TransitionBuilder(Transition { to: Some(state.to_owned()), ..Transition::default() })
}

/// A transition that does not leave the state.
pub fn stay() -> TransitionBuilder {
    TransitionBuilder(Transition::default())
}

/// What an event or a timer leads to.
#[derive(Debug, Clone)]
pub struct TransitionBuilder(Transition);

impl TransitionBuilder {
    /// Takes it only if this CEL expression holds.
    pub fn only_if(mut self, condition: &str) -> TransitionBuilder {
        self.0.condition = Some(condition.to_owned());
        self
    }

    /// Takes it only on an event from this role; call it again to allow more roles.
    pub fn role(mut self, role: &str) -> TransitionBuilder {
        self.0.roles.push(role.to_owned());
        self
    }

    /// Sets a key of the context to the value of this CEL expression.
    pub fn set(mut self, key: &str, expression: &str) -> TransitionBuilder {
        self.0.set.insert(key.to_owned(), expression.to_owned());
        self
    }

    pub fn actions<'a>(mut self, actions: impl IntoIterator<Item = &'a str>) -> TransitionBuilder {
        self.0.actions.extend(actions.into_iter().map(str::to_owned));
        self
    }
}

shared_methods!(MachineBuilder);

/// Describes a machine. Methods after `state` change that state and those after `action` that action, until the next.
pub struct MachineBuilder {
    definition: Definition,
    functions: Vec<(String, Arc<dyn Runner>)>,
    problem: Option<String>,
}

impl std::fmt::Debug for MachineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MachineBuilder({})", self.definition.flow)
    }
}

impl MachineBuilder {
    /// Declares events that it takes.
    pub fn events<'a>(mut self, events: impl IntoIterator<Item = &'a str>) -> MachineBuilder {
        self.definition.accepts.extend(events.into_iter().map(|event| (event.to_owned(), None)));
        self
    }

    /// Declares an event with the JSON Schema of its payload.
    pub fn event_with(mut self, event: &str, schema: serde_json::Value) -> MachineBuilder {
        self.definition.accepts.insert(event.to_owned(), Some(schema));
        self
    }

    /// A key of the context that a run begins with: CEL over `input`. Without any the context is the input.
    pub fn context(self, key: &str, expression: &str) -> MachineBuilder {
        self.states(|states| drop(states.context.insert(key.to_owned(), expression.to_owned())))
    }

    /// CEL over `input` and `context` for the run's result; the context by default.
    pub fn output(mut self, expression: &str) -> MachineBuilder {
        self.definition.output = Some(expression.to_owned());
        self
    }

    /// The initial state, if it isn't the first.
    pub fn initial(self, state: &str) -> MachineBuilder {
        self.states(|states| states.initial = state.to_owned())
    }

    /// Adds a state. A run begins in the first one, unless [`MachineBuilder::initial`] names another.
    pub fn state(self, name: &str) -> MachineBuilder {
        self.states(|states| {
            if states.initial.is_empty() {
                states.initial = name.to_owned();
            }
            states.states.push(StateDefinition { name: name.to_owned(), ..StateDefinition::default() });
        })
    }

    /// What the state is, for people.
    pub fn state_description(self, text: &str) -> MachineBuilder {
        self.last_state(|state| state.description = Some(text.to_owned()))
    }

    /// What the state does on an event; called again for the same event, what else it may do.
    pub fn on(self, event: &str, transition: TransitionBuilder) -> MachineBuilder {
        self.last_state(|state| state.on.entry(event.to_owned()).or_default().push(transition.0))
    }

    /// What happens if the machine stays in the state for this long.
    pub fn after(self, delay: Duration, transition: TransitionBuilder) -> MachineBuilder {
        self.timer(When::In(delay), Missed::Fire, transition)
    }

    /// What happens at the time that this CEL expression over `input` and `context` returns.
    pub fn at(self, expression: &str, transition: TransitionBuilder) -> MachineBuilder {
        self.timer(When::At(expression.to_owned()), Missed::Fire, transition)
    }

    /// A timer, and what happens if it's missed.
    pub fn timer(self, when: When, missed: Missed, transition: TransitionBuilder) -> MachineBuilder {
        self.last_state(|state| state.after.push(TimerDefinition { when, missed, then: transition.0 }))
    }

    /// Actions when the state is entered.
    pub fn entry<'a>(self, actions: impl IntoIterator<Item = &'a str>) -> MachineBuilder {
        self.last_state(|state| state.entry.extend(actions.into_iter().map(str::to_owned)))
    }

    /// Actions when the state is left.
    pub fn exit<'a>(self, actions: impl IntoIterator<Item = &'a str>) -> MachineBuilder {
        self.last_state(|state| state.exit.extend(actions.into_iter().map(str::to_owned)))
    }

    /// A run that reaches the state is completed.
    pub fn completes(self) -> MachineBuilder {
        self.last_state(|state| state.ends = Ends::Completed)
    }

    /// A run that reaches the state has failed.
    pub fn fails(self) -> MachineBuilder {
        self.last_state(|state| state.ends = Ends::Failed)
    }

    /// Adds an action that runs an async function or closure. It takes an [`ActionInput`], or whatever can be read from
    /// its JSON.
    pub fn action<I, O, F, Fut>(mut self, name: &str, function: F) -> MachineBuilder
    where
        I: DeserializeOwned + Send + 'static,
        O: StepOutput,
        F: Fn(Step, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, StepError>> + Send + 'static,
    {
        let function_name = format!("{}.{name}", self.definition.flow);
        self.definition.steps.push(StepDefinition::new(name, Run::Function(function_name.clone())));
        let read = |input: &Json| {
            let mismatch =
                |error| StepError::fatal(format!("the action's input: {error}")).code("type_mismatch");
            input.to::<I>().map_err(mismatch)
        };
        self.functions.push((format!("function:{function_name}"), function_runner(read, function)));
        self
    }

    /// Adds an action that another process or program runs.
    pub fn action_run_by(mut self, name: &str, runner: Run) -> MachineBuilder {
        self.definition.steps.push(StepDefinition::new(name, runner));
        self
    }

    /// What the action does, for people.
    pub fn action_description(self, text: &str) -> MachineBuilder {
        self.change("action_description", |action| action.description = Some(text.to_owned()))
    }

    /// Runs the action after these, if one transition asks for all of them.
    pub fn comes_after<'a>(self, actions: impl IntoIterator<Item = &'a str>) -> MachineBuilder {
        self.change("comes_after", |action| action.after.extend(actions.into_iter().map(str::to_owned)))
    }

    /// Moves the machine to a state when the action is out of attempts.
    pub fn on_error(self, state: &str) -> MachineBuilder {
        self.change("on_error", |action| action.on_error = Some(state.to_owned()))
    }

    fn states(mut self, change: impl FnOnce(&mut States)) -> MachineBuilder {
        if let Some(states) = &mut self.definition.machine {
            change(states);
        }
        self
    }

    fn last_state(mut self, change: impl FnOnce(&mut StateDefinition)) -> MachineBuilder {
        match self.definition.machine.as_mut().and_then(|states| states.states.last_mut()) {
            Some(state) => change(state),
            None => self.lacks("describe a state before what belongs to it".to_owned()),
        }
        self
    }

    fn change(mut self, method: &str, change: impl FnOnce(&mut StepDefinition)) -> MachineBuilder {
        match self.definition.steps.last_mut() {
            Some(action) => change(action),
            None => self.lacks(format!(
                "`.{method}()` comes before the first action; call it after the action it's for"
            )),
        }
        self
    }

    fn lacks(&mut self, problem: String) {
        let name = &self.definition.flow;
        self.problem.get_or_insert(format!("machine {name:?}: {problem}"));
    }
}
