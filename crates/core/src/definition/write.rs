//! A definition as JSON, in the keys of the file format with defaults left out: what is stored and hashed.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Cleanup, DEFAULT_QUEUE, Definition, HttpRequest, Retry, Runner, StepDefinition, Subscribes};
use crate::time::format_duration;

/// What a map in the file format leaves out: keys without a value, and defaults.
trait FileMap: SerializeMap {
    fn optional<T: Serialize>(&mut self, key: &'static str, value: &Option<T>) -> Result<(), Self::Error> {
        value.as_ref().map_or(Ok(()), |value| self.serialize_entry(key, value))
    }

    fn unless_default<T: Serialize + Default + PartialEq>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Self::Error> {
        self.unless(key, value, &T::default())
    }

    fn unless<T: Serialize + PartialEq>(
        &mut self,
        key: &'static str,
        value: &T,
        default: &T,
    ) -> Result<(), Self::Error> {
        if value == default { Ok(()) } else { self.serialize_entry(key, value) }
    }
}

impl<M: SerializeMap> FileMap for M {}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.kind(), &self.flow)?;
        map.optional("description", &self.description)?;
        map.optional("input", &self.input)?;
        map.unless_default(if self.machine.is_some() { "events" } else { "accepts" }, &self.accepts)?;
        map.optional("output", &self.output)?;
        map.unless_default("fail_fast", &self.fail_fast)?;
        map.optional("timeout", &self.timeout.map(format_duration))?;
        map.unless_default("state", &self.state)?;
        map.optional("retain", &self.retain)?;
        let steps = ByName(&self.steps, |step| &step.name);
        let Some(machine) = &self.machine else {
            map.serialize_entry("steps", &steps)?;
            return map.end();
        };
        map.unless_default("context", &machine.context)?;
        map.serialize_entry("initial", &machine.initial)?;
        map.serialize_entry("states", &ByName(&machine.states, |state| &state.name))?;
        if !self.steps.is_empty() {
            map.serialize_entry("actions", &steps)?;
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

/// Without its name, which is the key it stands under. The queue of a `start` step is always written, because two defaults
/// are possible.
impl Serialize for StepDefinition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.optional("description", &self.description)?;
        match &self.runner {
            Runner::Command(argv) => map.serialize_entry("command", argv)?,
            Runner::Http(request) => map.serialize_entry("http", request)?,
            Runner::Worker(queue) => map.serialize_entry("worker", queue)?,
            Runner::Function(name) => map.serialize_entry("function", name)?,
            Runner::Start(start) => map.serialize_entry("start", start)?,
            Runner::Send(send) => map.serialize_entry("send", send)?,
        }
        map.unless_default("stdin", &self.stdin)?;
        if self.queue != DEFAULT_QUEUE || matches!(self.runner, Runner::Start(_)) {
            map.serialize_entry("queue", &self.queue)?;
        }
        map.optional("subscribes", &self.subscribes)?;
        map.unless_default("emits", &self.emits)?;
        map.optional("returns", &self.returns)?;
        map.optional("if", &self.condition)?;
        map.unless_default("after", &self.after)?;
        map.optional("on_error", &self.on_error)?;
        map.unless_default("retry", &self.retry)?;
        map.optional("timeout", &self.timeout.map(format_duration))?;
        map.unless_default("on_failure", &self.on_failure)?;
        map.optional("priority", &self.priority)?;
        map.end()
    }
}

impl Serialize for Retry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let default = Retry::default();
        let [delay, default_delay] = [self.delay, default.delay].map(format_duration);
        let [max_delay, default_max_delay] = [self.max_delay, default.max_delay].map(format_duration);
        map.unless("attempts", &self.attempts, &default.attempts)?;
        map.unless("backoff", &self.backoff, &default.backoff)?;
        map.unless("delay", &delay, &default_delay)?;
        map.unless("max_delay", &max_delay, &default_max_delay)?;
        map.unless("jitter", &self.jitter, &default.jitter)?;
        map.unless_default("only", &self.only)?;
        map.unless_default("except", &self.except)?;
        map.end()
    }
}

impl Serialize for HttpRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(&self.method.to_lowercase(), &self.url)?;
        map.unless_default("headers", &self.headers)?;
        map.optional("body", &self.body)?;
        map.optional("secret", &self.secret)?;
        map.unless_default("callback", &self.callback)?;
        map.end()
    }
}

impl Serialize for Subscribes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Subscribes::Event(name) => serializer.serialize_str(name),
            Subscribes::Step(name) => serializer.collect_str(&format_args!("step:{name}")),
            Subscribes::All(all) => all.serialize(serializer),
            Subscribes::Any(any) => serializer.collect_map([("any", any)]),
        }
    }
}

impl Serialize for Cleanup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cleanup::Never => serializer.serialize_str("never"),
            Cleanup::OnComplete => serializer.serialize_str("on-complete"),
            Cleanup::Ttl(ttl) => serializer.collect_map([("ttl", format_duration(*ttl))]),
        }
    }
}
