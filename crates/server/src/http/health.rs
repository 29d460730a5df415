//! Whether this instance lives, and whether it can do its work.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::handler::Handler as _;
use serde_json::{Value, json};

use super::App;
use super::codes;
use super::problem::Problem;
use super::route::{Access, Answer, Route, Verb};

/// A store that does not tell the time within this is not there.
const PATIENCE: Duration = Duration::from_millis(1_500);

pub const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: "/livez",
        access: Access::Open,
        summary: "Tell whether the process lives",
        about: "It answers for as long as the process can answer at all, whatever the store does.",
        query: &[],
        body: None,
        answers: &[Answer::json(200, "Health", "It lives.")],
        problems: &[],
        handler: |request, app| live.call(request, app),
    },
    Route {
        verb: Verb::Get,
        path: "/readyz",
        access: Access::Open,
        summary: "Tell whether the store can be reached",
        about: "For load balancers: an instance that is not ready refuses what needs the store.",
        query: &[],
        body: None,
        answers: &[Answer::json(200, "Health", "The store answers and takes writes.")],
        problems: &[&codes::UNAVAILABLE],
        handler: |request, app| ready.call(request, app),
    },
];

async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

async fn ready(State(app): State<App>) -> Result<Json<Value>, Problem> {
    if let Some(trouble) = &*app.engine.trouble().borrow() {
        return Err(Problem::new(&codes::UNAVAILABLE, trouble.to_string()));
    }
    match tokio::time::timeout(PATIENCE, app.engine.store().now()).await {
        Ok(Ok(_)) => Ok(Json(json!({ "status": "ok", "instance": &*app.engine.config().instance }))),
        Ok(Err(error)) => Err(Problem::new(&codes::UNAVAILABLE, error.to_string())),
        Err(_) => Err(Problem::new(&codes::UNAVAILABLE, "the store did not answer within 1.5s")),
    }
}
