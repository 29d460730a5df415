//! A flow or a machine as data: what a file or the Rust builder describes, before it is checked and indexed.
//!
//! The same [`Definition`] comes out of YAML, TOML, JSON and Rust. Its canonical JSON ([`Definition::canonical`]) uses
//! the keys of the file format with defaults left out, so that it can be read back by the same reader and so that its
//! hash, which is the definition's identity, does not change when a later version adds a key.

mod check;
mod diagnostic;
mod file_schema;
mod graph;
mod machine;
mod place;
mod read;
mod source;
mod suggest;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

use flowline_types::words;
use serde::Serialize;

use crate::ids::digest;

pub use check::{Finding, check};
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use file_schema::file_schema;
pub use flowline_types::{Priority, Retain};
pub use graph::{Graph, GraphEdge, GraphNode, Join, NodeKind, dot, graph, mermaid};
pub use machine::{Ends, Machine, Missed, StateDefinition, TimerDefinition, Transition, When};
pub use place::Place;
pub use read::{Read, read, read_stored};
pub use source::Format;
pub use suggest::nearest;

/// A versioned definition: a flow (steps wired by events) or, with `machine`, a machine (states that react to events).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Definition {
    /// The name of the flow or the machine.
    pub flow: String,
    pub description: Option<String>,
    /// JSON Schema of the run's input.
    pub input: Option<serde_json::Value>,
    /// External events that a run takes, each with an optional JSON Schema. In a machine's file the key is `events`.
    pub accepts: BTreeMap<String, Option<serde_json::Value>>,
    /// CEL. Of a flow, over `input`, `events` and `results`; default: the results of completed leaf steps by name. Of a
    /// machine, over `input` and `context`; default: the context.
    pub output: Option<String>,
    /// Stop triggering at the first failed step.
    pub fail_fast: bool,
    pub timeout: Option<Duration>,
    /// What happens to the run's key-value state when the run ends.
    pub state: Cleanup,
    /// How long ended runs are kept; where it says nothing, as the engine keeps them.
    pub retain: Option<Retain>,
    /// In the order of the file: a step's place here is its index in the run state. In a machine's file they are the
    /// `actions`.
    pub steps: Vec<StepDefinition>,
    pub machine: Option<Machine>,
}

/// Named work in a flow, or of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDefinition {
    pub name: String,
    pub description: Option<String>,
    pub runner: Runner,
    /// Of a command: whether its stdin stays open after the input.
    pub stdin: Stdin,
    /// The lane of jobs that this step waits in. For `worker: QUEUE` it is that queue.
    pub queue: String,
    /// None for an entry step.
    pub subscribes: Option<Subscribes>,
    /// Declared emits, each with an optional JSON Schema.
    pub emits: BTreeMap<String, Option<serde_json::Value>>,
    /// The event that carries this step's result.
    pub returns: Option<String>,
    /// CEL, evaluated once when the step would be triggered.
    pub condition: Option<String>,
    /// Of an action: those of the same transition that must be done before it.
    pub after: Vec<String>,
    /// Of an action: the state that the machine moves to when it is out of attempts.
    pub on_error: Option<String>,
    pub retry: Retry,
    pub timeout: Option<Duration>,
    pub on_failure: OnFailure,
    pub priority: Option<Priority>,
}

words! {
    /// What happens to a command's stdin once its input is written.
    #[derive(Default)]
    pub enum Stdin {
        /// A program may read to the end.
        #[default]
        Closed = "closed",
        /// A program may read a line, and then the replies to what it asks for.
        Open = "open",
    }
}

/// How a step runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Runner {
    /// An argument vector; no shell.
    Command(Vec<String>),
    /// A request; see [`HttpRequest`].
    Http(HttpRequest),
    /// A remote worker on this queue.
    Worker(String),
    /// A function registered in the process that runs the engine.
    Function(String),
    /// Starts a run, of a flow or a machine, and waits for its end.
    Start(StartRun),
    /// Sends an event to a run.
    Send(SendEvent),
}

/// The run that a `start` step begins. Its result is the step's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StartRun {
    /// The name of a flow or a machine.
    pub flow: String,
    /// JSON in which each text is a template. Default: the step's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<serde_json::Value>,
}

/// The event that a `send` step sends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SendEvent {
    #[serde(flatten)]
    pub to: Receiver,
    pub event: String,
    /// JSON in which each text is a template. Default: null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<serde_json::Value>,
}

/// Who gets an event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Receiver {
    /// The run with this id, a template.
    Run { run: String },
    /// The run of a machine with this business key, which is started if it doesn't exist.
    Machine {
        machine: String,
        /// A template.
        key: String,
        /// As in [`StartRun::input`], for the run that is started.
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<serde_json::Value>,
    },
}

/// The request of an `http` step. Exactly one method key names the URL in the file (`post: "https://…"`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HttpRequest {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    pub url: String,
    pub headers: BTreeMap<String, String>,
    /// The body to send. Default: the step's input, for methods that have a body.
    pub body: Option<serde_json::Value>,
    /// The name of the secret that the request is signed with.
    pub secret: Option<String>,
    /// A 202 answer means that the outcome comes later, to a URL that the request names.
    pub callback: bool,
}

/// The keys of `http` that name a method.
pub(crate) const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

impl HttpRequest {
    pub fn new(method: &str, url: &str) -> HttpRequest {
        HttpRequest { method: method.to_owned(), url: url.to_owned(), ..HttpRequest::default() }
    }

    /// Whether its method carries a body.
    pub fn has_body(&self) -> bool {
        matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }
}

/// What a step waits for. In a file a list is AND, `{any: […]}` is OR, and they nest.
#[derive(Debug, Clone, PartialEq)]
pub enum Subscribes {
    Event(String),
    /// `step:NAME`
    Step(String),
    All(Vec<Subscribes>),
    Any(Vec<Subscribes>),
}

impl Subscribes {
    /// Every event and step it mentions, depth first.
    pub fn leaves(&self) -> Vec<&Subscribes> {
        match self {
            Subscribes::Event(_) | Subscribes::Step(_) => vec![self],
            Subscribes::All(parts) | Subscribes::Any(parts) => {
                parts.iter().flat_map(Subscribes::leaves).collect()
            }
        }
    }
}

/// How often, and how far apart, a failing step is tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Attempts in total; 1 means no retry.
    pub attempts: u32,
    pub backoff: Backoff,
    pub delay: Duration,
    pub max_delay: Duration,
    pub jitter: bool,
    /// Retry only these error codes.
    pub only: Vec<String>,
    /// Never retry these error codes.
    pub except: Vec<String>,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            attempts: 1,
            backoff: Backoff::Exponential,
            delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
            jitter: true,
            only: Vec::new(),
            except: Vec::new(),
        }
    }
}

words! {
    /// How the delay grows from one attempt to the next.
    #[derive(Default)]
    pub enum Backoff {
        Fixed = "fixed",
        Linear = "linear",
        #[default]
        Exponential = "exponential",
    }
}

words! {
    /// What a step that is out of attempts does to its run.
    #[derive(Default)]
    pub enum OnFailure {
        /// The run will end `failed`; independent branches continue.
        #[default]
        Fail = "fail",
        /// The run continues as if the step had emitted nothing.
        Continue = "continue",
    }
}

/// When a run's key-value state is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cleanup {
    /// With the run itself.
    #[default]
    Never,
    /// In the commit that ends the run.
    OnComplete,
    /// This long after each write.
    Ttl(Duration),
}

/// The queue of a step that names none.
pub const DEFAULT_QUEUE: &str = "default";
/// The queue of a `start` step that names none: what only waits for another run should not keep others from working.
pub const START_QUEUE: &str = "start";

impl Definition {
    pub fn new(flow: &str) -> Definition {
        Definition { flow: flow.to_owned(), ..Definition::default() }
    }

    /// The definition as JSON in the keys of the file format, defaults left out: what is stored and hashed.
    pub fn canonical(&self) -> String {
        match serde_json::to_string(self) {
            Ok(text) => text,
            Err(error) => unreachable!("a definition is plain data: {error}"),
        }
    }

    /// The identity of this definition: SHA-256 of its canonical JSON.
    pub fn hash(&self) -> String {
        digest(self.canonical().as_bytes())
    }

    /// What it is called: `flow` or `machine`.
    pub fn kind(&self) -> &'static str {
        if self.machine.is_some() { "machine" } else { "flow" }
    }

    /// Where one of its steps or actions stands.
    fn place_of(&self, step: &StepDefinition) -> Place {
        Place::root().key(if self.machine.is_some() { "actions" } else { "steps" }).key(&step.name)
    }

    pub fn step(&self, name: &str) -> Option<&StepDefinition> {
        self.steps.iter().find(|step| step.name == name)
    }
}

impl StepDefinition {
    pub fn new(name: &str, runner: Runner) -> StepDefinition {
        let queue = match &runner {
            Runner::Worker(queue) => queue.clone(),
            Runner::Start(_) => START_QUEUE.to_owned(),
            _ => DEFAULT_QUEUE.to_owned(),
        };
        StepDefinition {
            name: name.to_owned(),
            description: None,
            runner,
            stdin: Stdin::default(),
            queue,
            subscribes: None,
            emits: BTreeMap::new(),
            returns: None,
            condition: None,
            after: Vec::new(),
            on_error: None,
            retry: Retry::default(),
            timeout: None,
            on_failure: OnFailure::default(),
            priority: None,
        }
    }

    /// Every event that this step can publish, `returns` included.
    pub fn published(&self) -> impl Iterator<Item = &str> {
        let returns = self.returns.as_deref().filter(|name| !self.emits.contains_key(*name));
        self.emits.keys().map(String::as_str).chain(returns)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
