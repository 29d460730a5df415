//! A definition as JSON, in the keys of the file format with defaults left out: what is stored and hashed.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{
    Cleanup, DEFAULT_QUEUE, Definition, HttpRequest, Runner, Stdin, StepDefinition, Subscribes, is_default,
};
use crate::time::format_duration;

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.kind(), &self.flow)?;
        if let Some(description) = &self.description {
            map.serialize_entry("description", description)?;
        }
        if let Some(input) = &self.input {
            map.serialize_entry("input", input)?;
        }
        if !self.accepts.is_empty() {
            let key = if self.machine.is_some() { "events" } else { "accepts" };
            map.serialize_entry(key, &self.accepts)?;
        }
        if let Some(output) = &self.output {
            map.serialize_entry("output", output)?;
        }
        if self.fail_fast {
            map.serialize_entry("fail_fast", &true)?;
        }
        if let Some(timeout) = self.timeout {
            map.serialize_entry("timeout", &format_duration(timeout))?;
        }
        if self.state != Cleanup::Never {
            map.serialize_entry("state", &self.state)?;
        }
        if let Some(retain) = &self.retain {
            map.serialize_entry("retain", retain)?;
        }
        let Some(machine) = &self.machine else {
            map.serialize_entry("steps", &ByName(&self.steps, |step| &step.name))?;
            return map.end();
        };
        if !machine.context.is_empty() {
            map.serialize_entry("context", &machine.context)?;
        }
        map.serialize_entry("initial", &machine.initial)?;
        map.serialize_entry("states", &ByName(&machine.states, |state| &state.name))?;
        if !self.steps.is_empty() {
            map.serialize_entry("actions", &ByName(&self.steps, |step| &step.name))?;
        }
        map.end()
    }
}

/// A list of named things, written as a map in its order.
struct ByName<'a, T>(&'a [T], fn(&T) -> &String);

impl<T: Serialize> Serialize for ByName<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|item| ((self.1)(item), item)))
    }
}

impl Serialize for StepDefinition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(description) = &self.description {
            map.serialize_entry("description", description)?;
        }
        match &self.runner {
            Runner::Command(argv) => map.serialize_entry("command", argv)?,
            Runner::Http(request) => map.serialize_entry("http", request)?,
            Runner::Worker(queue) => map.serialize_entry("worker", queue)?,
            Runner::Function(name) => map.serialize_entry("function", name)?,
            Runner::Start(start) => map.serialize_entry("start", start)?,
            Runner::Send(send) => map.serialize_entry("send", send)?,
        }
        if self.stdin == Stdin::Open {
            map.serialize_entry("stdin", "open")?;
        }
        if self.queue != DEFAULT_QUEUE || matches!(self.runner, Runner::Start(_)) {
            map.serialize_entry("queue", &self.queue)?;
        }
        if let Some(subscribes) = &self.subscribes {
            map.serialize_entry("subscribes", subscribes)?;
        }
        if !self.emits.is_empty() {
            map.serialize_entry("emits", &self.emits)?;
        }
        if let Some(event) = &self.returns {
            map.serialize_entry("returns", event)?;
        }
        if let Some(condition) = &self.condition {
            map.serialize_entry("if", condition)?;
        }
        if !self.after.is_empty() {
            map.serialize_entry("after", &self.after)?;
        }
        if let Some(state) = &self.on_error {
            map.serialize_entry("on_error", state)?;
        }
        if !is_default(&self.retry) {
            map.serialize_entry("retry", &self.retry)?;
        }
        if let Some(timeout) = self.timeout {
            map.serialize_entry("timeout", &format_duration(timeout))?;
        }
        if !is_default(&self.on_failure) {
            map.serialize_entry("on_failure", &self.on_failure)?;
        }
        if let Some(priority) = &self.priority {
            map.serialize_entry("priority", priority)?;
        }
        map.end()
    }
}

impl Serialize for HttpRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(&self.method.to_lowercase(), &self.url)?;
        if !self.headers.is_empty() {
            map.serialize_entry("headers", &self.headers)?;
        }
        if let Some(body) = &self.body {
            map.serialize_entry("body", body)?;
        }
        if let Some(secret) = &self.secret {
            map.serialize_entry("secret", secret)?;
        }
        if self.callback {
            map.serialize_entry("callback", &true)?;
        }
        map.end()
    }
}

impl Serialize for Subscribes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Subscribes::Event(name) => serializer.serialize_str(name),
            Subscribes::Step(name) => serializer.collect_str(&format_args!("step:{name}")),
            Subscribes::All(all) => all.serialize(serializer),
            Subscribes::Any(any) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("any", any)?;
                map.end()
            }
        }
    }
}

impl Serialize for Cleanup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cleanup::Never => serializer.serialize_str("never"),
            Cleanup::OnComplete => serializer.serialize_str("on-complete"),
            Cleanup::Ttl(ttl) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("ttl", &format_duration(*ttl))?;
                map.end()
            }
        }
    }
}
