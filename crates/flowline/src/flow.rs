//! Flows in Rust: steps are typed async functions.
//!
//! A step's parameter says what it waits for, and its return type says what it emits: an [`Event`] subscribes to its
//! name, [`All`] to several, and a returned event is the step's `returns`. Closures over `serde_json::Value` name their
//! events in the builder instead. The result is the same [`Definition`] that a file gives, validated as a whole by
//! `build`.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::Json;
use flowline_core::definition::{
    Cleanup, Definition, OnFailure, Priority, Retain, Retry, Runner as Run, StepDefinition, Subscribes,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::EngineError;
use crate::runner::{Runner, StepFuture};
use crate::step::{Step, StepError};

/// A type that travels between steps under a name. Implement it with [`event!`](crate::event).
pub trait Event: Serialize + DeserializeOwned + Send + 'static {
    const NAME: &'static str;
}

/// Names the events that types travel as: `event!(Charged = "order.charged");`
#[macro_export]
macro_rules! event {
    ($($type:ty = $name:literal),+ $(,)?) => {
        $(impl $crate::Event for $type {
            const NAME: &'static str = $name;
        })+
    };
}

/// What a step takes.
pub trait StepInput: Sized + Send + 'static {
    /// What the type says of the subscription; `None` leaves it to the builder.
    fn subscribes() -> Option<Subscribes>;
    /// Reads the step's input. `entry` is set if that's the run's input itself.
    fn read(input: &Json, entry: bool) -> Result<Self, StepError>;
}

/// What a step returns.
pub trait StepOutput: Send + 'static {
    /// The event that carries the result, if any.
    const RETURNS: Option<&'static str>;
    fn write(self) -> Result<Json, StepError>;
}

/// Waits for every one of a tuple of events: `All((charged, reserved)): All<(Charged, Reserved)>`.
#[derive(Debug, Clone)]
pub struct All<T>(pub T);

/// Waits for the first of a tuple of events; those that have not come are `None`.
#[derive(Debug, Clone)]
pub struct Any<T>(pub T);

impl<E: Event> StepInput for E {
    fn subscribes() -> Option<Subscribes> {
        Some(Subscribes::All(vec![Subscribes::Event(E::NAME.to_owned())]))
    }

    fn read(input: &Json, entry: bool) -> Result<E, StepError> {
        if entry {
            return input.to().map_err(|error| mismatch("the run's input", &error));
        }
        let mut events: BTreeMap<String, Json> = input.to()?;
        take(&mut events)
    }
}

impl StepInput for serde_json::Value {
    fn subscribes() -> Option<Subscribes> {
        None
    }

    fn read(input: &Json, _entry: bool) -> Result<Self, StepError> {
        Ok(input.value())
    }
}

/// The input as it came, not parsed.
impl StepInput for Json {
    fn subscribes() -> Option<Subscribes> {
        None
    }

    fn read(input: &Json, _entry: bool) -> Result<Self, StepError> {
        Ok(input.clone())
    }
}

fn take<E: Event>(events: &mut BTreeMap<String, Json>) -> Result<E, StepError> {
    let json = events.remove(E::NAME).unwrap_or_else(Json::null);
    json.to().map_err(|error| mismatch(&format!("event {:?}", E::NAME), &error))
}

fn mismatch(what: &str, error: &serde_json::Error) -> StepError {
    StepError::fatal(format!("{what} doesn't fit its Rust type: {error}")).code("type_mismatch")
}

macro_rules! tuples {
    ($(($($event:ident),+))+) => {$(
        impl<$($event: Event),+> StepInput for All<($($event,)+)> {
            fn subscribes() -> Option<Subscribes> {
                Some(Subscribes::All(vec![$(Subscribes::Event($event::NAME.to_owned())),+]))
            }

            fn read(input: &Json, _entry: bool) -> Result<Self, StepError> {
                let mut events: BTreeMap<String, Json> = input.to()?;
                Ok(All(($(take::<$event>(&mut events)?,)+)))
            }
        }

        impl<$($event: Event),+> StepInput for Any<($(Option<$event>,)+)> {
            fn subscribes() -> Option<Subscribes> {
                Some(Subscribes::Any(vec![$(Subscribes::Event($event::NAME.to_owned())),+]))
            }

            fn read(input: &Json, _entry: bool) -> Result<Self, StepError> {
                let mut events: BTreeMap<String, Json> = input.to()?;
                Ok(Any(($(if events.contains_key($event::NAME) { Some(take::<$event>(&mut events)?) } else { None },)+)))
            }
        }
    )+};
}

tuples! {
    (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) (A, B, C, D, E, F, G) (A, B, C, D, E, F, G, H)
}

impl<E: Event> StepOutput for E {
    const RETURNS: Option<&'static str> = Some(E::NAME);

    fn write(self) -> Result<Json, StepError> {
        Json::of(&self).map_err(StepError::fatal)
    }
}

impl StepOutput for serde_json::Value {
    const RETURNS: Option<&'static str> = None;

    fn write(self) -> Result<Json, StepError> {
        Ok(Json::from(self))
    }
}

impl StepOutput for Json {
    const RETURNS: Option<&'static str> = None;

    fn write(self) -> Result<Json, StepError> {
        Ok(self)
    }
}

impl StepOutput for () {
    const RETURNS: Option<&'static str> = None;

    fn write(self) -> Result<Json, StepError> {
        Ok(Json::null())
    }
}

/// A flow or a [machine](crate::machine) with its functions, checked.
///
/// ```
/// use flowline::{All, Flow, Retry, Step, StepError, event};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order { cents: u32 }
/// #[derive(Serialize, Deserialize)]
/// struct Charged { receipt: String }
/// #[derive(Serialize, Deserialize)]
/// struct Reserved { shelf: String }
/// event!(Order = "order.placed", Charged = "order.charged", Reserved = "order.reserved");
///
/// async fn charge(step: Step, order: Order) -> Result<Charged, StepError> {
///     Ok(Charged { receipt: format!("{} for {}", step.idempotency_key(), order.cents) })
/// }
/// async fn reserve(_: Step, _: Order) -> Result<Reserved, StepError> {
///     Ok(Reserved { shelf: "7b".to_owned() })
/// }
/// async fn ship(_: Step, All((charged, reserved)): All<(Charged, Reserved)>) -> Result<(), StepError> {
///     println!("{} from shelf {}", charged.receipt, reserved.shelf);
///     Ok(())
/// }
///
/// let flow = Flow::new("fulfil-order")
///     .input::<Order>()
///     .step("charge", charge)
///     .retry(Retry { attempts: 5, ..Retry::default() })
///     .step("reserve", reserve)
///     .step("ship", ship) // waits for both
///     .build()?; // the whole graph is checked here
/// # Ok::<(), flowline::EngineError>(())
/// ```
#[derive(Clone)]
pub struct Flow {
    definition: Definition,
    hash: Arc<str>,
    functions: Vec<(String, Arc<dyn Runner>)>,
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flow({})", self.definition.flow)
    }
}

impl Flow {
    #[allow(clippy::new_ret_no_self)] // `Flow::new(…)….build()` is how a flow reads.
    pub fn new(name: &str) -> FlowBuilder {
        FlowBuilder {
            definition: Definition::new(name),
            functions: Vec::new(),
            input: None,
            takes_input: false,
            problem: None,
        }
    }

    pub fn name(&self) -> &str {
        &self.definition.flow
    }

    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The identity of its definition.
    pub fn hash(&self) -> &Arc<str> {
        &self.hash
    }

    /// A definition, checked, with its functions by what they are needed for.
    pub(crate) fn of(
        definition: Definition,
        functions: Vec<(String, Arc<dyn Runner>)>,
    ) -> Result<Flow, EngineError> {
        definition.validate().map_err(|diagnostics| EngineError::Definition(Box::new(diagnostics)))?;
        let hash = definition.hash().into();
        Ok(Flow { definition, hash, functions })
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = (&str, &Arc<dyn Runner>)> {
        self.functions.iter().map(|(need, function)| (need.as_str(), function))
    }
}

/// What the builders of flows and machines have in common. `change` is given the step or action that was added last.
macro_rules! shared_methods {
    ($builder:ident) => {
        impl $builder {
            pub fn description(mut self, text: &str) -> $builder {
                self.definition.description = Some(text.to_owned());
                self
            }

            /// JSON Schema of the run's input.
            pub fn input_schema(mut self, schema: serde_json::Value) -> $builder {
                self.definition.input = Some(schema);
                self
            }

            /// How long the whole run may take.
            pub fn run_timeout(mut self, timeout: Duration) -> $builder {
                self.definition.timeout = Some(timeout);
                self
            }

            /// When the run's key-value state is deleted.
            pub fn state_cleanup(mut self, cleanup: Cleanup) -> $builder {
                self.definition.state = cleanup;
                self
            }

            /// How long ended runs are kept. What it leaves out is up to the engine's settings.
            pub fn retain(mut self, retain: Retain) -> $builder {
                self.definition.retain = Some(retain);
                self
            }

            /// Runs it only if this CEL expression holds.
            pub fn only_if(self, condition: &str) -> $builder {
                self.change("only_if", |step| step.condition = Some(condition.to_owned()))
            }

            pub fn retry(self, retry: Retry) -> $builder {
                self.change("retry", |step| step.retry = retry)
            }

            /// How long each attempt may take.
            pub fn timeout(self, timeout: Duration) -> $builder {
                self.change("timeout", |step| step.timeout = Some(timeout))
            }

            pub fn on_failure(self, policy: OnFailure) -> $builder {
                self.change("on_failure", |step| step.on_failure = policy)
            }

            pub fn queue(self, queue: &str) -> $builder {
                self.change("queue", |step| step.queue = queue.to_owned())
            }

            pub fn priority(self, priority: Priority) -> $builder {
                self.change("priority", |step| step.priority = Some(priority))
            }

            /// Checks the whole definition. An option that has nothing to apply to is an error too.
            pub fn build(self) -> Result<Flow, EngineError> {
                match self.problem {
                    Some(problem) => Err(EngineError::Invalid(problem)),
                    None => Flow::of(self.definition, self.functions),
                }
            }
        }
    };
}
pub(crate) use shared_methods;

shared_methods!(FlowBuilder);

/// Describes a flow step by step. Methods after `step` change that step, until the next.
pub struct FlowBuilder {
    definition: Definition,
    functions: Vec<(String, Arc<dyn Runner>)>,
    /// The event that is the run's input: steps that take it start with the run.
    input: Option<&'static str>,
    /// Whether the last step takes it.
    takes_input: bool,
    /// The first thing that was asked for and can't be.
    problem: Option<String>,
}

impl std::fmt::Debug for FlowBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlowBuilder({})", self.definition.flow)
    }
}

impl FlowBuilder {
    /// Names the type of the run's input. Call it before the steps that take it.
    pub fn input<E: Event>(mut self) -> FlowBuilder {
        self.input = Some(E::NAME);
        self
    }

    /// Accepts an event from outside.
    pub fn accepts<E: Event>(self) -> FlowBuilder {
        self.accepts_named(E::NAME)
    }

    pub fn accepts_named(mut self, event: &str) -> FlowBuilder {
        self.definition.accepts.insert(event.to_owned(), None);
        self
    }

    /// CEL for the run's result.
    pub fn output(mut self, expression: &str) -> FlowBuilder {
        self.definition.output = Some(expression.to_owned());
        self
    }

    pub fn fail_fast(mut self) -> FlowBuilder {
        self.definition.fail_fast = true;
        self
    }

    /// Adds a step that runs an async function or closure.
    pub fn step<I, O, F, Fut>(mut self, name: &str, function: F) -> FlowBuilder
    where
        I: StepInput,
        O: StepOutput,
        F: Fn(Step, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, StepError>> + Send + 'static,
    {
        let function_name = format!("{}.{name}", self.definition.flow);
        let mut step = StepDefinition::new(name, Run::Function(function_name.clone()));
        step.subscribes = I::subscribes();
        self.takes_input = false;
        if let (Some(Subscribes::All(events)), Some(input)) = (&step.subscribes, self.input)
            && matches!(events.as_slice(), [Subscribes::Event(event)] if event == input)
        {
            step.subscribes = None;
            self.takes_input = true;
        }
        step.returns = O::RETURNS.map(str::to_owned);
        let entry = step.subscribes.is_none();
        self.definition.steps.push(step);
        let function = function_runner(move |input| I::read(input, entry), function);
        self.functions.push((format!("function:{function_name}"), function));
        self
    }

    /// Adds a step that another process or program runs.
    pub fn step_run_by(mut self, name: &str, runner: Run) -> FlowBuilder {
        self.definition.steps.push(StepDefinition::new(name, runner));
        self.takes_input = false;
        self
    }

    /// Waits for all of these events (or `step:NAME`). For steps whose types do not say it.
    pub fn subscribes<'a>(self, events: impl IntoIterator<Item = &'a str>) -> FlowBuilder {
        let all = events.into_iter().map(subscription).collect();
        self.waits_for("subscribes", Subscribes::All(all))
    }

    /// Waits for any of these events (or `step:NAME`).
    pub fn subscribes_any<'a>(self, events: impl IntoIterator<Item = &'a str>) -> FlowBuilder {
        let any = events.into_iter().map(subscription).collect();
        self.waits_for("subscribes_any", Subscribes::Any(any))
    }

    pub fn subscribes_to(self, subscribes: Subscribes) -> FlowBuilder {
        self.waits_for("subscribes_to", subscribes)
    }

    /// Declares what the step emits besides its result.
    pub fn emits<'a>(self, events: impl IntoIterator<Item = &'a str>) -> FlowBuilder {
        let events: Vec<String> = events.into_iter().map(str::to_owned).collect();
        self.change("emits", |step| step.emits.extend(events.into_iter().map(|event| (event, None))))
    }

    /// Declares an emit with its JSON Schema.
    pub fn emits_with(self, event: &str, schema: serde_json::Value) -> FlowBuilder {
        self.change("emits_with", |step| drop(step.emits.insert(event.to_owned(), Some(schema))))
    }

    pub fn returns(self, event: &str) -> FlowBuilder {
        self.change("returns", |step| step.returns = Some(event.to_owned()))
    }

    fn waits_for(mut self, method: &str, subscribes: Subscribes) -> FlowBuilder {
        if let (true, Some(input), Some(step)) = (self.takes_input, self.input, self.definition.steps.last())
        {
            let (flow, name) = (&self.definition.flow, &step.name);
            self.problem.get_or_insert(format!(
                "flow {flow:?}: step {name:?} takes the run's input ({input:?}), so it starts with the run and can't wait \
                 for events too; drop `.{method}()`, or let the step take those events (`All<(…)>`) or `serde_json::Value`"
            ));
        }
        self.change(method, |step| step.subscribes = Some(subscribes))
    }

    fn change(mut self, method: &str, change: impl FnOnce(&mut StepDefinition)) -> FlowBuilder {
        match self.definition.steps.last_mut() {
            Some(step) => change(step),
            None => {
                let flow = &self.definition.flow;
                self.problem.get_or_insert(format!(
                    "flow {flow:?}: `.{method}()` comes before the first step; call it after the step it's for"
                ));
            }
        }
        self
    }
}

fn subscription(text: &str) -> Subscribes {
    match text.strip_prefix("step:") {
        Some(step) => Subscribes::Step(step.to_owned()),
        None => Subscribes::Event(text.to_owned()),
    }
}

/// A runner that reads its input, runs a function on it and writes what it returns.
pub(crate) fn function_runner<I, O, Fut>(
    read: impl Fn(&Json) -> Result<I, StepError> + Send + Sync + 'static,
    function: impl Fn(Step, I) -> Fut + Send + Sync + 'static,
) -> Arc<dyn Runner>
where
    I: 'static,
    O: StepOutput,
    Fut: Future<Output = Result<O, StepError>> + Send + 'static,
{
    Arc::new(move |step: Step, input: Json| -> StepFuture {
        match read(&input) {
            Ok(input) => {
                let work = function(step, input);
                Box::pin(async move { work.await?.write() })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    })
}
