//! JSON schemas of the types that write their JSON themselves.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::json::Json;
use crate::retain::Retain;
use crate::time::Time;

macro_rules! inline_schema {
    ($type:ident, $schema:expr) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

inline_schema!(Json, Schema::default());
inline_schema!(Time, json_schema!({ "type": "string", "format": "date-time" }));
inline_schema!(
    Retain,
    json_schema!({
        "type": "object",
        "properties": {
            "events": { "type": "string", "description": "A duration such as 1d." },
            "runs": { "type": "string", "description": "A duration such as 7d." },
        },
    })
);
