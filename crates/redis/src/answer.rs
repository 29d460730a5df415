//! Reading what Redis answers.

use flowline_store::StoreError;
use redis::Value;

/// An answer of another shape than this store asked for.
pub(crate) fn strange(value: &Value) -> StoreError {
    StoreError::Damaged(format!("an unexpected reply: {value:?}").chars().take(300).collect())
}

pub(crate) fn list(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        Value::Nil => Ok(Vec::new()),
        other => Err(strange(&other)),
    }
}

pub(crate) fn bytes(value: Value) -> Result<Option<Vec<u8>>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        Value::Int(number) => Ok(Some(number.to_string().into_bytes())),
        Value::Okay => Ok(Some(b"OK".to_vec())),
        Value::Nil => Ok(None),
        other => Err(strange(&other)),
    }
}

pub(crate) fn text(value: Value) -> Result<String, StoreError> {
    maybe_text(value)?.ok_or_else(|| strange(&Value::Nil))
}

pub(crate) fn maybe_text(value: Value) -> Result<Option<String>, StoreError> {
    let Some(bytes) = bytes(value)? else { return Ok(None) };
    let damaged = |_| StoreError::Damaged("a text in the store isn't UTF-8".to_owned());
    String::from_utf8(bytes).map(Some).map_err(damaged)
}

pub(crate) fn texts(value: Value) -> Result<Vec<String>, StoreError> {
    list(value)?.into_iter().map(text).collect()
}

pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Damaged(format!("{text:?} isn't a number")))
}

/// A score as Redis writes it: a whole number, in the short form of a float where it is large.
pub(crate) fn score(text: &str) -> Result<i64, StoreError> {
    let exact = text.parse::<i64>();
    exact.or_else(|_| number::<f64>(text).map(|score| score as i64))
}
