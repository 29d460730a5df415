//! One step: its runner, what it waits for, how it is tried.

use super::Reader;
use crate::definition::place::Place;
use crate::definition::source::{Map, MapEntry, Node, NodeValue};
use crate::definition::{
    Backoff, HttpRequest, METHODS, OnFailure, Priority, Retry, Runner, Stdin, StepDefinition, Subscribes,
};

/// The keys that say how a step runs, each with what reads it.
const RUNNERS: [(&str, ReadRunner); 6] = [
    ("command", |reader, entry, at| {
        reader.texts(entry, at, "a program and its arguments").map(Runner::Command)
    }),
    ("http", |reader, entry, at| reader.http(entry, at).map(Runner::Http)),
    ("worker", |reader, entry, at| reader.text(entry, at, "the name of a queue").map(Runner::Worker)),
    ("function", |reader, entry, at| {
        reader.text(entry, at, "the name of a registered function").map(Runner::Function)
    }),
    ("start", |reader, entry, at| reader.start(entry, at).map(Runner::Start)),
    ("send", |reader, entry, at| reader.send(entry, at).map(Runner::Send)),
];
type ReadRunner = fn(&mut Reader, &MapEntry, &Place) -> Option<Runner>;

const STEP_KEYS: [&str; 17] = [
    "description",
    "command",
    "http",
    "worker",
    "function",
    "start",
    "send",
    "stdin",
    "queue",
    "subscribes",
    "emits",
    "returns",
    "if",
    "retry",
    "timeout",
    "on_failure",
    "priority",
];
const ACTION_KEYS: [&str; 16] = [
    "description",
    "command",
    "http",
    "worker",
    "function",
    "start",
    "send",
    "stdin",
    "queue",
    "after",
    "if",
    "retry",
    "timeout",
    "on_failure",
    "on_error",
    "priority",
];
const RETRY_KEYS: [&str; 7] = ["attempts", "backoff", "delay", "max_delay", "jitter", "only", "except"];
const HTTP_KEYS: [&str; 9] =
    ["get", "post", "put", "patch", "delete", "headers", "body", "secret", "callback"];

/// What differs between the steps of flows and the actions of machines.
pub(super) struct StepKind {
    pub(super) word: &'static str,
    a_word: &'static str,
    keys: &'static [&'static str],
}

pub(super) const STEP: StepKind = StepKind { word: "step", a_word: "a step", keys: &STEP_KEYS };
pub(super) const ACTION: StepKind = StepKind { word: "action", a_word: "an action", keys: &ACTION_KEYS };

impl Reader {
    /// Reads as much of a step or an action as can be read.
    pub(super) fn step(&mut self, entry: &MapEntry, place: &Place, kind: &StepKind) -> StepDefinition {
        let name = &entry.key;
        // Stands in for a runner that cannot be read; the definition is refused then, so it never runs.
        let unread = || Runner::Function("unread".to_owned());
        let NodeValue::Map(map) = &entry.value.value else {
            self.graph_unread = true;
            let message =
                format!("{} {name:?} expects a map of its keys, found {}", kind.word, entry.value.describe());
            let help = "say how it runs: {command: [./program]}, http, worker, function, start or send";
            self.error("wrong-type", place, entry.key_span.clone(), message, help);
            return StepDefinition::new(name, unread());
        };
        let runner = self.runner(entry, map, place, kind).unwrap_or_else(unread);
        let mut step = StepDefinition::new(name, runner);
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                key if !kind.keys.contains(&key) => {
                    self.graph_unread = true;
                    self.unknown_key(kind.a_word, kind.keys, entry, &at);
                }
                "description" => step.description = self.text(entry, &at, "text"),
                "stdin" => self.stdin(entry, &at, &mut step, kind),
                "queue" => self.queue(entry, &at, map, &mut step, kind),
                // Nothing to wait for: it starts with the run.
                "subscribes" if matches!(&entry.value.value, NodeValue::List(items) if items.is_empty()) => {}
                "subscribes" => step.subscribes = self.subscribes(&entry.value, &at, name),
                "emits" => step.emits = self.events(entry, &at),
                "returns" => {
                    step.returns = self.text(entry, &at, "the name of the event that carries the result");
                    self.graph_unread |= step.returns.is_none();
                }
                "after" => step.after = self.names(entry, &at, "actions"),
                "on_error" => {
                    step.on_error = self.text(entry, &at, "the name of a state");
                    self.graph_unread |= step.on_error.is_none();
                }
                "if" => step.condition = self.text(entry, &at, "a CEL expression in text"),
                "retry" => step.retry = self.retry(entry, &at),
                "timeout" => step.timeout = self.duration(entry, &at),
                "on_failure" => {
                    let choice = self.choice(entry, &at, OnFailure::ALL, OnFailure::as_str);
                    step.on_failure = choice.unwrap_or_default();
                }
                "priority" => step.priority = self.choice(entry, &at, Priority::ALL, Priority::as_str),
                // How it runs is read already.
                _ => {}
            }
        }
        step
    }

    fn runner(&mut self, step: &MapEntry, map: &Map, place: &Place, kind: &StepKind) -> Option<Runner> {
        let word = kind.word;
        let reads =
            |entry: &MapEntry| RUNNERS.iter().find(|(key, _)| *key == entry.key).map(|(_, read)| *read);
        let given: Vec<(&MapEntry, ReadRunner)> =
            map.entries().iter().filter_map(|entry| Some((entry, reads(entry)?))).collect();
        match given[..] {
            [(entry, read)] => read(self, entry, &place.key(&entry.key)),
            [] => {
                // A misspelt runner is an unknown key already; saying that none is there would be noise.
                let misspelt = map.entries().iter().any(|entry| !kind.keys.contains(&entry.key.as_str()));
                if !misspelt {
                    let message = format!("{word} {:?} doesn't say how it runs", step.key);
                    let help = "add one of command: [./program], http: {post: URL}, worker: QUEUE, function: NAME, start: {flow: NAME} or send: {run: ID, event: NAME}";
                    self.error("missing-runner", place, step.key_span.clone(), message, help);
                }
                None
            }
            [(first, _), (second, _), ..] => {
                let message = format!("{word} {:?} has both `{}` and `{}`", step.key, first.key, second.key);
                let help = format!("{} runs in one way; keep one of them", kind.a_word);
                self.error("two-runners", &place.key(&second.key), second.key_span.clone(), message, &help);
                None
            }
        }
    }

    fn http(&mut self, entry: &MapEntry, place: &Place) -> Option<HttpRequest> {
        let NodeValue::Map(map) = &entry.value.value else {
            self.wrong_type(&entry.value, place, "`http`", "a map", "write {post: \"https://…\"}");
            return None;
        };
        let mut request = HttpRequest::new("", "");
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                method if METHODS.contains(&method) && request.method.is_empty() => {
                    request.method = method.to_uppercase();
                    request.url = self.text(entry, &at, "a URL")?;
                }
                method if METHODS.contains(&method) => {
                    let message =
                        format!("`http` has both `{}` and `{method}`", request.method.to_lowercase());
                    let help = "a request has one method; keep one of them";
                    self.error("two-methods", &at, entry.key_span.clone(), message, help);
                }
                "headers" => request.headers = self.text_map(entry, &at, "text", "write {name: value}"),
                "body" => request.body = Some(entry.value.to_json()),
                "secret" => request.secret = self.text(entry, &at, "the name of a secret"),
                "callback" => request.callback = self.boolean(entry, &at).unwrap_or_default(),
                _ => _ = self.unknown_key("`http`", &HTTP_KEYS, entry, &at),
            }
        }
        if request.method.is_empty() {
            if map.entries().iter().all(|entry| HTTP_KEYS.contains(&entry.key.as_str())) {
                let message = "`http` has no method and URL".to_owned();
                let help = "add one of get, post, put, patch or delete: \"https://…\"";
                self.error("missing-key", place, entry.key_span.clone(), message, help);
            }
            return None;
        }
        Some(request)
    }

    fn stdin(&mut self, entry: &MapEntry, place: &Place, step: &mut StepDefinition, kind: &StepKind) {
        step.stdin = self.choice(entry, place, Stdin::ALL, Stdin::as_str).unwrap_or_default();
        if !matches!(step.runner, Runner::Command(_)) && step.stdin == Stdin::Open {
            let message = format!("{} {:?} has `stdin` but no `command`", kind.word, step.name);
            let help = "only a `command` has stdin; remove `stdin`";
            self.error("stdin-of-command", place, entry.key_span.clone(), message, help);
        }
    }

    /// `worker: Q` names the queue; a `queue` next to it must be the same, as in canonical JSON.
    fn queue(
        &mut self,
        entry: &MapEntry,
        place: &Place,
        map: &Map,
        step: &mut StepDefinition,
        kind: &StepKind,
    ) {
        let Some(queue) = self.text(entry, place, "the name of a queue") else { return };
        match (&step.runner, map.get("worker")) {
            (Runner::Worker(worker), _) if *worker == queue => {}
            (_, Some(_)) => {
                let message = format!("{} {:?} has both `worker` and `queue`", kind.word, step.name);
                let help = "`worker` names the queue; remove `queue`";
                self.error("queue-of-worker", place, entry.key_span.clone(), message, help);
            }
            _ => step.queue = queue,
        }
    }

    fn subscribes(&mut self, node: &Node, place: &Place, step: &str) -> Option<Subscribes> {
        match &node.value {
            NodeValue::String(text) => Some(match text.strip_prefix("step:") {
                Some(name) => Subscribes::Step(name.to_owned()),
                None => Subscribes::Event(text.clone()),
            }),
            NodeValue::List(items) => Some(Subscribes::All(self.subscribed(items, place, step))),
            NodeValue::Map(map)
                if map.entries().len() == 1 && (map.get("any").is_some() || map.get("all").is_some()) =>
            {
                let entry = &map.entries()[0];
                let at = place.key(&entry.key);
                let NodeValue::List(items) = &entry.value.value else {
                    self.graph_unread = true;
                    let help = "write [first, second]";
                    self.wrong_type(&entry.value, &at, &format!("`{}`", entry.key), "a list", help);
                    return None;
                };
                match entry.key.as_str() {
                    "any" => Some(Subscribes::Any(self.subscribed(items, &at, step))),
                    _ => Some(Subscribes::All(self.subscribed(items, place, step))),
                }
            }
            _ => {
                self.graph_unread = true;
                let what = format!("what step {step:?} subscribes to");
                let help = "write an event, \"step:NAME\", a list (all of them) or {any: [first, second]}";
                self.wrong_type(node, place, &what, "an event or a list of them", help);
                None
            }
        }
    }

    fn subscribed(&mut self, items: &[Node], place: &Place, step: &str) -> Vec<Subscribes> {
        items
            .iter()
            .enumerate()
            .filter_map(|(i, item)| self.subscribes(item, &place.index(i), step))
            .collect()
    }

    fn retry(&mut self, entry: &MapEntry, place: &Place) -> Retry {
        let mut retry = Retry::default();
        let map = match &entry.value.value {
            NodeValue::Map(map) => map,
            NodeValue::Number(_) => {
                retry.attempts = self.whole_number(&entry.value, place, "`retry`").unwrap_or(1);
                return retry;
            }
            _ => {
                let help = "write the number of attempts, or a map: {attempts: 3, delay: 1s}";
                self.wrong_type(&entry.value, place, "`retry`", "a number of attempts or a map", help);
                return retry;
            }
        };
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                "attempts" => {
                    retry.attempts = self.whole_number(&entry.value, &at, "`attempts`").unwrap_or(1)
                }
                "backoff" => {
                    retry.backoff = self.choice(entry, &at, Backoff::ALL, Backoff::as_str).unwrap_or_default()
                }
                "delay" => retry.delay = self.duration(entry, &at).unwrap_or(retry.delay),
                "max_delay" => retry.max_delay = self.duration(entry, &at).unwrap_or(retry.max_delay),
                "jitter" => retry.jitter = self.boolean(entry, &at).unwrap_or(true),
                "only" => retry.only = self.texts(entry, &at, "error codes").unwrap_or_default(),
                "except" => retry.except = self.texts(entry, &at, "error codes").unwrap_or_default(),
                _ => _ = self.unknown_key("`retry`", &RETRY_KEYS, entry, &at),
            }
        }
        retry
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::file_schema;

    #[test]
    fn the_file_schema_has_the_keys_of_steps_and_actions() {
        let schema = file_schema();
        for (name, keys) in [("step", &STEP_KEYS[..]), ("action", &ACTION_KEYS[..])] {
            let properties = schema["$defs"][name]["properties"].as_object().unwrap();
            let mut keys = keys.to_vec();
            keys.sort_unstable();
            let mut described: Vec<&str> = properties.keys().map(String::as_str).collect();
            described.sort_unstable();
            assert_eq!(described, keys, "{name}: see step() in definition/file_schema.rs");
            assert!(RUNNERS.iter().all(|(key, _)| keys.contains(key)), "{name}");
            let runners = RUNNERS.map(|(key, _)| json!({ "required": [key] }));
            assert_eq!(schema["$defs"][name]["oneOf"], json!(runners), "{name}");
        }
    }
}
