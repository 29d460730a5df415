//! Sessions of the console: a token is exchanged for a cookie that scripts can't read. The store keeps the hash of the
//! cookie with the hash of the token, so a session ends with its token, and another instance knows it too.
//!
//! A browser sends a cookie by itself, so a request that changes something counts only if a page of this very server sent
//! it. The cookie is `SameSite=Strict` besides.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flowline::core::Json;
use flowline::store::{NewDocument, Store};
use flowline_api::access::NewSession;

use super::audit::Peer;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, BodyLimit, Route, RouteAccess, handler};
use super::{App, access, codes};
use crate::token;

const COLLECTION: &str = "sessions";
const COOKIE: &str = "flowline_session";
/// A working day; then the token is asked for again.
const LASTS: Duration = Duration::from_secs(12 * 60 * 60);

pub const ROUTES: &[Route] = &[
    Route::post("/v1/session", RouteAccess::Open, "Sign in to the console", handler!(sign_in))
        .about("Exchanges a token for a session cookie that lasts 12 hours, or until the token is revoked. For browsers; other clients send the token itself.")
        .body(Body::of::<NewSession>(BodyLimit::Bytes(64 << 10)))
        .answers(&[Answer::empty(204, "Signed in; the response sets the cookie.")])
        .problems(&[&codes::UNAUTHORIZED, &codes::TOKEN_EXPIRED, &codes::FORBIDDEN, &codes::TOO_MANY_WRONG_TOKENS]),
    Route::delete("/v1/session", RouteAccess::Open, "Sign out of the console", handler!(sign_out))
        .about("Ends the session of the cookie, if there is one.")
        .answers(&[Answer::empty(204, "Signed out; the response removes the cookie.")])
        .problems(&[&codes::FORBIDDEN]),
];

async fn sign_in(
    State(app): State<App>,
    _: Params,
    headers: HeaderMap,
    Extension(peer): Extension<Peer>,
    JsonBody(new): JsonBody<NewSession>,
) -> Result<Response, ApiError> {
    from_own_page(&headers)?;
    let hash = token::hash(new.token.trim());
    access::sign_in(&app, &hash, peer).await?;
    let secret = token::random()?;
    let body = Json::of(&hash).map_err(|error| ApiError::new(&codes::INTERNAL, error.to_string()))?;
    let session = NewDocument::new(COLLECTION, &token::hash(&secret), body, Some(LASTS));
    app.unchecked().store().put_document(session).await?;
    Ok(set_cookie(&headers, &secret, LASTS))
}

async fn sign_out(State(app): State<App>, _: Params, headers: HeaderMap) -> Result<Response, ApiError> {
    from_own_page(&headers)?;
    if let Some(secret) = cookie(&headers) {
        app.unchecked().store().delete_document(COLLECTION, &token::hash(secret)).await?;
    }
    Ok(set_cookie(&headers, "", Duration::ZERO))
}

/// The hash of the token that the session of a cookie stands for; `None` if it's no session that lasts. The token itself is
/// still to be looked up.
pub async fn token_of(
    store: &dyn Store,
    method: &Method,
    headers: &HeaderMap,
    secret: &str,
) -> Result<Option<String>, ApiError> {
    if ![Method::GET, Method::HEAD].contains(method) {
        from_own_page(headers)?;
    }
    let found = store.document(COLLECTION, &token::hash(secret)).await?;
    Ok(found.and_then(|found| serde_json::from_str(found.body.get()).ok()))
}

/// The secret of a request's session.
pub fn cookie(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = given.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, secret)| secret)
}

/// Browsers say where a request comes from, and no page can make them say otherwise.
fn from_own_page(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let authority =
        text("origin").and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    let own = match text("sec-fetch-site") {
        Some(site) => site == "same-origin",
        None => authority.is_some() && authority == text("host"),
    };
    let refused =
        "a session works only from the console of this server; elsewhere, send `Authorization: Bearer TOKEN`";
    if own { Ok(()) } else { Err(ApiError::new(&codes::FORBIDDEN, refused)) }
}

fn set_cookie(headers: &HeaderMap, secret: &str, lasts: Duration) -> Response {
    let https = headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https:"));
    let secure = if https { "; Secure" } else { "" };
    let cookie =
        format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}", lasts.as_secs());
    let cookie = HeaderValue::try_from(cookie).unwrap_or_else(|_| HeaderValue::from_static(""));
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn only_pages_of_this_server_may_act_by_a_session() {
        for own in [
            &[("sec-fetch-site", "same-origin")][..],
            &[("origin", "https://flows.example"), ("host", "flows.example")],
            &[("origin", "http://127.0.0.1:7400"), ("host", "127.0.0.1:7400")],
        ] {
            assert!(from_own_page(&headers(own)).is_ok(), "{own:?}");
        }
        for other in [
            &[][..],
            &[("sec-fetch-site", "same-site"), ("origin", "http://a"), ("host", "a")],
            &[("sec-fetch-site", "none")],
            &[("origin", "https://evil.example"), ("host", "flows.example")],
            &[("origin", "null"), ("host", "flows.example")],
            &[("host", "flows.example")],
        ] {
            assert!(from_own_page(&headers(other)).is_err(), "{other:?}");
        }
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        assert_eq!(cookie(&headers(&[("cookie", "a=1; flowline_session=xyz; b=2")])), Some("xyz"));
        assert_eq!(cookie(&headers(&[("cookie", "flowline_session2=xyz")])), None);
    }
}
