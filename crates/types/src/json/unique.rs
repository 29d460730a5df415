//! Objects with the same key twice.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::JsonError;

/// Refuses a text in which an object has the same key twice. A text that isn't JSON passes.
pub(super) fn check(text: &str) -> Result<(), JsonError> {
    let mut twice = None;
    // Errors of the parser are for whoever reads the text.
    let _ = Keys(&mut twice).deserialize(&mut serde_json::Deserializer::from_str(text));
    twice.map_or(Ok(()), |key| Err(JsonError::Twice(key)))
}

/// Looks through a value, and keeps the first key that comes twice.
struct Keys<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for Keys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Keys(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut known: BTreeSet<Cow<'de, str>> = BTreeSet::new();
        while let Some(key) = members.next_key_seed(Key)? {
            if known.contains(&key) {
                *self.0 = Some(key.into_owned());
                return Err(A::Error::custom("a key is given twice"));
            }
            members.next_value_seed(Keys(&mut *self.0))?;
            known.insert(key);
        }
        Ok(())
    }
}

/// A key, borrowed unless it has an escaped character.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;

    #[test]
    fn a_key_that_is_given_twice_is_named_at_any_depth() {
        for (text, key) in [
            (r#"{"a": 1, "a": 2}"#, "a"),
            (r#"{"input": {"b": [{"c": 1, "d": {}, "c": {}}]}}"#, "c"),
            (r#"[{"\u0061": 1, "a": 2}]"#, "a"),
            (r#"{"": 1, "": 1}"#, ""),
        ] {
            assert_eq!(check(text), Err(JsonError::Twice(key.to_owned())), "{text}");
            assert_eq!(Json::parse(text), Err(JsonError::Twice(key.to_owned())), "{text}");
        }
        for text in [
            r#"{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]}"#,
            r#"{"a": ":", "A": ":"}"#,
            "1",
            "",
            "{\"a\":1,",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }
}
