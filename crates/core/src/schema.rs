//! JSON Schema for inputs and emits: compiled once, never fetching anything, and bounded in what it costs.
//!
//! Patterns are matched in linear time; those that look around or back are matched with few steps back. What a check can
//! cost is counted before it is made, and one over the limit is refused as too costly.

mod cost;

use std::fmt;
use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use crate::budget::{Budget, CHECK_STEPS, TooCostly};
use crate::json::Json;
use cost::CostMap;

/// A schema, in bytes of JSON: 512 KiB.
pub const SCHEMA_BYTES: usize = 512 << 10;
/// The schemas of one definition together, each counted once, in bytes: 2 MiB.
pub const SCHEMAS_BYTES: usize = 2 << 20;
/// A pattern of a schema, in bytes.
pub const PATTERN_BYTES: usize = 1 << 10;
/// Patterns of one schema, and about those of one definition.
pub const PATTERNS: usize = 100;
/// What a compiled pattern may take, in bytes: 512 KiB. Repeating a large class of characters is what takes most.
pub const PATTERN_MEMORY: usize = 512 << 10;
/// Up to how many steps a breach is explained. Explaining keeps an error for each, and more than that is no help.
const EXPLAINED_STEPS: u64 = 20_000;
/// How much more a check takes whose patterns look around: a match that takes too many steps back is tried both ways.
const SLOW: u64 = 16;
/// The bytes of a payload that are parsed in one step.
const PARSED_BYTES: u64 = 64;
/// Steps back of one match.
const BACKTRACKS: usize = 1_000;

/// A compiled JSON Schema (2020-12 unless it says otherwise). Cloning is a reference count.
#[derive(Clone)]
pub struct Schema {
    kept: Arc<Result<(Validator, CostMap), String>>,
    /// What one check can take, in steps.
    limit: u64,
    /// How many steps of a decision's budget one step takes.
    weight: u64,
}

/// Why a payload isn't taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// Names the place by JSON pointer, then what is wrong there.
    #[error("{0}")]
    Breach(String),
    /// Nobody knows whether it would be.
    #[error("{0}")]
    TooCostly(String),
}

impl Schema {
    /// Compiles a schema. References can only point inside it. Refuses one that is invalid, or costs too much to compile.
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        let bytes = schema.to_string().len();
        if bytes > SCHEMA_BYTES {
            return Err(format!("it has {bytes} bytes; the limit is {SCHEMA_BYTES}"));
        }
        let map = CostMap::of(schema)?;
        if map.patterns.len() > PATTERNS {
            return Err(format!("it has {} patterns; the limit is {PATTERNS}", map.patterns.len()));
        }
        if let Some(long) = map.patterns.iter().find(|pattern| pattern.len() > PATTERN_BYTES) {
            return Err(format!("a pattern has {} bytes; the limit is {PATTERN_BYTES}", long.len()));
        }
        let options = jsonschema::options().offline();
        let slow = map.patterns.iter().any(|pattern| looks_around(pattern));
        let options = match slow {
            false => options.with_pattern_options(
                PatternOptions::regex().size_limit(PATTERN_MEMORY).dfa_size_limit(PATTERN_MEMORY),
            ),
            true => options.with_pattern_options(
                PatternOptions::fancy_regex()
                    .backtrack_limit(BACKTRACKS)
                    .size_limit(PATTERN_MEMORY)
                    .dfa_size_limit(PATTERN_MEMORY),
            ),
        };
        let validator = options.build(schema).map_err(|error| {
            let path = error.instance_path().to_string();
            if path.is_empty() { error.to_string() } else { format!("at {path}: {error}") }
        })?;
        let weight = if slow { SLOW } else { 1 };
        Ok(Schema { kept: Arc::new(Ok((validator, map))), limit: CHECK_STEPS / weight, weight })
    }

    /// Compiles a schema of a definition that was registered before. One that is refused today checks nothing: whatever it is
    /// to check is refused as too costly, so that runs which don't need it go on.
    pub(crate) fn of_registered(schema: &Value) -> Schema {
        Schema::compile(schema).unwrap_or_else(|problem| Schema {
            kept: Arc::new(Err(problem)),
            limit: 0,
            weight: 1,
        })
    }

    /// Checks a payload, unless that could take too much.
    pub fn check(&self, payload: &Json) -> Result<(), SchemaError> {
        self.check_in(payload, &Budget::default())
    }

    /// Checks a payload within what a budget leaves.
    pub(crate) fn check_in(&self, payload: &Json, budget: &Budget) -> Result<(), SchemaError> {
        let (validator, map) = match &*self.kept {
            Ok(kept) => kept,
            Err(problem) => return Err(SchemaError::TooCostly(format!("too costly: {problem}"))),
        };
        // Parsing counts too.
        let parsing = payload.get().len() as u64 / PARSED_BYTES;
        let left = budget.checks().checked_sub(parsing);
        let value = left.map(|_| payload.value());
        let limit = left.map_or(0, |left| self.limit.min(left / self.weight));
        let cost = value.as_ref().and_then(|value| map.cost(value, limit).ok());
        let (true, Some(value), Some(cost)) =
            (budget.check(cost.map(|cost| cost * self.weight + parsing)), value, cost)
        else {
            return Err(SchemaError::TooCostly(match limit < self.limit {
                true => "too costly: the checks of this decision can take too many steps together; send less, or simplify \
                         the schemas"
                    .to_owned(),
                false => format!(
                    "too costly: checking it against its schema can take more than {} steps; send less, or simplify the schema",
                    self.limit
                ),
            }));
        };
        if cost > EXPLAINED_STEPS {
            return match validator.is_valid(&value) {
                true => Ok(()),
                false => Err(SchemaError::Breach(
                    "/: the value doesn't match, and checking where would take too long".into(),
                )),
            };
        }
        validator.validate(&value).map_err(|error| {
            let path = error.instance_path().to_string();
            SchemaError::Breach(format!("{}: {}", if path.is_empty() { "/" } else { &path }, error))
        })
    }

    /// How many patterns it has, for callers that compile many schemas.
    pub(crate) fn patterns(&self) -> usize {
        (*self.kept).as_ref().map_or(0, |(_, map)| map.patterns.len())
    }
}

impl SchemaError {
    /// [`TooCostly::CODE`] or `schema`.
    pub fn code(&self) -> &'static str {
        match self {
            SchemaError::Breach(_) => "schema",
            SchemaError::TooCostly(_) => TooCostly::CODE,
        }
    }
}

/// Whether a pattern needs more than linear time: it looks ahead or behind, or back at a group.
fn looks_around(pattern: &str) -> bool {
    let looks = ["(?=", "(?!", "(?<=", "(?<!", "\\k"].iter().any(|look| pattern.contains(look));
    let mut escaped = false;
    looks
        || pattern.bytes().any(|byte| {
            let back = escaped && byte.is_ascii_digit() && byte != b'0';
            escaped = byte == b'\\' && !escaped;
            back
        })
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_breach_names_its_place() {
        let schema =
            Schema::compile(&json!({"type": "object", "properties": {"total": {"type": "number"}}})).unwrap();
        let error = schema.check(&Json::from(json!({"total": "x"}))).unwrap_err().to_string();
        assert!(error.starts_with("/total: "), "{error}");
        assert_eq!(schema.check(&Json::from(json!({"total": 1}))), Ok(()));
    }

    #[test]
    fn a_schema_that_is_none_is_refused() {
        assert!(Schema::compile(&json!({"type": "objekt"})).is_err());
        assert!(Schema::compile(&json!({"$ref": "https://example.com/schema.json"})).is_err());
    }

    /// Two alternatives that lead to two alternatives each, and so on.
    fn doubling(levels: usize) -> Value {
        let mut defs = serde_json::Map::new();
        for level in 0..levels {
            let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
            defs.insert(format!("d{level}"), json!({ "anyOf": [next, next] }));
        }
        defs.insert(format!("d{levels}"), json!({ "type": "string" }));
        json!({ "$defs": defs, "$ref": "#/$defs/d0" })
    }

    #[test]
    fn nested_any_of_refs_are_refused_as_too_costly() {
        let schema = Schema::compile(&doubling(21)).unwrap();
        let error = schema.check(&Json::from(json!(1))).unwrap_err();
        assert_eq!(error.code(), "too_costly");
        // Fewer are checked, and a breach is explained only where that takes little.
        let few = Schema::compile(&doubling(5)).unwrap();
        assert_eq!(few.check(&Json::from(json!("x"))), Ok(()));
        assert_eq!(few.check(&Json::from(json!(1))).unwrap_err().code(), "schema");
        let many = Schema::compile(&doubling(15)).unwrap();
        assert_eq!(many.check(&Json::from(json!("x"))), Ok(()));
        let error = many.check(&Json::from(json!(1))).unwrap_err();
        assert_eq!((error.code(), error.to_string().len() < 100), ("schema", true), "{error}");
    }

    #[test]
    fn alternatives_that_double_with_the_depth_of_the_payload_are_refused_as_too_costly() {
        let inner = json!({ "properties": { "a": { "$ref": "#" } } });
        let schema = Schema::compile(&json!({ "anyOf": [inner, inner] })).unwrap();
        let deep = |levels: usize| Json::composed("{\"a\":".repeat(levels) + "1" + &"}".repeat(levels));
        assert_eq!(schema.check(&deep(5)), Ok(()));
        assert_eq!(schema.check(&deep(60)).unwrap_err().code(), "too_costly");
    }

    #[test]
    fn unevaluated_properties_in_each_other_are_refused_as_too_costly() {
        let mut schema = json!({ "type": "object" });
        for _ in 0..40 {
            schema = json!({ "allOf": [schema], "unevaluatedProperties": false });
        }
        let checked = Schema::compile(&schema).unwrap().check(&Json::from(json!({ "a": 1 })));
        assert_eq!(checked.unwrap_err().code(), "too_costly");
    }

    #[test]
    fn pattern_bombs_are_refused_when_they_are_compiled() {
        let bomb = |of: usize| format!("^(\\w{{1,50}}[\\p{{L}}a{of}]){{50}}$");
        let one = json!({ "type": "string", "pattern": bomb(0) });
        assert!(Schema::compile(&one).is_err());
        assert!(Schema::compile(&json!({ "patternProperties": { (bomb(0)): {} } })).is_err());
        let many: serde_json::Map<String, Value> =
            (0..1_000).map(|at| (format!("p{at}"), json!({ "pattern": format!("a{at}") }))).collect();
        assert!(Schema::compile(&json!({ "properties": many })).unwrap_err().contains("1000 patterns"));
        let long = json!({ "pattern": "a".repeat(PATTERN_BYTES + 1) });
        assert!(Schema::compile(&long).unwrap_err().contains("the limit is 1024"));
        for usual in
            ["^[A-Z]{2}$", "^[a-z0-9-]{1,64}$", "^\\d{4}-\\d{2}-\\d{2}$", "^(?!x)[a-z]+$", "^(a)\\1$"]
        {
            assert!(Schema::compile(&json!({ "pattern": usual })).is_ok(), "{usual}");
        }
    }

    #[test]
    fn a_pattern_that_goes_back_and_back_ends() {
        let schema = Schema::compile(&json!({ "pattern": "^(?!x)(a+)+$" })).unwrap();
        assert_eq!(schema.check(&Json::from(json!("aaa"))), Ok(()));
        assert!(schema.check(&Json::from(json!("a".repeat(5_000) + "!"))).is_err());
    }

    #[test]
    fn schemas_that_are_too_deep_or_too_large_are_refused() {
        let mut defs = serde_json::Map::new();
        for level in 0..1_000 {
            defs.insert(format!("d{level}"), json!({ "$ref": format!("#/$defs/d{}", level + 1) }));
        }
        defs.insert("d1000".to_owned(), json!({}));
        let chain = json!({ "$defs": defs, "$ref": "#/$defs/d0" });
        assert!(Schema::compile(&chain).unwrap_err().contains("nests more than"));
        let wide: serde_json::Map<String, Value> =
            (0..6_000).map(|at| (format!("p{at}"), json!({}))).collect();
        assert!(Schema::compile(&json!({ "properties": wide })).unwrap_err().contains("subschemas"));
    }

    #[test]
    fn a_schema_that_refers_to_itself_and_a_large_payload_are_checked() {
        let tree = json!({ "type": "object", "properties": { "kids": { "type": "array", "items": { "$ref": "#" } } } });
        let schema = Schema::compile(&tree).unwrap();
        assert_eq!(schema.check(&Json::from(json!({ "kids": [{ "kids": [] }, {}] }))), Ok(()));
        let around =
            Schema::compile(&json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": {
            "anyOf": [{ "$ref": "#/$defs/a" }, { "type": "string" }] } } }));
        assert_eq!(around.unwrap().check(&Json::from(json!("x"))), Ok(()));
        let numbers =
            Schema::compile(&json!({ "items": { "anyOf": [{ "type": "string" }, { "type": "number" }] } }));
        assert_eq!(numbers.unwrap().check(&Json::from(json!(vec![1; (1 << 19) - 1]))), Ok(()));
    }

    #[test]
    fn references_by_anchor_and_id_are_followed() {
        let by = |target: &str| {
            let mut schema = doubling(21);
            schema["$id"] = json!("https://a.example/root.json");
            schema["$defs"]["d0"]["$anchor"] = json!("start");
            schema["$defs"]["other"] = json!({ "$id": "other.json", "$ref": "root.json#start" });
            schema["$ref"] = json!(target);
            Schema::compile(&schema).unwrap().check(&Json::from(json!(1))).unwrap_err().code()
        };
        for target in
            ["#/$defs/d0", "#start", "root.json#start", "https://a.example/other.json", "#/%24defs/d0"]
        {
            assert_eq!(by(target), "too_costly", "{target}");
        }
    }
}
