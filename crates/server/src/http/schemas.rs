//! The schemas of the OpenAPI document, from the types that the routes name.
//!
//! Only types that a route names, and a few that many of them share, are components of the document; all others are written
//! where they're used. Answers are closed (`additionalProperties: false`), so that the contract tests notice a field that
//! nobody declared; the types themselves take answers that have grown.

use std::collections::BTreeSet;

use flowline::core::Event;
use flowline::store::JobRow;
use flowline_api::ProblemDetails;
use flowline_api::problem::DiagnosticList;
use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::route::SchemaOf;

const PREFIX: &str = "#/components/schemas/";

/// Collects the schemas of the types that it's asked for.
#[derive(Debug)]
pub struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
    named: BTreeSet<String>,
}

impl Schemas {
    pub fn new() -> Schemas {
        let shared = [Event::schema_name(), JobRow::schema_name(), DiagnosticList::schema_name()];
        let mut schemas = Schemas {
            requests: generator(Contract::Deserialize),
            answers: generator(Contract::Serialize),
            named: shared.into_iter().map(String::from).collect(),
        };
        schemas.answer(SchemaOf::of::<ProblemDetails>());
        schemas
    }

    /// Refers to the schema of a request.
    pub fn request(&mut self, schema: SchemaOf) -> Value {
        let reference = (schema.refer)(&mut self.requests).to_value();
        self.note(reference)
    }

    /// Refers to the schema of an answer.
    pub fn answer(&mut self, schema: SchemaOf) -> Value {
        let reference = (schema.refer)(&mut self.answers).to_value();
        self.note(reference)
    }

    fn note(&mut self, reference: Value) -> Value {
        self.named.extend(referred(&reference).map(str::to_owned));
        reference
    }

    /// Every component by name.
    pub fn components(mut self) -> Map<String, Value> {
        let mut components = Map::new();
        for (mut generator, of) in [(self.requests, Of::Requests), (self.answers, Of::Answers)] {
            let all = generator.take_definitions(true);
            let writer = Writer { all: &all, named: &self.named, of };
            for (name, schema) in all.iter().filter(|(name, _)| self.named.contains(*name)) {
                components.entry(name).or_insert_with(|| writer.write(schema.clone()));
            }
        }
        self.named.clear();
        components
    }
}

fn generator(contract: Contract) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.contract = contract;
    });
    settings.into_generator()
}

/// The name of the schema that this one refers to.
fn referred(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(PREFIX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Requests,
    Answers,
}

/// Writes schemas in the words of this document.
struct Writer<'a> {
    all: &'a Map<String, Value>,
    named: &'a BTreeSet<String>,
    of: Of,
}

impl Writer<'_> {
    fn write(&self, schema: Value) -> Value {
        let schema = self.resolved(schema);
        let Value::Object(mut schema) = schema else { return json!({}) };
        // Sizes of Rust's numbers say nothing to others.
        if schema.get("format").is_some_and(|format| format != "date-time") {
            schema.remove("format");
        }
        // Some generators make a field with a default one that has to be there, so only those that ask for one get it.
        schema.remove("default");
        if let Some(default) = schema.remove("x-default") {
            schema.insert("default".to_owned(), default);
        }
        if let Some(words) = schema.get("oneOf").and_then(words) {
            schema.remove("oneOf");
            schema.insert("enum".to_owned(), words.into());
        }
        if schema.contains_key("enum") {
            schema.remove("type");
        }
        self.fields(&mut schema);
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get_mut(key).filter(|inner| inner.is_object()) {
                *inner = self.write(inner.take());
            }
        }
        for key in ["anyOf", "oneOf"] {
            for inner in schema.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                *inner = self.write(inner.take());
            }
        }
        schema.into()
    }

    fn fields(&self, schema: &mut Map<String, Value>) {
        let required = schema.get("required").cloned().unwrap_or_else(|| json!([]));
        let is_required = |name: &String| required.as_array().is_some_and(|all| all.contains(&json!(name)));
        let Some(Value::Object(fields)) = schema.get_mut("properties") else { return };
        for (name, field) in fields.iter_mut() {
            *field = self.write(field.take());
            // What may be left out of an answer is left out, and never null.
            if self.of == Of::Answers && !is_required(name) {
                *field = without_null(field.take());
            }
        }
        if self.of == Of::Answers {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
        schema.insert("required".to_owned(), required);
    }

    /// Replaces a reference to a schema that isn't a component with the schema. Keys beside the reference take precedence.
    fn resolved(&self, schema: Value) -> Value {
        let Some(name) = referred(&schema).filter(|name| !self.named.contains(*name)) else { return schema };
        let mut found = self.all.get(name).cloned().unwrap_or_default();
        if let (Some(found), Value::Object(beside)) = (found.as_object_mut(), schema) {
            found.extend(beside.into_iter().filter(|(key, _)| key != "$ref"));
        }
        found
    }
}

/// The values of a `oneOf` whose choices are constants, with or without descriptions.
fn words(choices: &Value) -> Option<Vec<Value>> {
    let mut words = Vec::new();
    for choice in choices.as_array()? {
        match (choice.get("const"), choice.get("enum")) {
            (Some(word), _) => words.push(word.clone()),
            (None, Some(Value::Array(more))) => words.extend(more.clone()),
            _ => return None,
        }
    }
    Some(words)
}

fn without_null(mut schema: Value) -> Value {
    let null = json!({ "type": "null" });
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = &kinds[..] {
            schema["type"] = kind.clone();
        }
    }
    let Some(Value::Array(choices)) = schema.get("anyOf") else { return schema };
    match &choices[..] {
        [one, other] if *other == null => {
            let mut one = one.clone();
            if let (Some(one), Some(about)) = (one.as_object_mut(), schema.get("description")) {
                one.insert("description".to_owned(), about.clone());
            }
            one
        }
        _ => schema,
    }
}
