//! Whether this instance lives, and whether it can do its work.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::handler::Handler as _;
use flowline_api::stats::InstanceHealth;

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
        summary: "Check that the process is alive",
        about: "Responds as long as the process runs, whatever the state of the store.",
        query: &[],
        body: None,
        answers: &[Answer::json::<InstanceHealth>(200, "It lives.")],
        problems: &[],
        handler: |request, app| live.call(request, app),
    },
    Route {
        verb: Verb::Get,
        path: "/readyz",
        access: Access::Open,
        summary: "Check that the store is available",
        about: "For load balancers: an instance that isn't ready refuses requests that need the store.",
        query: &[],
        body: None,
        answers: &[Answer::json::<InstanceHealth>(200, "The store responds and accepts writes.")],
        problems: &[&codes::UNAVAILABLE],
        handler: |request, app| ready.call(request, app),
    },
];

async fn live() -> Json<InstanceHealth> {
    Json(InstanceHealth { status: "ok".to_owned(), instance: None })
}

async fn ready(State(app): State<App>) -> Result<Json<InstanceHealth>, Problem> {
    if let Some(trouble) = &*app.engine.trouble().borrow() {
        return Err(Problem::new(&codes::UNAVAILABLE, trouble.to_string()));
    }
    match tokio::time::timeout(PATIENCE, app.engine.store().now()).await {
        Ok(Ok(_)) => {
            let instance = Some(app.engine.config().instance.to_string());
            Ok(Json(InstanceHealth { status: "ok".to_owned(), instance }))
        }
        Ok(Err(error)) => Err(Problem::new(&codes::UNAVAILABLE, error.to_string())),
        Err(_) => Err(Problem::new(&codes::UNAVAILABLE, "the store didn't respond within 1.5s")),
    }
}
