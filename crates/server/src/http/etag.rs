//! Responses with an ETag: a client that has the current version gets 304. The tag is a hash of the response, so it's the same
//! on every instance. It's for clients that keep the response themselves: caches are told to keep nothing.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flowline::core::ids::digest;
use serde::Serialize;

use super::codes;
use super::problem::ApiError;
use super::route::Answer;

/// The other answer of a route with an ETag.
pub const UNCHANGED: Answer = Answer::empty(304, "Unchanged: `If-None-Match` has the current tag.");

/// JSON with its ETag, or 304 if the request has that tag.
pub fn tagged(headers: &HeaderMap, body: &impl Serialize) -> Result<Response, ApiError> {
    let text =
        serde_json::to_string(body).map_err(|error| ApiError::new(&codes::INTERNAL, error.to_string()))?;
    let tag = format!("\"{}\"", &digest(text.as_bytes())[..32]);
    let about =
        [(header::ETAG, HeaderValue::from_str(&tag).unwrap_or_else(|_| HeaderValue::from_static("\"\"")))];
    if is_known(headers, &tag) {
        return Ok((StatusCode::NOT_MODIFIED, about).into_response());
    }
    Ok((about, [(header::CONTENT_TYPE, "application/json")], text).into_response())
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let given = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = given.flat_map(|value| value.split(',')).map(str::trim);
    // A cache between may have made the tag a weak one; for a whole answer that is as good.
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_in_any_form_that_it_comes_back_in() {
        let named = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static(value));
            is_known(&headers, "\"a1\"")
        };
        assert!(named("\"a1\"") && named("W/\"a1\"") && named("\"b\", \"a1\"") && named("*"));
        assert!(!named("\"a2\"") && !named("a1") && !named(""));
        assert!(!is_known(&HeaderMap::new(), "\"a1\""));
    }
}
