//! The keys of a machine's file.

use serde_json::{Value, json};

use crate::limits;

pub(super) fn machine() -> Value {
    json!({
        "description": "A machine: states that answer events.",
        "type": "object",
        "required": ["machine", "states"],
        "additionalProperties": false,
        "properties": {
            "machine": { "$ref": "#/$defs/name", "description": "The machine's name." },
            "description": { "type": "string", "description": "What the machine is for." },
            "input": { "$ref": "#/$defs/schema", "description": "JSON Schema of the run's input." },
            "events": { "$ref": "#/$defs/events", "description": "The events that a run takes." },
            "context": {
                "$ref": "#/$defs/changes", "description": "What a run's context begins with: CEL over `input`, by key."
            },
            "output": {
                "type": "string",
                "description": "CEL over `input` and `context` that gives the run's result. Default: the context."
            },
            "timeout": { "$ref": "#/$defs/duration", "description": "How long a run may take." },
            "state": { "$ref": "#/$defs/cleanup" },
            "retain": { "$ref": "#/$defs/retain" },
            "initial": { "$ref": "#/$defs/name", "description": "The state that a run begins in. Default: the first one." },
            "states": {
                "type": "object",
                "description": "The states by name.",
                "minProperties": 1,
                "maxProperties": limits::STATES,
                "propertyNames": { "$ref": "#/$defs/name" },
                "additionalProperties": { "$ref": "#/$defs/stateOfMachine" }
            },
            "actions": {
                "type": "object",
                "description": "The work that transitions ask for, by name.",
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
        "description": "A position that a machine can be in. It answers events or is final.",
        "additionalProperties": false,
        "properties": {
            "description": { "type": "string", "description": "What it means to be here." },
            "final": {
                "enum": [true, false, "failed"], "default": false,
                "description": "The run ends here: completed (true) or failed."
            },
            "entry": { "$ref": "#/$defs/names", "description": "Actions when the state is entered." },
            "exit": { "$ref": "#/$defs/names", "description": "Actions when the state is left." },
            "on": {
                "type": "object",
                "description": "What the state does on events. Of several transitions the first that applies is taken.",
                "propertyNames": { "$ref": "#/$defs/name" },
                "additionalProperties": {
                    "oneOf": [
                        { "$ref": "#/$defs/transition" },
                        { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/transition" } }
                    ]
                }
            },
            "after": {
                "description": "What time brings about, counted from when the state is entered.",
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
        "description": "Whose event it must be: one of these roles. Anyone's where the key is left out.",
        "oneOf": [{ "type": "string" }, { "type": "array", "minItems": 1, "items": { "type": "string" } }]
    });
    json!({
        "description": "Where an event leads: the name of a state, or a map.",
        "oneOf": [
            { "$ref": "#/$defs/name" },
            { "type": "object", "additionalProperties": false, "properties": keys }
        ]
    })
}

pub(super) fn timer() -> Value {
    let mut keys = leads_to("`input` and `context`");
    keys["in"] = json!({ "$ref": "#/$defs/duration", "description": "So long after the state is entered." });
    keys["at"] = json!({
        "type": "string",
        "description": "CEL over `input` and `context` that gives a time, evaluated when the state is entered."
    });
    keys["missed"] = json!({
        "enum": ["fire", "skip", "restart"], "default": "fire",
        "description": "What becomes of a timer that is found long after its time because nothing ran then."
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
        "to": { "$ref": "#/$defs/name", "description": "The next state. Without it the state is not left." },
        "if": { "type": "string", "description": format!("CEL over {variables}; false passes the transition over.") },
        "set": {
            "$ref": "#/$defs/changes",
            "description": format!("Changes of the context: CEL over {variables}, by key. A null takes the key away.")
        },
        "actions": { "$ref": "#/$defs/names", "description": "Actions of this transition." }
    })
}

/// The keys of a step, without those that wire it, and with those that place it in a transition.
pub(super) fn action() -> Value {
    let mut action = super::step();
    action["description"] =
        "Work that a transition asks for. It runs in exactly one way, as a step does.".into();
    let keys = &mut action["properties"];
    if let Some(keys) = keys.as_object_mut() {
        for key in ["subscribes", "emits", "returns"] {
            keys.remove(key);
        }
    }
    keys["description"]["description"] = "What the action does.".into();
    keys["if"]["description"] =
        "CEL over `input`, `context`, `payload`, `event`, `user`, `role` and `roles`; false skips the action.".into();
    keys["after"] = json!({ "$ref": "#/$defs/names", "description": "Actions of the same transition that must be done before it." });
    keys["on_failure"]["description"] = "What an action out of attempts does to its run.".into();
    keys["on_error"] = json!({
        "$ref": "#/$defs/name", "description": "The state that the machine moves to when the action is out of attempts."
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
