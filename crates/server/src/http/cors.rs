//! CORS: which other web pages may use this server through a browser. None, unless the setting names their origins. Cookies
//! aren't used, so an allowed page still needs a token if tokens are required.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// How long a browser may cache a preflight, in seconds.
const REMEMBERED: &str = "600";
const METHODS: &str = "GET, POST, PUT, DELETE";
/// Additional headers that a page may send.
const TAKEN: &str = "authorization, content-type, flowline-tenant, idempotency-key, if-none-match, last-event-id, traceparent";
/// Additional headers that a page may read.
const SHOWN: &str = "etag, location, retry-after, www-authenticate";

/// Allowed origins.
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

    /// The origin of a request, if it's allowed.
    pub fn of(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        headers
            .get(header::ORIGIN)
            .filter(|origin| origin.to_str().is_ok_and(|origin| self.has(origin)))
            .cloned()
    }

    /// Answers a preflight; `None` if it's refused or isn't one.
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

/// Lets the page read the response.
pub fn allow(response: &mut Response, origin: HeaderValue) {
    let mut tell = |name: HeaderName, value| drop(response.headers_mut().insert(name, value));
    tell(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    tell(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(SHOWN));
    tell(header::VARY, HeaderValue::from_static("origin"));
}

/// An origin as browsers write it: scheme, host and perhaps a port.
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
