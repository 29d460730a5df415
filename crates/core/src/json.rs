//! Payloads: JSON that is carried, not parsed.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::limits;

/// A JSON text, shared and never reparsed on its way through. Cloning is a reference count.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Arc<str>);

/// Why a text is not a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    #[error("not JSON: {0}")]
    Syntax(String),
    #[error("nested deeper than {} levels", limits::JSON_DEPTH)]
    Depth,
    #[error("{what} is {bytes} bytes; the limit is {limit}")]
    Size { what: String, bytes: usize, limit: usize },
}

impl Json {
    /// Takes a JSON text from outside. Refuses what is not JSON and what nests deeper than [`limits::JSON_DEPTH`].
    pub fn parse(text: &str) -> Result<Json, JsonError> {
        Json::check_depth(text)?;
        serde_json::from_str::<&RawValue>(text)
            .map(|raw| Json(raw.get().into()))
            .map_err(|error| JsonError::Syntax(error.to_string()))
    }

    /// Refuses a text that nests deeper than [`limits::JSON_DEPTH`], for whoever has it parsed by something that recurses.
    pub fn check_depth(text: &str) -> Result<(), JsonError> {
        if depth_exceeds(text, limits::JSON_DEPTH) { Err(JsonError::Depth) } else { Ok(()) }
    }

    /// Serializes a value. Fails only where the value's own `Serialize` does (a map with keys that are not strings).
    pub fn of(value: &impl Serialize) -> Result<Json, JsonError> {
        serde_json::to_string(value).map(Json::composed).map_err(|error| JsonError::Syntax(error.to_string()))
    }

    pub fn null() -> Json {
        Json("null".into())
    }

    /// Takes a text that was JSON when it was stored, or was composed from valid parts. Nothing checks it again.
    pub fn composed(text: String) -> Json {
        Json(text.into())
    }

    pub fn get(&self) -> &str {
        &self.0
    }

    pub fn is_null(&self) -> bool {
        self.get() == "null"
    }

    pub fn to<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }

    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(self.get()).unwrap_or(serde_json::Value::Null)
    }

    /// Refuses a payload over `limit` bytes; `what` names it in the message ("input").
    pub fn within(self, what: &str, limit: usize) -> Result<Json, JsonError> {
        match self.get().len() {
            bytes if bytes > limit => Err(JsonError::Size { what: what.to_owned(), bytes, limit }),
            _ => Ok(self),
        }
    }
}

/// Brackets outside strings, counted; cheap enough to run before any parser sees the text.
fn depth_exceeds(text: &str, limit: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Writes a JSON object from keys and raw values, in the order given; `None` leaves the key out.
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Option<&'a Json>)>) -> Json {
    let mut text = String::with_capacity(128);
    text.push('{');
    for (key, value) in fields {
        let Some(value) = value else { continue };
        if text.len() > 1 {
            text.push(',');
        }
        push_string(&mut text, key);
        text.push(':');
        text.push_str(value.get());
    }
    text.push('}');
    Json::composed(text)
}

/// A JSON string.
pub fn string(text: &str) -> Json {
    let mut quoted = String::with_capacity(text.len() + 2);
    push_string(&mut quoted, text);
    Json::composed(quoted)
}

/// Adds a JSON string to a text.
pub fn push_string(out: &mut String, text: &str) {
    // Names, ids and dates, which is nearly everything, need no escape.
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

/// A JSON number.
pub fn number(n: i64) -> Json {
    Json::composed(n.to_string())
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Json(raw.get().into()))
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::composed(value.to_string())
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Json {
        Json::composed(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_json_is_refused_without_recursion() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(Json::parse(&deep), Err(JsonError::Depth));
        assert!(Json::parse(r#"{"a":"[[[[{{{{\"[["}"#).is_ok());
    }

    #[test]
    fn a_payload_over_its_limit_is_refused_with_the_limit_named() {
        let error = Json::parse("[1,2,3]").and_then(|j| j.within("input", 3)).unwrap_err();
        assert_eq!(error.to_string(), "input is 7 bytes; the limit is 3");
    }

    #[test]
    fn strange_text_round_trips() {
        for text in ["nul \0", "rtl \u{202e}x", "quote \" and \\", "{}:../", "\u{1f600}"] {
            assert_eq!(string(text).to::<String>().unwrap(), text);
        }
    }
}
