//! Web pages of elsewhere: which of them a browser may let speak to this server. None, unless the setting names their
//! origins. No cookie is ever used here, so an allowed page still needs a token where tokens are asked for.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// How long a browser may remember what it was told, in seconds.
const REMEMBERED: &str = "600";
const METHODS: &str = "GET, POST, PUT, DELETE";
/// What a page may send beside what any page may.
const TAKEN: &str = "authorization, content-type, flowline-tenant, idempotency-key, if-none-match, last-event-id, traceparent";
/// What a page may read beside what any page may.
const SHOWN: &str = "etag, location, retry-after, www-authenticate";

/// The origins that are let in.
#[derive(Debug, Clone, Default)]
pub struct Origins(Vec<String>);

impl Origins {
    /// Reads a list of origins, separated by commas.
    pub fn parse(text: &str) -> Result<Origins, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let origins: Vec<String> = names.map(|name| name.to_ascii_lowercase()).collect();
        match origins.iter().find(|origin| !is_origin(origin)) {
            Some(wrong) => {
                Err(format!("{wrong:?} isn't an origin (https://flows.example, http://localhost:5173)"))
            }
            None => Ok(Origins(origins)),
        }
    }

    pub fn list(&self) -> &[String] {
        &self.0
    }

    pub fn has(&self, origin: &str) -> bool {
        self.0.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }

    /// The origin that a request comes from, where that is let in.
    pub fn of(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        headers
            .get(header::ORIGIN)
            .filter(|origin| origin.to_str().is_ok_and(|origin| self.has(origin)))
            .cloned()
    }

    /// Answers a browser that asks before it sends a request for a page; `None` where it is refused, or does not ask that.
    pub fn preflight(&self, headers: &HeaderMap) -> Option<Response> {
        headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        self.of(headers)?;
        let told = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, TAKEN),
            (header::ACCESS_CONTROL_MAX_AGE, REMEMBERED),
        ];
        Some((StatusCode::NO_CONTENT, told).into_response())
    }
}

/// Says in an answer that the page which asked may read it.
pub fn allow(response: &mut Response, origin: HeaderValue) {
    let mut tell = |name: HeaderName, value| drop(response.headers_mut().insert(name, value));
    tell(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    tell(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(SHOWN));
    tell(header::VARY, HeaderValue::from_static("origin"));
}

/// Scheme, host and perhaps a port, and nothing after them: as browsers write it.
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*\\".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read_from_a_list_and_refused_with_the_one_that_is_wrong() {
        let origins = Origins::parse("https://flows.example, http://localhost:5173").unwrap();
        assert!(origins.has("https://flows.example") && origins.has("HTTP://localhost:5173"));
        assert!(!origins.has("https://flows.example:8443") && !origins.has("null"));
        assert!(Origins::parse("").unwrap().list().is_empty());
        for wrong in ["*", "flows.example", "https://", "https://flows.example/", "https://*.example", "null"]
        {
            assert!(Origins::parse(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
