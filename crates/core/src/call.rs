//! What `start` and `send` steps ask of the engine: compiled once per definition, rendered for each attempt.
//!
//! Nothing is started or sent here. Names are fixed in the definition; only what is handed over, and to which run, comes
//! from the step's input.

use serde_json::Value;

use crate::budget::Budget;
use crate::definition::{Receiver, Runner, SendEvent, StartRun};
use crate::expr::{EvaluationError, Variables};
use crate::json::Json;
use crate::limits::{self, Limits};
use crate::request::{Given, RenderError, one_line};
use crate::shape::Shape;
use crate::template::Template;

/// A call with its templates parsed.
#[derive(Debug)]
pub struct CallTemplate {
    call: Parsed,
    reads_input: bool,
}

/// A call ready to be made.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Start a run of this flow or machine, and wait for its end.
    Start { flow: String, input: Json },
    /// Send this event.
    Send { to: Addressee, event: String, payload: Json },
}

/// Who gets an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Addressee {
    /// The run with this id.
    Run(String),
    /// The run with this key, which is started with this input if it doesn't exist.
    Machine { machine: String, key: String, input: Json },
}

#[derive(Debug)]
enum Parsed {
    Start { flow: String, input: Option<Shape> },
    Send { to: To, event: String, payload: Option<Shape> },
}

#[derive(Debug)]
enum To {
    Run(Template),
    Machine { machine: String, key: Template, input: Option<Shape> },
}

impl CallTemplate {
    /// None for a runner that makes no call.
    pub fn compile(runner: &Runner) -> Result<Option<CallTemplate>, String> {
        Ok(match runner {
            Runner::Start(start) => Some(CallTemplate::start(start)?),
            Runner::Send(send) => Some(CallTemplate::send(send)?),
            _ => None,
        })
    }

    fn start(start: &StartRun) -> Result<CallTemplate, String> {
        let input = shape("the input", start.input.as_ref())?;
        let reads_input = reads(&input);
        Ok(CallTemplate { call: Parsed::Start { flow: start.flow.clone(), input }, reads_input })
    }

    fn send(send: &SendEvent) -> Result<CallTemplate, String> {
        let parse =
            |what: &str, text: &str| Template::parse(text).map_err(|problem| format!("{what} {problem}"));
        let payload = shape("the payload", send.payload.as_ref())?;
        let (to, to_reads) = match &send.to {
            Receiver::Run { run } => {
                let run = parse("the run", run)?;
                let reads_input = run.reads_input();
                (To::Run(run), reads_input)
            }
            Receiver::Machine { machine, key, input } => {
                let (key, input) = (parse("the key", key)?, shape("the input", input.as_ref())?);
                let reads_input = key.reads_input() || reads(&input);
                (To::Machine { machine: machine.clone(), key, input }, reads_input)
            }
        };
        let reads_input = to_reads || reads(&payload);
        Ok(CallTemplate { call: Parsed::Send { to, event: send.event.clone(), payload }, reads_input })
    }

    /// Renders it, within what a budget leaves.
    pub fn render(&self, given: &Given<'_>, budget: &Budget) -> Result<Call, RenderError> {
        let variables = given.variables(self.reads_input);
        let reads = (&variables, budget);
        Ok(match &self.call {
            Parsed::Start { flow, input } => {
                let input = input_of(input, given, reads)?;
                Call::Start { flow: flow.clone(), input }
            }
            Parsed::Send { to, event, payload } => {
                let to = match to {
                    To::Run(run) => Addressee::Run(line("the run", run, reads)?),
                    To::Machine { machine, key, input } => Addressee::Machine {
                        machine: machine.clone(),
                        key: line("the key", key, reads)?,
                        input: input_of(input, given, reads)?,
                    },
                };
                let payload = match payload {
                    Some(shape) => json("the payload", shape, reads, given.limits)?,
                    None => Json::nothing(),
                };
                Call::Send { to, event: event.clone(), payload }
            }
        })
    }
}

fn shape(what: &str, value: Option<&Value>) -> Result<Option<Shape>, String> {
    value.map(Shape::compile).transpose().map_err(|problem| format!("{what} {problem}"))
}

fn reads(shape: &Option<Shape>) -> bool {
    shape.as_ref().is_some_and(Shape::reads_input)
}

/// What a run is started with; the step's input where nothing else is said.
fn input_of(
    input: &Option<Shape>,
    given: &Given<'_>,
    reads: (&Variables, &Budget),
) -> Result<Json, RenderError> {
    match input {
        Some(shape) => json("the input", shape, reads, given.limits),
        None => Ok(given.input.clone()),
    }
}

fn json(
    what: &'static str,
    shape: &Shape,
    (variables, budget): (&Variables, &Budget),
    limits: Limits,
) -> Result<Json, RenderError> {
    let json = shape.value(variables, budget, limits.join()).map_err(at(what))?;
    Json::from(json).within(what, limits.payload()).map_err(|error| at(what)(error.to_string().into()))
}

/// The id of a run or a key: one line of text, and not nothing.
fn line(
    what: &'static str,
    template: &Template,
    (variables, budget): (&Variables, &Budget),
) -> Result<String, RenderError> {
    let text = template.text(variables, budget, str::to_owned).and_then(one_line).map_err(at(what))?;
    match text.len() {
        0 => Err(at(what)("it is empty".to_owned().into())),
        n if n > limits::KEY_BYTES => {
            Err(at(what)(format!("it has {n} bytes; the limit is {}", limits::KEY_BYTES).into()))
        }
        _ => Ok(text),
    }
}

fn at(place: &'static str) -> impl Fn(EvaluationError) -> RenderError {
    move |problem| RenderError::new(format!("{place} of the call"), &problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(runner: Runner, input: Value) -> Result<Call, RenderError> {
        let input = Json::from(input);
        let (run, step) = (json!({ "id": "r1" }), json!({ "attempt": 1 }));
        let given = Given { input: &input, run, step, limits: Limits::default() };
        CallTemplate::compile(&runner).unwrap().unwrap().render(&given, &Budget::default())
    }

    fn send(run: &str, payload: Option<Value>) -> Runner {
        let to = Receiver::Run { run: run.to_owned() };
        Runner::Send(SendEvent { to, event: "paid".to_owned(), payload })
    }

    #[test]
    fn a_run_is_started_with_what_the_templates_say_or_with_the_input_of_the_step() {
        let start = |input| Runner::Start(StartRun { flow: "pay".to_owned(), input });
        let started = |input: Value| Call::Start { flow: "pay".to_owned(), input: Json::from(input) };
        assert_eq!(render(start(None), json!({ "a": 1 })), Ok(started(json!({ "a": 1 }))));
        let shape = json!({ "order": "${input.id}", "by": "run ${run.id}", "n": [1, null] });
        let expected = json!({ "order": 7, "by": "run r1", "n": [1, null] });
        assert_eq!(render(start(Some(shape)), json!({ "id": 7 })), Ok(started(expected)));
    }

    #[test]
    fn an_event_goes_to_the_run_that_the_template_names() {
        let sent =
            render(send("${input.id}", Some(json!("${input.total}"))), json!({ "id": "r7", "total": 5 }));
        let to = Addressee::Run("r7".to_owned());
        assert_eq!(sent, Ok(Call::Send { to, event: "paid".to_owned(), payload: Json::from(json!(5)) }));
    }

    #[test]
    fn a_machine_is_reached_by_its_key_and_started_with_the_input() {
        let to =
            Receiver::Machine { machine: "order".to_owned(), key: "o-${input.id}".to_owned(), input: None };
        let runner = Runner::Send(SendEvent { to, event: "paid".to_owned(), payload: None });
        let to = Addressee::Machine {
            machine: "order".to_owned(),
            key: "o-7".to_owned(),
            input: Json::from(json!({ "id": 7 })),
        };
        let expected = Call::Send { to, event: "paid".to_owned(), payload: Json::nothing() };
        assert_eq!(render(runner, json!({ "id": 7 })), Ok(expected));
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let refused =
            |id: Value| render(send("${input.id}", None), json!({ "id": id })).unwrap_err().to_string();
        assert_eq!(refused(json!("")), "the run of the call: it is empty");
        assert_eq!(refused(json!(null)), "the run of the call: `input.id` gave null");
        assert!(refused(json!("a\nb")).contains("control character"));
        assert!(refused(json!("x".repeat(300))).contains("the limit is 256"));
    }

    #[test]
    fn what_is_handed_over_is_limited() {
        let payload = Some(json!(["${input}", "${input}"]));
        let error = render(send("r", payload), json!("x".repeat(1 << 19))).unwrap_err();
        assert!(error.to_string().starts_with("the payload of the call: "), "{error}");
    }
}
