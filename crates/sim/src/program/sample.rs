//! Made-up values that fit a JSON Schema, as far as it goes: enough for conditions to have something to read.

use fastrand::Rng;
use flowline_core::Json;
use flowline_core::schema::Schema;
use serde_json::{Map, Value, json};

use super::pick;

/// Texts for schemas that ask for a pattern or a format; the first that fits is taken.
const TEXTS: [&str; 8] = [
    "A-1",
    "abc",
    "1",
    "ada@example.org",
    "2026-11-15T12:00:00Z",
    "2026-11-15",
    "https://example.org/",
    "018f2f6e-7c92-72f9-a204-1269e6f26bc2",
];
/// Schemas inside schemas that are followed.
const DEPTH: usize = 8;

/// Values that a flow's conditions compare with, so that samples fall on both sides of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Literals {
    pub(crate) numbers: Vec<i64>,
    pub(crate) texts: Vec<String>,
}

/// A value of a schema. What the schema demands beyond types, ranges and lists of values may not be met.
pub(crate) fn value(schema: &Value, literals: &Literals, rng: &mut Rng) -> Value {
    sample(schema, literals, rng, DEPTH)
}

fn sample(schema: &Value, near: &Literals, rng: &mut Rng, depth: usize) -> Value {
    if depth == 0 {
        return Value::Null;
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    for key in ["enum", "examples"] {
        if let Some(values) = schema.get(key).and_then(Value::as_array).filter(|values| !values.is_empty()) {
            return pick(rng, values);
        }
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(any) = schema.get(key).and_then(Value::as_array).filter(|any| !any.is_empty()) {
            return sample(&pick(rng, any), near, rng, depth - 1);
        }
    }
    match kind(schema, rng).as_str() {
        "object" => object(schema, near, rng, depth),
        "array" => {
            let items = schema.get("items").cloned().unwrap_or(Value::Null);
            let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0).min(10);
            (0..least.max(1)).map(|_| sample(&items, near, rng, depth - 1)).collect()
        }
        "integer" => number(schema, near, rng).into(),
        "number" => json!(number(schema, near, rng) as f64),
        "boolean" => rng.bool().into(),
        "string" => text(schema, near, rng).into(),
        _ => Value::Null,
    }
}

fn kind(schema: &Value, rng: &mut Rng) -> String {
    match schema.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(Value::Array(kinds)) if !kinds.is_empty() => {
            pick(rng, kinds).as_str().unwrap_or_default().to_owned()
        }
        _ if schema.get("properties").is_some() || schema.get("required").is_some() => "object".to_owned(),
        _ => String::new(),
    }
}

/// What is required is always there, the rest half of the time.
fn object(schema: &Value, near: &Literals, rng: &mut Rng, depth: usize) -> Value {
    let mut object = Map::new();
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, property) in properties {
            if required.contains(&name.as_str()) || rng.bool() {
                object.insert(name.clone(), sample(property, near, rng, depth - 1));
            }
        }
    }
    for name in required {
        object.entry(name).or_insert_with(|| json!(1));
    }
    Value::Object(object)
}

fn number(schema: &Value, near: &Literals, rng: &mut Rng) -> i64 {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64).map(|bound| bound as i64);
    let least = bound("minimum").or(bound("exclusiveMinimum").map(|n| n.saturating_add(1)));
    let most = bound("maximum").or(bound("exclusiveMaximum").map(|n| n.saturating_sub(1)));
    let least = least.unwrap_or_else(|| most.map_or(0, |most| most.min(0)));
    let most = most.unwrap_or(least.saturating_add(100)).max(least);
    let beside = near.numbers.iter().flat_map(|&n| [n.saturating_sub(1), n, n.saturating_add(1)]);
    // Where the schema sets no upper bound, what a condition compares with may lie beyond the guess.
    let open = bound("maximum").is_none() && bound("exclusiveMaximum").is_none();
    let fitting: Vec<i64> = beside.filter(|&n| n >= least && (open || n <= most)).collect();
    match fitting.is_empty() || rng.bool() {
        true => rng.i64(least..=most),
        false => pick(rng, &fitting),
    }
}

fn text(schema: &Value, near: &Literals, rng: &mut Rng) -> String {
    let free = ["pattern", "format", "minLength", "maxLength"].iter().all(|key| schema.get(key).is_none());
    if free {
        let texts = near.texts.iter().map(String::as_str).chain(["abc"]).collect::<Vec<_>>();
        return pick(rng, &texts).to_owned();
    }
    let fits = |text: &&str| {
        let compiled = Schema::compile(schema);
        compiled.is_ok_and(|schema| schema.check(&Json::from(Value::from(*text))).is_ok())
    };
    let mut texts = near.texts.iter().map(String::as_str).chain(TEXTS);
    texts.find(fits).unwrap_or("abc").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_fit_the_schemas_of_everyday_flows() {
        let schemas = [
            json!({ "type": "object", "required": ["order", "total"], "properties": {
                "order": { "type": "string", "pattern": "^[A-Z0-9-]+$" },
                "total": { "type": "integer", "minimum": 1 },
                "note": { "type": ["string", "null"] },
            } }),
            json!({ "enum": ["card", "invoice"] }),
            json!({ "type": "array", "minItems": 2, "items": { "type": "number", "exclusiveMaximum": -3 } }),
            json!({ "oneOf": [{ "const": 7 }, { "type": "boolean" }] }),
            json!({ "type": "string", "format": "email" }),
        ];
        for schema in schemas {
            let compiled = Schema::compile(&schema).unwrap();
            for seed in 0..50 {
                let sample = value(&schema, &Literals::default(), &mut Rng::with_seed(seed));
                assert_eq!(compiled.check(&Json::from(sample.clone())), Ok(()), "{schema} {sample}");
            }
        }
    }

    #[test]
    fn samples_fall_on_both_sides_of_what_conditions_compare_with() {
        let near = Literals { numbers: vec![1_000], texts: vec!["card".to_owned()] };
        let of = |schema: Value| -> Vec<Value> {
            (0..100).map(|seed| value(&schema, &near, &mut Rng::with_seed(seed))).collect()
        };
        let totals = of(json!({ "type": "integer", "minimum": 1 }));
        assert!(totals.contains(&json!(999)) && totals.contains(&json!(1_001)));
        assert!(of(json!({ "type": "string" })).contains(&json!("card")));
    }
}
