//! The way of every request to its handler and back: timeout, authentication, metrics. Requests without a route are answered
//! here.
//!
//! There are no middleware layers: each would cost an allocation or two per request.

use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderValue, Method, Request, Version, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;

use super::paths::RouteMatch;
use super::problem::ApiError;
use super::route::{Route, Verb};
use super::{App, access, codes, console, cors};

/// Timeout of a handler. Longer than any `wait`.
pub const HANDLER_TIME: Duration = Duration::from_secs(90);
/// For a year, no plain HTTP to this host.
const ONLY_HTTPS: &str = "max-age=31536000";
/// Label of requests without a route.
const UNMATCHED: &str = "unmatched";

/// Passes a request to the handler of its route.
pub async fn through(app: &App, found: RouteMatch, request: Request<Incoming>) -> Response {
    let request = request.map(|body| if body.is_end_stream() { Body::empty() } else { Body::new(body) });
    let asked = Asked::of(app, &request);
    let (route, response) = match found {
        _ if !has_one_host(&request) => {
            let detail = "send exactly one Host header; without one, or with several, proxies and servers may disagree about where the request goes";
            (UNMATCHED, ApiError::new(&codes::BAD_REQUEST, detail).into_response())
        }
        RouteMatch::Route(route, values) => {
            let answered = access::check(app, route, values, request);
            let answered = tokio::time::timeout(HANDLER_TIME, answered).await;
            let late = |_| ApiError::new(&codes::TIMEOUT, "no response within 90s").into_response();
            (route.path, answered.unwrap_or_else(late))
        }
        RouteMatch::OtherMethod(routes) => {
            (routes.first().map_or(UNMATCHED, |route| route.path), other_method(app, &routes, &request))
        }
        RouteMatch::Nothing if console::is_asked_for(&request) => {
            (console::PATH, console::answer(request.uri().path(), request.headers()))
        }
        RouteMatch::Nothing => {
            let detail = format!("there is no route {}", request.uri().path());
            (UNMATCHED, ApiError::new(&codes::NOT_FOUND, detail).into_response())
        }
    };
    asked.answered(app, route, response)
}

/// Whether a request says which host it is for, once. Before HTTP/1.1 it didn't have to.
fn has_one_host(request: &Request<Body>) -> bool {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    hosts == 1 || hosts == 0 && request.version() < Version::HTTP_11
}

/// Refuses a method that the path doesn't have, and lists those that it has.
fn other_method(app: &App, routes: &[&Route], request: &Request<Body>) -> Response {
    if *request.method() == Method::OPTIONS
        && let Some(told) = app.origins.preflight(request.headers())
    {
        return told;
    }
    let code = &codes::METHOD_NOT_ALLOWED;
    let mut response = ApiError::new(code, code.title).into_response();
    let methods: Vec<&str> = routes
        .iter()
        .map(|route| match route.verb {
            Verb::Get => "GET, HEAD",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        })
        .collect();
    if let Ok(methods) = HeaderValue::from_str(&methods.join(", ")) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// What the response needs to know about its request.
struct Asked {
    began: Instant,
    method: Method,
    /// An allowed origin.
    origin: Option<HeaderValue>,
}

impl Asked {
    fn of(app: &App, request: &Request<Body>) -> Asked {
        let (method, origin) = (request.method().clone(), app.origins.of(request.headers()));
        Asked { began: Instant::now(), method, origin }
    }

    fn answered(self, app: &App, route: &'static str, mut response: Response) -> Response {
        if let Some(origin) = self.origin {
            cors::allow(&mut response, origin);
        }
        if self.method == Method::HEAD {
            response = head_of(response);
        }
        harden(app, &mut response);
        app.watched.requests.passed(app, &self.method, route, self.began, response)
    }
}

/// Tells browsers and caches what not to do with a response. It has somebody's data in it, so nothing keeps it, unless it
/// says otherwise itself: the files of the console do, which have none.
fn harden(app: &App, response: &mut Response) {
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if app.encrypted {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(ONLY_HTTPS));
    }
}

/// A response without its body, but with its length.
fn head_of(mut response: Response) -> Response {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length.into());
    }
    response.map(|_| Body::empty())
}
