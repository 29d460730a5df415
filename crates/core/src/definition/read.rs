//! From a file's text to a [`Definition`], with every mistake that can be found in one go.
//!
//! Three layers: the syntax of the format, the shape (keys and types, here and in `read/`), then the meaning
//! ([`check`](super::check)). A broken shape does not stop the others from being reported, except that nothing is said
//! of the graph while part of it could not be read: that would blame the wrong steps.

mod step;
mod value;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::check::{Finding, check_graph, check_parts};
use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use super::place::Place;
use super::source::{self, Entry, Format, Node, Value};
use super::{Cleanup, Definition, suggest};

const FLOW_KEYS: [&str; 9] =
    ["flow", "description", "input", "accepts", "output", "fail_fast", "timeout", "state", "steps"];

/// Diagnostics of one file; whoever made more mistakes made them all alike.
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
    let definition = reader.flow(&root);
    let mut items = reader.items;
    // Without a readable map there is nothing more to say than that.
    if let Some(definition) = &definition {
        let mut findings = check_parts(definition);
        if !reader.graph_unread {
            findings.extend(check_graph(definition));
        }
        // Where the shape is wrong already, the meaning is not judged.
        let wrong: BTreeSet<String> = items.iter().map(|item| item.place.clone()).collect();
        let findings = findings.into_iter().map(|finding| placed(&root, finding));
        items.extend(findings.filter(|finding| !wrong.contains(&finding.place)));
    }
    let diagnostics = report(items);
    match definition {
        Some(definition) if !diagnostics.has_errors() => Ok(Read { definition, warnings: diagnostics }),
        _ => Err(diagnostics),
    }
}

fn clip(item: &mut Diagnostic) {
    for text in [Some(&mut item.message), Some(&mut item.place), item.help.as_mut()].into_iter().flatten() {
        if let Some((at, _)) = text.char_indices().nth(MESSAGE_CHARS) {
            text.truncate(at);
            text.push('…');
        }
    }
}

fn placed(root: &Node, finding: Finding) -> Diagnostic {
    Diagnostic {
        severity: finding.severity,
        code: finding.code,
        message: finding.message,
        span: Some(root.span_at(&finding.place)),
        place: finding.place.to_string(),
        help: finding.help,
    }
}

/// Collects what is wrong while it reads on.
struct Reader {
    items: Vec<Diagnostic>,
    /// Something that decides who waits for whom could not be read.
    graph_unread: bool,
}

impl Reader {
    fn flow(&mut self, root: &Node) -> Option<Definition> {
        let place = Place::root();
        let Value::Map(map) = &root.value else {
            let message = format!(
                "expected a flow (a map with the keys `flow` and `steps`), found {}",
                root.describe()
            );
            self.error(
                "wrong-type",
                &place,
                root.span.start..root.span.start,
                message,
                "start with flow: NAME and steps:",
            );
            return None;
        };
        let mut definition = Definition::new("unnamed");
        let mut meant = Vec::new();
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                "flow" => definition.flow = self.text(entry, &at, "a name").unwrap_or_default(),
                "description" => definition.description = self.text(entry, &at, "text"),
                "input" => definition.input = self.schema(&entry.value, &at, "`input`"),
                "accepts" => definition.accepts = self.events(entry, &at),
                "output" => definition.output = self.text(entry, &at, "a CEL expression in text"),
                "fail_fast" => definition.fail_fast = self.boolean(entry, &at).unwrap_or_default(),
                "timeout" => definition.timeout = self.duration(entry, &at),
                "state" => definition.state = self.cleanup(entry, &at).unwrap_or_default(),
                "steps" => definition.steps = self.steps(entry, &at),
                _ => {
                    self.graph_unread = true;
                    meant.extend(self.unknown_key("a flow", &FLOW_KEYS, entry, &at));
                }
            }
        }
        for (key, help) in [("flow", "add flow: NAME"), ("steps", "add steps: with at least one step")] {
            if map.get(key).is_none() && !meant.contains(&key) {
                self.graph_unread = true;
                let message = format!("the key `{key}` is missing");
                self.error("missing-key", &place.key(key), root.span_at(&place), message, help);
            }
        }
        Some(definition)
    }

    fn steps(&mut self, entry: &Entry, place: &Place) -> Vec<super::StepDefinition> {
        match &entry.value.value {
            Value::Map(map) => {
                map.entries().iter().map(|step| self.step(step, &place.key(&step.key))).collect()
            }
            _ => {
                self.graph_unread = true;
                let help = "write each step as NAME: {command: […]}";
                self.wrong_type(&entry.value, place, "`steps`", "a map from step names to steps", help);
                Vec::new()
            }
        }
    }

    fn cleanup(&mut self, entry: &Entry, place: &Place) -> Option<Cleanup> {
        match &entry.value.value {
            Value::String(text) if text == "never" => Some(Cleanup::Never),
            Value::String(text) if text == "on-complete" => Some(Cleanup::OnComplete),
            Value::Map(map) if map.get("ttl").is_some() => {
                for other in map.entries().iter().filter(|other| other.key != "ttl") {
                    self.unknown_key("`state`", &["ttl"], other, &place.key(&other.key));
                }
                map.get("ttl").and_then(|ttl| self.duration(ttl, &place.key("ttl"))).map(Cleanup::Ttl)
            }
            _ => {
                let help = "it says when the run's key-value state is removed: with the run, at its end, or after a time";
                self.wrong_type(&entry.value, place, "`state`", "never, on-complete or {ttl: 7d}", help);
                None
            }
        }
    }

    /// Reports a key and yields the one that was probably meant.
    fn unknown_key(
        &mut self,
        of: &str,
        known: &[&'static str],
        entry: &Entry,
        place: &Place,
    ) -> Option<&'static str> {
        let key = entry.key.as_str();
        let other_word = other_words(key).filter(|meant| known.contains(meant));
        let meant = other_word.or_else(|| suggest::nearest(key, known.iter().copied()));
        let help = match meant {
            _ if key == "<<" => {
                "merge keys are not part of YAML 1.2; write the keys out, or alias the whole value".to_owned()
            }
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

/// What other tools call our keys.
fn other_words(key: &str) -> Option<&'static str> {
    Some(match key.to_ascii_lowercase().as_str() {
        "name" | "id" => "flow",
        "needs" | "depends_on" | "depends-on" | "after" | "on" | "waits_for" => "subscribes",
        "run" | "script" | "cmd" | "exec" => "command",
        "retries" => "retry",
        "when" | "condition" => "if",
        "url" => "post",
        "max_attempts" | "max" | "times" => "attempts",
        "outputs" | "publishes" => "emits",
        "signals" => "accepts",
        "result" => "returns",
        _ => return None,
    })
}
