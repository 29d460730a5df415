//! The file format as JSON Schema, for editors that complete and check while one types.
//!
//! It describes the shape only. Names that refer to each other, cycles and expressions are checked by reading the file.

mod machine;

use serde_json::{Value, json};

use crate::limits;

/// JSON Schema (2020-12) of a definition file, of a flow or a machine.
pub fn file_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Flowline definition",
        "description": "A flow (steps wired by events) or a machine (states that react to events).",
        "type": "object",
        "if": { "anyOf": [{ "required": ["machine"] }, { "required": ["states"] }] },
        "then": { "$ref": "#/$defs/machine" },
        "else": { "$ref": "#/$defs/flow" },
        "$defs": {
            "flow": flow(),
            "machine": machine::machine(),
            "stateOfMachine": machine::state(),
            "transition": machine::transition(),
            "timer": machine::timer(),
            "action": machine::action(),
            "names": machine::names(),
            "changes": machine::changes(),
            "name": name(),
            "duration": {
                "type": "string",
                "description": "A duration: 250ms, 30s, 5m, 1h, 7d, or several in a row as in 1h30m.",
                "pattern": "^\\s*([0-9]+(ms|s|m|h|d))+\\s*$",
                "examples": ["30s", "5m", "1h30m"]
            },
            "schema": { "type": ["object", "boolean"], "description": "A JSON Schema." },
            "cleanup": cleanup(),
            "retain": retain(),
            "events": events(),
            "subscribes": subscribes(),
            "http": http(),
            "start": start(),
            "send": send(),
            "retry": retry(),
            "step": step()
        }
    })
}

fn flow() -> Value {
    json!({
        "description": "A flow: steps that subscribe to and emit events.",
        "type": "object",
        "required": ["flow", "steps"],
        "additionalProperties": false,
        "properties": {
            "flow": { "$ref": "#/$defs/name", "description": "The flow's name." },
            "description": { "type": "string", "description": "What the flow is for." },
            "input": { "$ref": "#/$defs/schema", "description": "JSON Schema of the run's input." },
            "accepts": { "$ref": "#/$defs/events", "description": "External events that a run accepts." },
            "output": {
                "type": "string",
                "description": "CEL expression over `input`, `events` and `results` for the run's result. Default: the results of completed leaf steps by name."
            },
            "fail_fast": {
                "type": "boolean", "default": false, "description": "Stop triggering steps once one has failed."
            },
            "timeout": { "$ref": "#/$defs/duration", "description": "How long a run may take." },
            "state": { "$ref": "#/$defs/cleanup" },
            "retain": { "$ref": "#/$defs/retain" },
            "steps": {
                "type": "object",
                "description": "Steps by name.",
                "minProperties": 1,
                "maxProperties": limits::STEPS,
                "propertyNames": { "$ref": "#/$defs/name" },
                "additionalProperties": { "$ref": "#/$defs/step" }
            }
        }
    })
}

fn cleanup() -> Value {
    json!({
        "description": "When the run's key-value state is removed: with the run, when it ends, or some time after each write.",
        "default": "never",
        "oneOf": [
            { "enum": ["never", "on-complete"] },
            {
                "type": "object", "required": ["ttl"], "additionalProperties": false,
                "properties": { "ttl": { "$ref": "#/$defs/duration" } }
            }
        ]
    })
}

fn retain() -> Value {
    json!({
        "description": "How long ended runs are kept, counted from their end. A value that is left out follows the engine's settings keep-events and keep-runs.",
        "type": "object",
        "minProperties": 1,
        "additionalProperties": false,
        "properties": {
            "events": { "$ref": "#/$defs/duration", "description": "How long the log is kept. At most as long as `runs`." },
            "runs": { "$ref": "#/$defs/duration", "description": "How long the run itself is kept." }
        },
        "examples": [{ "events": "1d", "runs": "7d" }]
    })
}

fn name() -> Value {
    json!({
        "type": "string",
        "description": "Letters, digits, '.', '_' and '-', starting with a letter or digit.",
        "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$",
        "maxLength": limits::NAME_BYTES
    })
}

fn events() -> Value {
    json!({
        "description": "Event names, as a list or as a map to the JSON Schema of each.",
        "oneOf": [
            { "type": "array", "uniqueItems": true, "items": { "$ref": "#/$defs/name" } },
            {
                "type": "object",
                "propertyNames": { "$ref": "#/$defs/name" },
                "additionalProperties": { "oneOf": [{ "type": "null" }, { "$ref": "#/$defs/schema" }] }
            }
        ]
    })
}

fn subscribes() -> Value {
    let list = json!({ "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/subscribes" } });
    let one_key = |key: &str, description: &str| {
        json!({
            "type": "object", "required": [key], "additionalProperties": false,
            "properties": { key: list }, "description": description
        })
    };
    json!({
        "description": "What a step waits for: an event, `step:NAME`, a list (all of them), or {any: [...]} (one of them). They nest.",
        "oneOf": [
            { "type": "string", "pattern": "^(step:)?[A-Za-z0-9][A-Za-z0-9._-]*$" },
            list,
            one_key("any", "One of these is enough."),
            one_key("all", "All of these must happen.")
        ]
    })
}

fn http() -> Value {
    let method = |name: &str| json!({ "type": "string", "description": format!("URL of a {name} request; may contain ${{CEL}}.") });
    let methods = ["get", "post", "put", "patch", "delete"];
    json!({
        "type": "object",
        "description": "An HTTP request: one method with its URL. Text may contain ${CEL} over `input`, `run` and `step`.",
        "additionalProperties": false,
        "oneOf": methods.map(|method| json!({ "required": [method] })),
        "properties": {
            "get": method("GET"), "post": method("POST"), "put": method("PUT"),
            "patch": method("PATCH"), "delete": method("DELETE"),
            "headers": {
                "type": "object", "description": "Headers to send.", "additionalProperties": { "type": "string" }
            },
            "body": { "description": "Body to send instead of the step's input." },
            "secret": {
                "type": "string", "pattern": "^[A-Za-z0-9_]+$",
                "description": "Sign the request with the secret of this name, from the environment variable FLOWLINE_SECRET_NAME."
            },
            "callback": {
                "type": "boolean", "default": false,
                "description": "A 202 response means that the outcome will be reported later, at the URL in the header flowline-callback-url."
            }
        }
    })
}

fn start() -> Value {
    json!({
        "type": "object",
        "description": "Starts a run and waits for it to end; its result becomes the step's result. Text may contain ${CEL} over `input`, `run` and `step`.",
        "additionalProperties": false,
        "required": ["flow"],
        "properties": {
            "flow": { "$ref": "#/$defs/name", "description": "A flow or a machine." },
            "input": { "description": "The input of the run. Default: the step's input." }
        }
    })
}

fn send() -> Value {
    let event = json!({ "$ref": "#/$defs/name", "description": "The event to send." });
    let payload = json!({ "description": "The payload of the event. Default: null." });
    json!({
        "type": "object",
        "description": "Sends an event to a run. Text may contain ${CEL} over `input`, `run` and `step`.",
        "oneOf": [
            {
                "additionalProperties": false,
                "required": ["run", "event"],
                "properties": {
                    "run": { "type": "string", "minLength": 1, "description": "The id of the run." },
                    "event": event,
                    "payload": payload
                }
            },
            {
                "additionalProperties": false,
                "required": ["machine", "key", "event"],
                "properties": {
                    "machine": { "$ref": "#/$defs/name", "description": "The machine whose run gets the event." },
                    "key": { "type": "string", "minLength": 1, "description": "Business key of the run, which is started if it doesn't exist." },
                    "input": { "description": "Input for the run, if it has to be started. Default: the step's input." },
                    "event": event,
                    "payload": payload
                }
            }
        ]
    })
}

fn retry() -> Value {
    let attempts = json!({
        "type": "integer", "minimum": 1, "maximum": limits::ATTEMPTS, "default": 1,
        "description": "Attempts in total; 1 means no retry."
    });
    let codes = |description: &str| json!({ "type": "array", "items": { "type": "string" }, "description": description });
    json!({
        "description": "Retry policy: the number of attempts, or a map.",
        "oneOf": [
            attempts,
            {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "attempts": attempts,
                    "backoff": {
                        "enum": ["fixed", "linear", "exponential"], "default": "exponential",
                        "description": "How the delay grows between attempts."
                    },
                    "delay": { "$ref": "#/$defs/duration", "description": "Delay before the second attempt. Default 1s." },
                    "max_delay": { "$ref": "#/$defs/duration", "description": "The longest delay. Default 1m." },
                    "jitter": { "type": "boolean", "default": true, "description": "Shorten each delay at random, so that many runs don't retry at once." },
                    "only": codes("Retry only these error codes."),
                    "except": codes("Never retry these error codes.")
                }
            }
        ]
    })
}

fn step() -> Value {
    let one_runner = ["command", "http", "worker", "function", "start", "send"]
        .map(|runner| json!({ "required": [runner] }));
    json!({
        "type": "object",
        "description": "A named piece of work. It has exactly one runner: command, http, worker, function, start or send.",
        "additionalProperties": false,
        "oneOf": one_runner,
        "properties": {
            "description": { "type": "string", "description": "What the step does." },
            "command": {
                "type": "array", "minItems": 1, "items": { "type": "string" },
                "description": "A program and its arguments, run without a shell.",
                "examples": [["./charge.sh", "--fast"]]
            },
            "http": { "$ref": "#/$defs/http" },
            "worker": { "$ref": "#/$defs/name", "description": "Remote workers of this queue run the step." },
            "function": { "$ref": "#/$defs/name", "description": "A function registered in the process that runs the engine." },
            "start": { "$ref": "#/$defs/start" },
            "send": { "$ref": "#/$defs/send" },
            "stdin": {
                "enum": ["closed", "open"], "default": "closed",
                "description": "Only with `command`: whether stdin stays open after the input, for replies."
            },
            "queue": { "$ref": "#/$defs/name", "default": "default", "description": "Queue of the step's jobs; not with `worker`, which names the queue." },
            "subscribes": {
                "description": "What the step waits for. Without it, or with an empty list, the step starts with the run.",
                "anyOf": [{ "$ref": "#/$defs/subscribes" }, { "type": "array", "maxItems": 0 }]
            },
            "emits": { "$ref": "#/$defs/events", "description": "Events that the step may emit." },
            "returns": { "$ref": "#/$defs/name", "description": "The step's result is emitted as this event." },
            "if": {
                "type": "string",
                "description": "CEL condition over `input` and `events`, evaluated once when the step would be triggered; false skips the step."
            },
            "retry": { "$ref": "#/$defs/retry" },
            "timeout": { "$ref": "#/$defs/duration", "description": "How long one attempt may take." },
            "on_failure": {
                "enum": ["fail", "continue"], "default": "fail",
                "description": "What happens to the run when the step is out of attempts."
            },
            "priority": {
                "enum": ["low", "normal", "high", "urgent"], "default": "normal",
                "description": "Which queued job starts first."
            }
        }
    })
}
