//! Definition files as one tree, whatever they are written in, with the place of everything in the text.
//!
//! The tree knows nothing of flows. What is bounded here, before anything recurses: bytes
//! ([`limits::DEFINITION_BYTES`]), nesting ([`limits::JSON_DEPTH`]) and what YAML aliases unfold to.

mod json;
mod toml;
mod yaml;

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Number;

use super::diagnostic::{Diagnostic, Severity, floor};
use super::place::{Place, Segment};
use crate::limits;

/// What a definition file is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Yaml,
    Toml,
    Json,
}

impl Format {
    /// By the ending of a file's name: `.yaml`, `.yml`, `.toml`, `.json`.
    pub fn of_path(path: &str) -> Option<Format> {
        let (_, ending) = path.rsplit_once('.')?;
        match ending.to_ascii_lowercase().as_str() {
            "yaml" | "yml" => Some(Format::Yaml),
            "toml" => Some(Format::Toml),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: NodeValue,
    pub(crate) span: Range<usize>,
}

#[derive(Debug, Clone)]
pub(crate) enum NodeValue {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    List(Vec<Node>),
    Map(Map),
}

/// Keys in the order of the file, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Map {
    entries: Vec<MapEntry>,
    by_key: BTreeMap<String, usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct MapEntry {
    pub(crate) key: String,
    pub(crate) key_span: Range<usize>,
    pub(crate) value: Node,
}

/// Reads a text into a tree, or says where its syntax is broken.
pub(crate) fn parse(text: &str, format: Format) -> Result<Node, Vec<Diagnostic>> {
    if text.len() > limits::DEFINITION_BYTES {
        let message = format!(
            "the file is {} bytes; the limit for a definition is {}",
            text.len(),
            limits::DEFINITION_BYTES
        );
        return Err(vec![syntax("too-large", message, 0..0, Some("split the flow, or move data out of it"))]);
    }
    let parsed = match format {
        Format::Yaml => yaml::parse(text),
        Format::Toml => toml::parse(text),
        Format::Json => json::parse(text),
    };
    parsed.map_err(|error| vec![error])
}

impl Node {
    fn new(value: NodeValue, span: Range<usize>) -> Node {
        Node { value, span }
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            NodeValue::Null => serde_json::Value::Null,
            NodeValue::Bool(b) => (*b).into(),
            NodeValue::Number(n) => n.clone().into(),
            NodeValue::String(s) => s.as_str().into(),
            NodeValue::List(items) => items.iter().map(Node::to_json).collect(),
            NodeValue::Map(map) => map.entries.iter().map(|e| (e.key.clone(), e.value.to_json())).collect(),
        }
    }

    /// What stands here, for a message: "the number 30", "a list".
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            NodeValue::Null => "nothing".to_owned(),
            NodeValue::Bool(b) => b.to_string(),
            NodeValue::Number(n) => format!("the number {n}"),
            NodeValue::String(s) if s.chars().count() > 40 => {
                format!("the text {:?}", s.chars().take(39).chain(['…']).collect::<String>())
            }
            NodeValue::String(s) => format!("the text {s:?}"),
            NodeValue::List(_) => "a list".to_owned(),
            NodeValue::Map(_) => "a map".to_owned(),
        }
    }

    /// The part of the text to point at for a place; for one that the text does not have, its nearest ancestor's.
    ///
    /// A map or list is pointed at by its key. Where the file uses a shorter spelling than the place (`emits` as a list,
    /// `{all: […]}` for a list, a list of one for that one) the element meant is found.
    pub(crate) fn span_at(&self, place: &Place) -> Range<usize> {
        let mut span = match &self.value {
            NodeValue::Map(map) => {
                map.entries.first().map_or(self.span.clone(), |entry| entry.key_span.clone())
            }
            _ => self.span.clone(),
        };
        let mut node = self;
        for segment in place.segments() {
            let Some((child, at)) = node.child(segment) else { break };
            (node, span) = (child, at);
        }
        span
    }

    fn child(&self, segment: &Segment) -> Option<(&Node, Range<usize>)> {
        match (&self.value, segment) {
            (NodeValue::Map(map), Segment::Key(key)) => {
                map.get(key).map(|entry| (&entry.value, entry.pointed_at()))
            }
            (NodeValue::Map(map), Segment::Name(key)) => {
                map.get(key).map(|entry| (&entry.value, entry.key_span.clone()))
            }
            (NodeValue::Map(map), Segment::Index(_)) => {
                map.get("all").and_then(|entry| entry.value.child(segment))
            }
            (NodeValue::List(items), Segment::Index(index)) => {
                items.get(*index).map(|item| (item, item.span.clone()))
            }
            (NodeValue::List(items), Segment::Key(key) | Segment::Name(key)) => {
                let named =
                    items.iter().find(|item| matches!(&item.value, NodeValue::String(text) if text == key));
                match (named, &items[..]) {
                    (Some(item), _) => Some((item, item.span.clone())),
                    (None, [only]) => only.child(segment),
                    (None, _) => None,
                }
            }
            _ => None,
        }
    }
}

impl MapEntry {
    /// The value where it is a scalar, the key where the value is long or empty.
    fn pointed_at(&self) -> Range<usize> {
        match &self.value.value {
            NodeValue::Null | NodeValue::List(_) | NodeValue::Map(_) => self.key_span.clone(),
            _ => self.value.span.clone(),
        }
    }
}

impl Map {
    pub(crate) fn entries(&self) -> &[MapEntry] {
        &self.entries
    }

    pub(crate) fn get(&self, key: &str) -> Option<&MapEntry> {
        self.by_key.get(key).map(|&i| &self.entries[i])
    }

    /// Adds an entry; a key that is there already is an error at its second place.
    fn insert(&mut self, entry: MapEntry) -> Result<(), Diagnostic> {
        if self.by_key.contains_key(&entry.key) {
            let message = format!("duplicate key {:?}", entry.key);
            let help = Some("remove or rename one of them");
            return Err(syntax("duplicate-key", message, entry.key_span, help));
        }
        self.by_key.insert(entry.key.clone(), self.entries.len());
        self.entries.push(entry);
        Ok(())
    }
}

fn syntax(code: &'static str, message: String, span: Range<usize>, help: Option<&str>) -> Diagnostic {
    let help = help.map(str::to_owned);
    Diagnostic { severity: Severity::Error, code, message, place: String::new(), span: Some(span), help }
}

fn too_deep(span: Range<usize>) -> Diagnostic {
    let help = Some("flatten this value");
    syntax("too-deep", format!("nested deeper than {} levels", limits::JSON_DEPTH), span, help)
}

/// A range that lies in the text, on characters, without white space at its end.
fn tidy(text: &str, span: Range<usize>) -> Range<usize> {
    let start = floor(text, span.start);
    let end = floor(text, span.end).max(start);
    start..start + text[start..end].trim_end().len()
}
