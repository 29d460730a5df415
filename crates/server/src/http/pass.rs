//! What every request passes on its way to a handler and back: a time-out, the check of who asks, the count. One layer, for
//! each costs every request an allocation or two; whatever no route takes is answered here.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderValue, Method, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::route::Route;
use super::{App, access, codes, cors, routes};

/// A handler that has not begun to answer by then is given up. Longer than any wait that a request may ask for.
pub const HANDLER_TIME: Duration = Duration::from_secs(90);
/// The label of requests that no route takes.
const UNMATCHED: &str = "unmatched";

/// Takes a request to the handler of its route.
pub async fn through(
    State((app, route)): State<(App, &'static Route)>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let asked = Asked::of(&app, &request);
    let answered = tokio::time::timeout(HANDLER_TIME, access::check(&app, route, request, next)).await;
    let response =
        answered.unwrap_or_else(|_| Problem::new(&codes::TIMEOUT, "no answer within 90s").into_response());
    asked.answered(&app, route.path, response)
}

/// Answers a request for a path that nothing is at.
pub async fn nowhere(State(app): State<App>, request: Request<Body>) -> Response {
    let asked = Asked::of(&app, &request);
    let detail = format!("nothing is at {}", request.uri().path());
    let response = Problem::new(&codes::NOT_FOUND, detail).into_response();
    asked.answered(&app, UNMATCHED, response)
}

/// Answers a request with a method that its path does not have. axum adds those that it has.
pub async fn other_method(
    State(app): State<App>,
    path: Option<MatchedPath>,
    request: Request<Body>,
) -> Response {
    let asked = Asked::of(&app, &request);
    let known = path.and_then(|path| routes().map(|route| route.path).find(|known| *known == path.as_str()));
    let code = &codes::METHOD_NOT_ALLOWED;
    let preflight =
        (asked.method == Method::OPTIONS).then(|| app.origins.preflight(request.headers())).flatten();
    let response = preflight.unwrap_or_else(|| Problem::new(code, code.title).into_response());
    asked.answered(&app, known.unwrap_or(UNMATCHED), response)
}

/// What of a request is still to be known when it is answered.
struct Asked {
    began: Instant,
    method: Method,
    /// A web page of elsewhere that is let in.
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
        app.watched.requests.passed(app, &self.method, route, self.began, response)
    }
}
