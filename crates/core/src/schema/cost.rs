//! What it can cost to check a payload against a schema, counted before the check.
//!
//! The validator can't be stopped while it runs, and takes exponential time where alternatives refer to alternatives. So its
//! way through schema and payload is walked first, without comparing anything: every subschema is visited as often as the
//! validator could visit it, and the walk ends where a limit is reached. It never counts too little, since it takes every
//! branch that the validator may skip, and follows a reference that it can't tell apart to all that it may mean.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Subschemas of one schema, references followed once.
pub(super) const SUBSCHEMAS: usize = 5_000;
/// Subschemas and references in each other; the validator recurses into them.
const SCHEMA_DEPTH: usize = 200;
/// Visits in each other while a payload is checked, for the same reason.
const WALK_DEPTH: usize = 1_000;
/// What a value costs that is checked against something outside the schema: a schema of JSON Schema itself.
const FOREIGN_STEPS: u64 = 50;
/// Bytes of text that a pattern or a format looks at in one step.
const TEXT_STEP: u64 = 16;

/// Keywords whose subschemas look at the same value.
const SAME: [&str; 4] = ["not", "if", "then", "else"];
const SAME_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SAME_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];

/// A schema as a graph of subschemas.
#[derive(Debug, Default)]
pub(super) struct CostMap {
    parts: Vec<CostPart>,
    /// Patterns of all subschemas.
    pub(super) patterns: Vec<String>,
}

#[derive(Debug, Default)]
struct CostPart {
    /// What looking at any value takes.
    flat: u64,
    /// Patterns and formats for a text.
    texts: u64,
    /// Looks at what else looks at the same value a second time, to know what is left: `unevaluatedProperties`.
    marks: bool,
    foreign: bool,
    same: Vec<usize>,
    properties: BTreeMap<String, usize>,
    /// For every entry.
    entries: Vec<usize>,
    /// For every entry that `properties` doesn't name.
    additional: Option<usize>,
    names: Option<usize>,
    prefix: Vec<usize>,
    /// For every item.
    items: Vec<usize>,
    patterns: u64,
    unique: bool,
}

/// The walk took more than it may.
#[derive(Debug)]
pub(super) struct Stopped;

impl CostMap {
    /// Reads a schema. Fails on one that is too large or too deep for the validator.
    pub(super) fn of(schema: &Value) -> Result<CostMap, String> {
        let mut reading = Reading::new(schema);
        reading.part(schema, schema);
        while let Some((at, value, root)) = reading.open.pop() {
            reading.read(at, value, root)?;
            if reading.parts.len() > SUBSCHEMAS {
                return Err(format!("it has more than {SUBSCHEMAS} subschemas"));
            }
        }
        let map = CostMap { parts: reading.parts, patterns: reading.patterns };
        map.check_depth()?;
        Ok(map)
    }

    /// As deep as a compiler goes that follows each reference once.
    fn check_depth(&self) -> Result<(), String> {
        let mut seen = vec![false; self.parts.len()];
        let mut stack = vec![(0, 1)];
        while let Some((at, depth)) = stack.pop() {
            if depth > SCHEMA_DEPTH {
                return Err(format!("it nests more than {SCHEMA_DEPTH} subschemas and references"));
            }
            if !std::mem::replace(&mut seen[at], true) {
                stack.extend(self.parts[at].all().map(|part| (part, depth + 1)));
            }
        }
        Ok(())
    }

    /// The steps that checking this value can take, unless they are more than `limit`.
    pub(super) fn cost(&self, value: &Value, limit: u64) -> Result<u64, Stopped> {
        let mut walk = CostWalk { map: self, left: limit };
        walk.visit(0, value, &Chain::default(), 0)?;
        Ok(limit - walk.left)
    }
}

impl CostPart {
    fn all(&self) -> impl Iterator<Item = usize> {
        let one =
            self.same.iter().chain(self.properties.values()).chain(&self.entries).chain(&self.additional);
        one.chain(&self.names).chain(&self.prefix).chain(&self.items).copied()
    }
}

/// The subschemas around the present one that look at the same value.
#[derive(Default)]
struct Chain<'c> {
    of: Option<(usize, &'c Chain<'c>)>,
    length: u64,
}

impl Chain<'_> {
    fn with(&self, part: usize) -> Chain<'_> {
        Chain { of: Some((part, self)), length: self.length + 1 }
    }

    fn has(&self, part: usize) -> bool {
        self.of.is_some_and(|(of, rest)| of == part || rest.has(part))
    }
}

struct CostWalk<'a> {
    map: &'a CostMap,
    left: u64,
}

impl CostWalk<'_> {
    fn spend(&mut self, steps: u64) -> Result<(), Stopped> {
        self.left = self.left.checked_sub(steps).ok_or(Stopped)?;
        Ok(())
    }

    fn visit(&mut self, at: usize, value: &Value, chain: &Chain<'_>, depth: usize) -> Result<(), Stopped> {
        let part = &self.map.parts[at];
        // Looking for circles takes longer the more subschemas are around this one.
        self.spend(1 + part.flat + chain.length / 8)?;
        if depth > WALK_DEPTH {
            return Err(Stopped);
        }
        if part.foreign {
            self.foreign(value)?;
        }
        let chain = chain.with(at);
        for &same in &part.same {
            // The validator doesn't go in circles either.
            if !chain.has(same) {
                self.visit(same, value, &chain, depth + 1)?;
            }
        }
        if part.marks {
            self.mark(at, value, &chain, depth)?;
        }
        match value {
            Value::String(text) => self.text(part.texts, text),
            Value::Array(items) => self.items(part, items, depth),
            Value::Object(entries) => self.entries(part, entries, depth),
            _ => Ok(()),
        }
    }

    fn text(&mut self, patterns: u64, text: &str) -> Result<(), Stopped> {
        self.spend(patterns * (1 + text.len() as u64 / TEXT_STEP))
    }

    fn items(&mut self, part: &CostPart, items: &[Value], depth: usize) -> Result<(), Stopped> {
        if part.unique {
            items.iter().try_for_each(|item| self.spend(2 * values(item)))?;
        }
        for (at, item) in items.iter().enumerate() {
            for &of in part.prefix.get(at).into_iter().chain(&part.items) {
                self.visit(of, item, &Chain::default(), depth + 1)?;
            }
        }
        Ok(())
    }

    fn entries(
        &mut self,
        part: &CostPart,
        entries: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), Stopped> {
        for (key, value) in entries {
            self.text(part.patterns, key)?;
            let named = part.properties.get(key);
            let other = part.additional.as_ref().filter(|_| named.is_none());
            for &of in named.into_iter().chain(other).chain(&part.entries) {
                self.visit(of, value, &Chain::default(), depth + 1)?;
            }
            if let Some(of) = part.names {
                self.visit(of, &Value::String(key.clone()), &Chain::default(), depth + 1)?;
            }
        }
        Ok(())
    }

    /// What was looked at by others: each is asked again whether it holds.
    fn mark(&mut self, at: usize, value: &Value, chain: &Chain<'_>, depth: usize) -> Result<(), Stopped> {
        self.spend(1 + values(value))?;
        if depth > WALK_DEPTH {
            return Err(Stopped);
        }
        for &same in &self.map.parts[at].same {
            if !chain.has(same) {
                self.visit(same, value, chain, depth + 1)?;
                self.mark(same, value, &chain.with(same), depth + 1)?;
            }
        }
        Ok(())
    }

    fn foreign(&mut self, value: &Value) -> Result<(), Stopped> {
        self.spend(FOREIGN_STEPS * values(value))
    }
}

/// How many values a value is made of; a payload isn't deep.
fn values(value: &Value) -> u64 {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum::<u64>(),
        Value::Object(entries) => entries.values().map(values).sum(),
        Value::String(text) => text.len() as u64 / TEXT_STEP,
        _ => 0,
    }
}

/// A schema that is being read. Subschemas are known by where they are in memory.
struct Reading<'s> {
    schema: &'s Value,
    parts: Vec<CostPart>,
    patterns: Vec<String>,
    known: BTreeMap<(usize, usize), usize>,
    open: Vec<(usize, &'s Value, &'s Value)>,
    /// Subschemas with an `$id`, by the last segment of it.
    resources: Vec<(&'s str, &'s Value)>,
    anchors: Vec<(&'s str, &'s Value)>,
}

fn place(value: &Value) -> usize {
    std::ptr::from_ref(value) as usize
}

impl<'s> Reading<'s> {
    fn new(schema: &'s Value) -> Reading<'s> {
        let (mut resources, mut anchors) = (Vec::new(), Vec::new());
        let mut open = vec![schema];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(entries) => {
                    for key in ["$id", "id"] {
                        if let Some(id) = entries.get(key).and_then(Value::as_str) {
                            let (uri, fragment) = id.split_once('#').unwrap_or((id, ""));
                            resources.push((segment(uri), value));
                            anchors.push((fragment, value));
                        }
                    }
                    for key in ["$anchor", "$dynamicAnchor"] {
                        anchors.extend(entries.get(key).and_then(Value::as_str).map(|name| (name, value)));
                    }
                    open.extend(entries.values());
                }
                _ => {}
            }
        }
        let (parts, patterns, known) = (Vec::new(), Vec::new(), BTreeMap::new());
        Reading { schema, parts, patterns, known, open: Vec::new(), resources, anchors }
    }

    /// The number of a subschema, which is read later.
    fn part(&mut self, value: &'s Value, root: &'s Value) -> usize {
        let names_itself = value.get("$id").or_else(|| value.get("id")).and_then(Value::as_str);
        let root = if names_itself.is_some_and(|id| !id.starts_with('#')) { value } else { root };
        let key = (place(value), place(root));
        if let Some(at) = self.known.get(&key) {
            return *at;
        }
        let at = self.parts.len();
        self.parts.push(CostPart::default());
        self.known.insert(key, at);
        self.open.push((at, value, root));
        at
    }

    fn read(&mut self, at: usize, value: &'s Value, root: &'s Value) -> Result<(), String> {
        let Value::Object(schema) = value else { return Ok(()) };
        let mut part = CostPart::default();
        for (key, value) in schema {
            match (key.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                    self.refer(&mut part, target, root)?;
                }
                (key, _) if SAME.contains(&key) => part.same.push(self.part(value, root)),
                (key, Value::Array(items)) if SAME_LISTS.contains(&key) => {
                    part.same.extend(items.iter().map(|item| self.part(item, root)));
                }
                (key, Value::Object(entries)) if SAME_MAPS.contains(&key) => {
                    part.flat += values(value) / 4;
                    part.same.extend(entries.values().map(|item| self.part(item, root)));
                }
                ("properties", Value::Object(entries)) => {
                    part.flat += entries.len() as u64 / 8;
                    let read = |(key, item): (&String, &'s Value)| (key.clone(), self.part(item, root));
                    part.properties = entries.iter().map(read).collect();
                }
                ("patternProperties", Value::Object(entries)) => {
                    part.patterns = entries.len() as u64;
                    self.patterns.extend(entries.keys().cloned());
                    part.entries.extend(entries.values().map(|item| self.part(item, root)));
                }
                ("additionalProperties", _) => part.additional = Some(self.part(value, root)),
                ("unevaluatedProperties", _) => {
                    part.marks = true;
                    part.entries.push(self.part(value, root));
                }
                ("unevaluatedItems", _) => {
                    part.marks = true;
                    part.items.push(self.part(value, root));
                }
                ("propertyNames", _) => part.names = Some(self.part(value, root)),
                ("prefixItems" | "items", Value::Array(items)) => {
                    part.prefix = items.iter().map(|item| self.part(item, root)).collect();
                }
                ("items" | "additionalItems" | "contains", _) => part.items.push(self.part(value, root)),
                ("pattern", Value::String(pattern)) => {
                    part.texts += 1;
                    self.patterns.push(pattern.clone());
                }
                ("format" | "maxLength" | "minLength" | "contentMediaType" | "contentEncoding", _) => {
                    part.texts += 1;
                }
                ("uniqueItems", Value::Bool(true)) => part.unique = true,
                ("enum" | "const" | "required" | "dependentRequired", _) => part.flat += values(value) / 4,
                _ => {}
            }
        }
        self.parts[at] = part;
        Ok(())
    }

    /// Follows a reference to everything that it may mean.
    fn refer(&mut self, part: &mut CostPart, target: &str, root: &'s Value) -> Result<(), String> {
        let (uri, fragment) = target.split_once('#').unwrap_or((target, ""));
        let named: Vec<&'s Value> = self
            .resources
            .iter()
            .filter(|(name, _)| *name == segment(uri))
            .map(|(_, resource)| *resource)
            .collect();
        let roots = match uri {
            "" => vec![root],
            _ if !named.is_empty() => named,
            _ => {
                part.foreign = true;
                self.resources.iter().map(|(_, resource)| *resource).chain([self.schema]).collect()
            }
        };
        let mut found = Vec::new();
        for root in roots {
            match decoded(fragment) {
                pointer if pointer.is_empty() || pointer.starts_with('/') => {
                    found.extend(root.pointer(&pointer).map(|value| (value, root)));
                }
                name => found.extend(
                    self.anchors.iter().filter(|(known, _)| *known == name).map(|(_, value)| (*value, root)),
                ),
            }
        }
        if found.is_empty() && !part.foreign {
            return Err(format!("{target:?} points to nothing"));
        }
        for (value, root) in found {
            let of = self.part(value, root);
            part.same.push(of);
        }
        Ok(())
    }
}

/// The last segment of a URI's path, by which a relative reference and an absolute id agree.
fn segment(uri: &str) -> &str {
    uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// A fragment without its percent signs.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let [first, more @ ..] = rest {
        let hex = |byte: &u8| (*byte as char).to_digit(16);
        match (first, more) {
            (b'%', [a, b, after @ ..]) if hex(a).is_some() && hex(b).is_some() => {
                bytes.push((hex(a).unwrap_or(0) * 16 + hex(b).unwrap_or(0)) as u8);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
