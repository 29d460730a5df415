//! JSON Schema for inputs and emits: compiled once, never fetching anything.

use std::fmt;

use jsonschema::Validator;

use crate::json::Json;

/// A compiled JSON Schema (2020-12 unless it says otherwise).
pub struct Schema(Validator);

impl Schema {
    /// Compiles a schema. References can only point inside it.
    pub fn compile(schema: &serde_json::Value) -> Result<Schema, String> {
        jsonschema::options().offline().build(schema).map(Schema).map_err(|error| {
            let path = error.instance_path().to_string();
            if path.is_empty() { error.to_string() } else { format!("at {path}: {error}") }
        })
    }

    /// Checks a payload; the error names the place by JSON pointer.
    pub fn check(&self, payload: &Json) -> Result<(), String> {
        let value = payload.value();
        match self.0.validate(&value) {
            Ok(()) => Ok(()),
            Err(error) => {
                let path = error.instance_path().to_string();
                Err(format!("{}: {}", if path.is_empty() { "/" } else { &path }, error))
            }
        }
    }
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
        let error = schema.check(&Json::from(json!({"total": "x"}))).unwrap_err();
        assert!(error.starts_with("/total: "), "{error}");
        assert_eq!(schema.check(&Json::from(json!({"total": 1}))), Ok(()));
    }

    #[test]
    fn a_schema_that_is_none_is_refused() {
        assert!(Schema::compile(&json!({"type": "objekt"})).is_err());
        assert!(Schema::compile(&json!({"$ref": "https://example.com/schema.json"})).is_err());
    }
}
