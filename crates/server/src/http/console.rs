//! The web console: files of [`flowline_ui`] below `/ui/`. They hold no data, so anybody who reaches the port gets them;
//! what they show comes from the API, which asks for a token where one is needed.

use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::codes;
use super::problem::ApiError;

/// Where it is.
pub const PATH: &str = "/ui/";
/// Scripts, styles and images of this server only, and no text that a script turns into code or markup, but for
/// the address of the console's own worker.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; \
     require-trusted-types-for 'script'; trusted-types flowline";

/// Whether a request that no route takes is for the console.
pub fn is_asked_for<B>(request: &Request<B>) -> bool {
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    reads && (request.uri().path().starts_with(PATH) || request.uri().path() == "/ui")
}

/// A file of the console, compressed if the client takes that.
pub fn answer(path: &str, headers: &HeaderMap) -> Response {
    let path = path.strip_prefix(PATH).unwrap_or_default();
    let Some(file) = flowline_ui::file(path) else {
        return ApiError::new(&codes::NOT_FOUND, format!("the console has no file {path:?}")).into_response();
    };
    let text =
        |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
    let about = [
        (header::CONTENT_TYPE, file.kind()),
        (header::ETAG, file.tag),
        // A new version of the server has new files under the same names.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    if text(header::IF_NONE_MATCH).split(',').any(|tag| tag.trim() == file.tag) {
        return (StatusCode::NOT_MODIFIED, about).into_response();
    }
    if text(header::ACCEPT_ENCODING).split(',').any(|one| one.trim().split(';').next() == Some("gzip")) {
        return (about, [(header::CONTENT_ENCODING, "gzip")], file.gzip).into_response();
    }
    (about, file.plain).into_response()
}
