//! Payloads: JSON that is carried, not parsed.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::limits::{self, Limit};

mod unique;

/// A JSON text, shared and never reparsed on its way through. Cloning is a reference count.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Arc<str>);

/// Why a text is not a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    #[error("not JSON: {0}")]
    Syntax(String),
    /// JSON by its grammar, and yet nothing that it says: half of a character, a number beyond all bounds.
    #[error("unreadable JSON: {0}")]
    Unreadable(String),
    #[error("nested deeper than {} levels", limits::JSON_DEPTH)]
    Depth,
    /// Parsers differ in which of the two counts, so one could be shown to a check and the other to what comes after it.
    #[error("the key {0:?} is given twice in one object")]
    Twice(String),
    #[error("{what} is {bytes} bytes; the limit is {} (setting {})", limit.bytes, limit.setting)]
    Size { what: String, bytes: usize, limit: Limit },
}

impl Json {
    /// Takes a JSON text from outside. Refuses what is not JSON, and what [`Json::check`] does.
    pub fn parse(text: &str) -> Result<Json, JsonError> {
        Json::check(text)?;
        serde_json::from_str::<&RawValue>(text)
            .map(|raw| Json(raw.get().into()))
            .map_err(|error| JsonError::Syntax(error.to_string()))
    }

    /// Refuses what could be carried but not read: a text that nests deeper than [`limits::JSON_DEPTH`], half of a character
    /// (`"\ud83d"`), a number beyond all bounds (`1e400`), an object with the same key twice. For callers that carry parts of a
    /// text without parsing them.
    pub fn check(text: &str) -> Result<(), JsonError> {
        let Survey { doubt, members } = survey(text, limits::JSON_DEPTH);
        match doubt {
            Doubt::TooDeep => return Err(JsonError::Depth),
            // Where it isn't JSON, its parser says so.
            _ if members > 1 => unique::check(text)?,
            _ => {}
        }
        match doubt {
            Doubt::None | Doubt::TooDeep => Ok(()),
            Doubt::Readable => match serde_json::from_str::<Readable>(text) {
                // Whatever else is wrong with it is for its parser to say.
                Err(error) if serde_json::from_str::<&RawValue>(text).is_ok() => {
                    Err(JsonError::Unreadable(error.to_string()))
                }
                _ => Ok(()),
            },
        }
    }

    /// Serializes a value. Fails only where the value's own `Serialize` does (a map with keys that are not strings).
    pub fn of(value: &impl Serialize) -> Result<Json, JsonError> {
        serde_json::to_string(value).map(Json::composed).map_err(|error| JsonError::Syntax(error.to_string()))
    }

    pub fn null() -> Json {
        Json("null".into())
    }

    /// No payload at all, which an event may have. It reads as null, and [`object`] leaves its key out.
    pub fn nothing() -> Json {
        Json("".into())
    }

    pub fn is_nothing(&self) -> bool {
        self.get().is_empty()
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

    /// Refuses a payload over the limit; `what` names it in the message ("input").
    pub fn within(self, what: &str, limit: Limit) -> Result<Json, JsonError> {
        match self.get().len() {
            bytes if bytes > limit.bytes => Err(JsonError::Size { what: what.to_owned(), bytes, limit }),
            _ => Ok(self),
        }
    }
}

/// What a look at a text tells.
struct Survey {
    doubt: Doubt,
    /// Members of all objects.
    members: usize,
}

enum Doubt {
    /// If it is JSON at all, it can be read.
    None,
    /// It has an escaped character or a number that may be none.
    Readable,
    TooDeep,
}

/// More digits in a row than any number that can be read needs.
const DIGITS: usize = 300;

/// Brackets outside strings, counted; cheap enough to run before any parser sees the text.
fn survey(text: &str, limit: usize) -> Survey {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let (mut doubtful, mut digits, mut members) = (false, 0, 0);
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => {
                    escaped = false;
                    doubtful |= byte == b'u';
                }
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > limit {
                    return Survey { doubt: Doubt::TooDeep, members };
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b':' => members += 1,
            // Of a number, or of a word, which does no harm.
            b'e' | b'E' => doubtful = true,
            _ => doubtful |= digits > DIGITS,
        }
    }
    Survey { doubt: if doubtful { Doubt::Readable } else { Doubt::None }, members }
}

/// Reads every string and number of a text, and keeps none.
struct Readable;

macro_rules! visits {
    ($($visit:ident($of:ty))*) => {
        $(fn $visit<E>(self, _: $of) -> Result<Readable, E> {
            Ok(self)
        })*
    };
}

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Readable, D::Error> {
        deserializer.deserialize_any(Readable)
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = Readable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Readable, E> {
        Ok(self)
    }

    visits! { visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_f64(f64) visit_str(&str) }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Readable, A::Error> {
        while items.next_element::<Readable>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Readable, A::Error> {
        while fields.next_entry::<Readable, Readable>()?.is_some() {}
        Ok(self)
    }
}

/// For a member that may be missing and may be null, which is not the same.
pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

/// Writes a JSON object from keys and raw values, in the order given; `None` and [`Json::nothing`] leave the key out.
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Option<&'a Json>)>) -> Json {
    let mut text = String::with_capacity(128);
    text.push('{');
    for (key, value) in fields {
        let Some(value) = value.filter(|value| !value.is_nothing()) else { continue };
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
        if self.is_nothing() {
            return serializer.serialize_unit();
        }
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
    fn a_payload_within_another_is_json_and_not_a_text_of_it() {
        let input = Json::parse(r#"{"a": [1, "x"]}"#).unwrap();
        let around = serde_json::json!({ "packed": &input, "all": [&input] });
        assert_eq!(around["packed"]["a"][1], "x");
        assert_eq!(around["all"][0], around["packed"]);
        assert_eq!(Json::of(&around).unwrap().get(), r#"{"all":[{"a":[1,"x"]}],"packed":{"a":[1,"x"]}}"#);
    }

    #[test]
    fn deep_json_is_refused_without_recursion() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(Json::parse(&deep), Err(JsonError::Depth));
        assert!(Json::parse(r#"{"a":"[[[[{{{{\"[["}"#).is_ok());
    }

    #[test]
    fn what_could_be_carried_but_not_read_is_refused() {
        let long = "9".repeat(400);
        for bad in [r#""\ud83d""#, r#"{"a":["\udc00 x"]}"#, r#"{"\ud83d":1}"#, "1e400", "[-2E999]", &long] {
            let text = format!(r#"{{"ok": true, "in": {bad}}}"#);
            assert!(matches!(Json::parse(&text), Err(JsonError::Unreadable(_))), "{text}");
            assert!(
                serde_json::from_str::<serde_json::Value>(&text).is_err(),
                "nobody could read it: {text}"
            );
        }
        for fine in [r#""\ud83d\ude00""#, r#""\u00e9 \\ud83d""#, "1e300", "-0.5E-3", "false", &long[..300]] {
            assert!(Json::parse(fine).is_ok(), "{fine}");
        }
        assert!(matches!(Json::parse(r#"{"a": 1e400"#), Err(JsonError::Syntax(_))), "not even JSON");
    }

    #[test]
    fn a_payload_over_its_limit_is_refused_with_the_limit_named() {
        let limit = Limit { setting: "max-payload", bytes: 3 };
        let error = Json::parse("[1,2,3]").and_then(|j| j.within("input", limit)).unwrap_err();
        assert_eq!(error.to_string(), "input is 7 bytes; the limit is 3 (setting max-payload)");
    }

    #[test]
    fn strange_text_round_trips() {
        for text in ["nul \0", "rtl \u{202e}x", "quote \" and \\", "{}:../", "\u{1f600}"] {
            assert_eq!(string(text).to::<String>().unwrap(), text);
        }
    }
}
