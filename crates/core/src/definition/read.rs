//! From a file's text to a [`Definition`], with every mistake that can be found in one go.
//!
//! Three layers: the syntax of the format, the shape (keys and types, here and in `read/`), then the meaning
//! ([`check`](super::check)). A broken shape does not stop the others from being reported, except that nothing is said
//! of the graph while part of it could not be read: that would blame the wrong steps.

mod call;
mod machine;
mod step;
mod value;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::check::{check_graph, check_parts};
use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use super::place::Place;
use super::source::{self, Format, Map, MapEntry, Node, NodeValue};
use super::{Cleanup, Definition, Retain, suggest};

const FLOW_KEYS: [&str; 10] =
    ["flow", "description", "input", "accepts", "output", "fail_fast", "timeout", "state", "retain", "steps"];
const RETAIN_KEYS: [&str; 2] = ["events", "runs"];

/// Diagnostics reported for one file. More would only repeat themselves.
const REPORTED: usize = 100;
/// A message or remedy, in characters: it may quote a name of any length.
const MESSAGE_CHARS: usize = 600;

/// A definition that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    pub definition: Definition,
    pub warnings: Diagnostics,
}

/// Reads and checks a definition. `name` is the file's name for messages. On failure every error found is returned; on
/// success the warnings.
pub fn read(name: &str, text: &str, format: Format) -> Result<Read, Diagnostics> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let report = |mut items: Vec<Diagnostic>| {
        // Where something is wrong, doubts can wait.
        if items.iter().any(|item| item.severity == Severity::Error) {
            items.retain(|item| item.severity == Severity::Error);
        }
        items.sort_by_key(|item| item.span.as_ref().map_or(0, |span| span.start));
        items.truncate(REPORTED);
        items.iter_mut().for_each(clip);
        Diagnostics { file: name.to_owned(), text: Arc::from(text), items }
    };
    let root = source::parse(text, format).map_err(report)?;
    let mut reader = Reader { items: Vec::new(), graph_unread: false };
    let definition = reader.definition(&root);
    let mut items = reader.items;
    // Without a readable map there is nothing more to say than that.
    if let Some(definition) = &definition {
        let mut findings = check_parts(definition);
        if !reader.graph_unread {
            findings.extend(check_graph(definition));
        }
        // Where the shape is wrong already, the meaning is not judged.
        let wrong: BTreeSet<String> = items.iter().map(|item| item.place.clone()).collect();
        let findings = findings.into_iter().map(|finding| {
            let span = root.span_at(&finding.place);
            finding.diagnostic(Some(span))
        });
        items.extend(findings.filter(|finding| !wrong.contains(&finding.place)));
    }
    let diagnostics = report(items);
    match definition {
        Some(definition) if !diagnostics.has_errors() => Ok(Read { definition, warnings: diagnostics }),
        _ => Err(diagnostics),
    }
}

/// Reads a definition that was checked before it was stored. Rules that came later do not apply to it: runs that were
/// started under it must be able to end.
pub fn read_stored(name: &str, text: &str) -> Result<Definition, Diagnostics> {
    let report = |items| Diagnostics { file: name.to_owned(), text: Arc::from(text), items };
    let root = source::parse(text, Format::Json).map_err(report)?;
    let mut reader = Reader { items: Vec::new(), graph_unread: false };
    let definition = reader.definition(&root);
    let wrong = reader.items.iter().any(|item| item.severity == Severity::Error);
    definition.filter(|_| !wrong).ok_or_else(|| report(reader.items))
}

fn clip(item: &mut Diagnostic) {
    for text in [Some(&mut item.message), Some(&mut item.place), item.help.as_mut()].into_iter().flatten() {
        if let Some((at, _)) = text.char_indices().nth(MESSAGE_CHARS) {
            text.truncate(at);
            text.push('…');
        }
    }
}

/// Collects what is wrong while it reads on.
struct Reader {
    items: Vec<Diagnostic>,
    /// Something that decides who waits for whom could not be read.
    graph_unread: bool,
}

impl Reader {
    /// `flow` or `machine` says what the file describes; where neither is there, the other keys do.
    fn definition(&mut self, root: &Node) -> Option<Definition> {
        let place = Place::root();
        let NodeValue::Map(map) = &root.value else {
            let message =
                format!("expected a flow or a machine (a map of its keys), found {}", root.describe());
            let help = "start with flow: NAME and steps:, or with machine: NAME and states:";
            self.error("wrong-type", &place, root.span.start..root.span.start, message, help);
            return None;
        };
        let has = |key| map.get(key).is_some();
        if let (Some(_), Some(second)) = (map.get("flow"), map.get("machine")) {
            self.graph_unread = true;
            let message = "the file has both `flow` and `machine`".to_owned();
            let help = "a file describes one of them: a flow has `steps`, a machine has `states`";
            self.error("two-kinds", &place.key("machine"), second.key_span.clone(), message, help);
        }
        let machine = match (has("flow"), has("machine")) {
            (false, true) => true,
            (true, false) => false,
            _ => has("states"),
        };
        Some(if machine { self.machine(root, map) } else { self.flow(root, map) })
    }

    fn flow(&mut self, root: &Node, map: &Map) -> Definition {
        let place = Place::root();
        let mut definition = Definition::new("unnamed");
        let mut meant = Vec::new();
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                key if self.shared(key, entry, &at, &mut definition) => {}
                "flow" => definition.flow = self.text(entry, &at, "a name").unwrap_or_default(),
                "accepts" => definition.accepts = self.events(entry, &at),
                "fail_fast" => definition.fail_fast = self.boolean(entry, &at).unwrap_or_default(),
                "steps" => definition.steps = self.steps(entry, &at, &step::STEP),
                // Said already.
                "machine" => {}
                key if machine::OWN_KEYS.contains(&key) => {
                    self.graph_unread = true;
                    meant.push("steps");
                    let message = format!("a flow has no key {key:?}");
                    let help = "that's a key of machines; write machine: NAME instead of flow: NAME";
                    self.error("unknown-key", &at, entry.key_span.clone(), message, help);
                }
                _ => {
                    self.graph_unread = true;
                    meant.extend(self.unknown_key("a flow", &FLOW_KEYS, entry, &at));
                }
            }
        }
        let required = [("flow", "add flow: NAME"), ("steps", "add steps: with at least one step")];
        self.required(root, map, &required, &meant);
        definition
    }

    /// Reads a key that flows and machines have alike; false if it is none.
    fn shared(&mut self, key: &str, entry: &MapEntry, at: &Place, definition: &mut Definition) -> bool {
        match key {
            "description" => definition.description = self.text(entry, at, "text"),
            "input" => definition.input = self.schema(&entry.value, at, "`input`"),
            "output" => definition.output = self.text(entry, at, "a CEL expression in text"),
            "timeout" => definition.timeout = self.duration(entry, at),
            "state" => definition.state = self.cleanup(entry, at).unwrap_or_default(),
            "retain" => definition.retain = self.retain(entry, at),
            _ => return false,
        }
        true
    }

    /// Reports keys that must be there and are not, unless another was `meant` to be one of them.
    fn required(&mut self, root: &Node, map: &Map, keys: &[(&str, &str)], meant: &[&str]) {
        let place = Place::root();
        for (key, help) in keys {
            if map.get(key).is_none() && !meant.contains(key) {
                self.graph_unread = true;
                let message = format!("the key `{key}` is missing");
                self.error("missing-key", &place.key(key), root.span_at(&place), message, help);
            }
        }
    }

    /// The steps of a flow or the actions of a machine.
    fn steps(
        &mut self,
        entry: &MapEntry,
        place: &Place,
        kind: &step::StepKind,
    ) -> Vec<super::StepDefinition> {
        match &entry.value.value {
            NodeValue::Map(map) => {
                map.entries().iter().map(|step| self.step(step, &place.key(&step.key), kind)).collect()
            }
            _ => {
                self.graph_unread = true;
                let word = kind.word;
                let expected = format!("a map from {word} names to {word}s");
                let help = format!("write each {word} as NAME: {{command: […]}}");
                self.wrong_type(&entry.value, place, &format!("`{}`", entry.key), &expected, &help);
                Vec::new()
            }
        }
    }

    fn cleanup(&mut self, entry: &MapEntry, place: &Place) -> Option<Cleanup> {
        match &entry.value.value {
            NodeValue::String(text) if text == "never" => Some(Cleanup::Never),
            NodeValue::String(text) if text == "on-complete" => Some(Cleanup::OnComplete),
            NodeValue::Map(map) if map.get("ttl").is_some() => {
                for other in map.entries().iter().filter(|other| other.key != "ttl") {
                    self.unknown_key("`state`", &["ttl"], other, &place.key(&other.key));
                }
                map.get("ttl").and_then(|ttl| self.duration(ttl, &place.key("ttl"))).map(Cleanup::Ttl)
            }
            _ => {
                let help = "it sets when the run's key-value state is removed: with the run, when it ends, or after a time";
                self.wrong_type(&entry.value, place, "`state`", "never, on-complete or {ttl: 7d}", help);
                None
            }
        }
    }

    fn retain(&mut self, entry: &MapEntry, place: &Place) -> Option<Retain> {
        let NodeValue::Map(map) = &entry.value.value else {
            let help = "it sets how long ended runs are kept: `events` for the log, `runs` for the whole run";
            self.wrong_type(&entry.value, place, "`retain`", "{events: 1d, runs: 7d}", help);
            return None;
        };
        let mut retain = Retain::default();
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                "events" => retain.events = self.duration(entry, &at),
                "runs" => retain.runs = self.duration(entry, &at),
                _ => drop(self.unknown_key("`retain`", &RETAIN_KEYS, entry, &at)),
            }
        }
        // One that could not be read is said already.
        Some(retain).filter(|read| *read != Retain::default() || map.entries().is_empty())
    }

    /// Reports a key and yields the one that was probably meant.
    fn unknown_key(
        &mut self,
        of: &str,
        known: &[&'static str],
        entry: &MapEntry,
        place: &Place,
    ) -> Option<&'static str> {
        let key = entry.key.as_str();
        let other_word = other_words(key).iter().find(|word| known.contains(word)).copied();
        let entry_step = key == "entry" && (known.contains(&"steps") || known.contains(&"subscribes"));
        let nearest = || suggest::nearest(key, known.iter().copied()).filter(|_| !entry_step);
        let meant = other_word.or_else(nearest);
        let help = match meant {
            _ if key == "<<" => {
                "merge keys aren't part of YAML 1.2; write out the keys, or alias the whole value".to_owned()
            }
            _ if entry_step => entry_help(entry),
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("the keys of {of} are {}", known.join(", ")),
        };
        self.error("unknown-key", place, entry.key_span.clone(), format!("{of} has no key {key:?}"), &help);
        meant
    }

    fn wrong_type(&mut self, node: &Node, place: &Place, what: &str, expected: &str, help: &str) {
        let message = format!("{what} expects {expected}, found {}", node.describe());
        self.error("wrong-type", place, node.span.clone(), message, help);
    }

    fn error(
        &mut self,
        code: &'static str,
        place: &Place,
        span: std::ops::Range<usize>,
        message: String,
        help: &str,
    ) {
        let help = Some(help.to_owned()).filter(|help| !help.is_empty());
        let place = place.to_string();
        self.items.push(Diagnostic {
            severity: Severity::Error,
            code,
            message,
            place,
            span: Some(span),
            help,
        });
    }
}

/// What to write for the step that a run is to start with.
fn entry_help(entry: &MapEntry) -> String {
    let step = match &entry.value.value {
        NodeValue::String(name) => format!("step {name:?}"),
        _ => "the step that starts the run".to_owned(),
    };
    format!(
        "steps without `subscribes` start with the run: remove `entry`, and remove `subscribes` from {step}"
    )
}

/// What other tools call our keys: the first of these that is a key here.
fn other_words(key: &str) -> &'static [&'static str] {
    match key.to_ascii_lowercase().as_str() {
        "name" | "id" => &["flow", "machine"],
        "machine" | "flow" => &["flow", "machine"],
        "needs" | "depends_on" | "depends-on" | "after" | "on" | "waits_for" | "subscribes" => {
            &["subscribes", "after"]
        }
        "run" | "script" | "cmd" | "exec" => &["command"],
        "retries" => &["retry"],
        "when" | "condition" | "guard" | "cond" => &["if"],
        "url" => &["post"],
        "max_attempts" | "max" | "times" => &["attempts"],
        "outputs" | "publishes" => &["emits"],
        "signals" | "accepts" => &["accepts", "events"],
        "result" => &["returns"],
        "steps" | "do" | "effects" => &["actions"],
        "start" | "first" => &["initial"],
        "vars" | "variables" | "data" | "body" => &["context", "payload", "input"],
        "transitions" | "events" => &["on"],
        "timers" | "timer" | "timeout" => &["after"],
        "target" | "goto" | "next" | "state" => &["to"],
        "assign" | "update" | "context" => &["set"],
        "allow" | "allowed" | "by" => &["role"],
        "on_entry" | "onentry" | "enter" => &["entry"],
        "on_exit" | "onexit" | "leave" => &["exit"],
        "end" | "terminal" => &["final"],
        "delay" | "wait" | "every" => &["in"],
        "onerror" | "catch" => &["on_error"],
        "retention" | "keep" => &["retain"],
        _ => &[],
    }
}
