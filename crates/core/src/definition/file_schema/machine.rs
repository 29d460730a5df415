//! The keys of a machine's file.

use serde_json::{Value, json};

use crate::limits;

pub(super) fn machine() -> Value {
    json!({
        "description": "A machine: states that react to events.",
        "type": "object",
        "required": ["machine", "states"],
        "additionalProperties": false,
        "properties": {
            "machine": { "$ref": "#/$defs/name", "description": "The machine's name." },
            "description": { "type": "string", "description": "What the machine is for." },
            "input": { "$ref": "#/$defs/schema", "description": "JSON Schema of the run's input." },
            "events": { "$ref": "#/$defs/events", "description": "Events that a run accepts." },
            "context": {
                "$ref": "#/$defs/changes", "description": "Initial context of a run: for each key, a CEL expression over `input`. Default: the input."
            },
            "output": {
                "type": "string",
                "description": "CEL expression over `input` and `context` for the run's result. Default: the context."
            },
            "timeout": { "$ref": "#/$defs/duration", "description": "How long a run may take." },
            "state": { "$ref": "#/$defs/cleanup" },
            "retain": { "$ref": "#/$defs/retain" },
            "initial": { "$ref": "#/$defs/name", "description": "The state in which a run starts. Default: the first one." },
            "states": {
                "type": "object",
                "description": "States by name.",
                "minProperties": 1,
                "maxProperties": limits::STATES,
                "propertyNames": { "$ref": "#/$defs/name" },
                "additionalProperties": { "$ref": "#/$defs/stateOfMachine" }
            },
            "actions": {
                "type": "object",
                "description": "Actions that transitions can trigger, by name.",
                "maxProperties": limits::ACTIONS,
                "propertyNames": { "$ref": "#/$defs/name" },
                "additionalProperties": { "$ref": "#/$defs/action" }
            }
        }
    })
}

pub(super) fn state() -> Value {
    json!({
        "type": "object",
        "description": "A state of a machine. It reacts to events, or it's final.",
        "additionalProperties": false,
        "properties": {
            "description": { "type": "string", "description": "What the state means." },
            "final": {
                "enum": [true, false, "failed"], "default": false,
                "description": "The run ends in this state, as completed (true) or failed."
            },
            "entry": { "$ref": "#/$defs/names", "description": "Actions to run when the state is entered." },
            "exit": { "$ref": "#/$defs/names", "description": "Actions to run when the state is left." },
            "on": {
                "type": "object",
                "description": "What to do on each event. The first transition of a list that applies is taken.",
                "propertyNames": { "$ref": "#/$defs/name" },
                "additionalProperties": {
                    "oneOf": [
                        { "$ref": "#/$defs/transition" },
                        { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/transition" } }
                    ]
                }
            },
            "after": {
                "description": "Timers, set when the state is entered.",
                "oneOf": [
                    { "$ref": "#/$defs/timer" },
                    { "type": "array", "minItems": 1, "maxItems": limits::TIMERS, "items": { "$ref": "#/$defs/timer" } }
                ]
            }
        }
    })
}

pub(super) fn transition() -> Value {
    let mut keys = leads_to("`input`, `context`, `payload`, `event`, `user`, `role` and `roles`");
    keys["role"] = json!({
        "description": "The sender must have one of these roles. Default: anyone can send it.",
        "oneOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "items": { "type": "string" } }]
    });
    json!({
        "description": "A transition: the name of the next state, or a map.",
        "oneOf": [
            { "$ref": "#/$defs/name" },
            { "type": "object", "additionalProperties": false, "properties": keys }
        ]
    })
}

pub(super) fn timer() -> Value {
    let mut keys = leads_to("`input` and `context`");
    keys["in"] = json!({ "$ref": "#/$defs/duration", "description": "How long after the state is entered." });
    keys["at"] = json!({
        "type": "string",
        "description": "CEL expression over `input` and `context` for a timestamp, evaluated when the state is entered."
    });
    keys["missed"] = json!({
        "enum": ["fire", "skip", "restart"], "default": "fire",
        "description": "What happens to a timer that is more than a minute late because nothing was running."
    });
    json!({
        "type": "object",
        "additionalProperties": false,
        "oneOf": [{ "required": ["in"] }, { "required": ["at"] }],
        "anyOf": [{ "required": ["to"] }, { "required": ["actions"] }, { "required": ["set"] }],
        "properties": keys
    })
}

/// What transitions and timers have alike.
fn leads_to(variables: &str) -> Value {
    json!({
        "to": { "$ref": "#/$defs/name", "description": "The next state. Without it, the machine stays in its state." },
        "if": { "type": "string", "description": format!("CEL condition over {variables}; if it's false, the transition isn't taken.") },
        "set": {
            "$ref": "#/$defs/changes",
            "description": format!("Changes to the context: for each key, a CEL expression over {variables}. Null removes the key.")
        },
        "actions": { "$ref": "#/$defs/names", "description": "Actions to run." }
    })
}

/// The keys of a step, without those that wire it, and with those that place it in a transition.
pub(super) fn action() -> Value {
    let mut action = super::step();
    action["description"] =
        "A piece of work that a transition triggers. Like a step, it has exactly one runner.".into();
    let keys = &mut action["properties"];
    if let Some(keys) = keys.as_object_mut() {
        for key in ["subscribes", "emits", "returns"] {
            keys.remove(key);
        }
    }
    keys["description"]["description"] = "What the action does.".into();
    keys["if"]["description"] =
        "CEL condition over `input`, `context`, `payload`, `event`, `user`, `role` and `roles`; if it's false, the action is skipped.".into();
    keys["after"] =
        json!({ "$ref": "#/$defs/names", "description": "Actions of the same transition to wait for." });
    keys["on_failure"]["description"] = "What happens to the run when the action is out of attempts.".into();
    keys["on_error"] = json!({
        "$ref": "#/$defs/name", "description": "The state to go to when the action is out of attempts."
    });
    action
}

pub(super) fn names() -> Value {
    json!({
        "description": "A name or a list of names.",
        "oneOf": [
            { "$ref": "#/$defs/name" },
            { "type": "array", "items": { "$ref": "#/$defs/name" } }
        ]
    })
}

pub(super) fn changes() -> Value {
    json!({
        "type": "object",
        "propertyNames": { "$ref": "#/$defs/name" },
        "additionalProperties": { "type": "string" }
    })
}
