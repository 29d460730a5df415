//! Whether this instance is alive and ready.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use flowline_api::stats::InstanceHealth;

use super::App;
use super::codes;
use super::problem::ApiError;
use super::route::{Answer, Route, RouteAccess, handler};

/// A store that doesn't respond within this time is considered down.
const PATIENCE: Duration = Duration::from_millis(1_500);

pub const ROUTES: &[Route] = &[
    Route::get("/livez", RouteAccess::Open, "Check that the process is alive", handler!(live))
        .about("Responds as long as the process runs, whatever the state of the store.")
        .answers(&[Answer::json::<InstanceHealth>(200, "It lives.")]),
    Route::get("/readyz", RouteAccess::Open, "Check that the store is available", handler!(ready))
        .about("For load balancers: an instance that isn't ready refuses requests that need the store.")
        .answers(&[Answer::json::<InstanceHealth>(200, "The store responds and accepts writes.")])
        .problems(&[&codes::UNAVAILABLE]),
];

async fn live() -> Json<InstanceHealth> {
    Json(InstanceHealth { status: "ok".to_owned(), instance: None })
}

async fn ready(State(app): State<App>) -> Result<Json<InstanceHealth>, ApiError> {
    if let Some(trouble) = &*app.unchecked().trouble().borrow() {
        return Err(ApiError::new(&codes::UNAVAILABLE, trouble.to_string()));
    }
    match tokio::time::timeout(PATIENCE, app.unchecked().store().now()).await {
        Ok(Ok(_)) => {
            let instance = Some(app.unchecked().config().instance.to_string());
            Ok(Json(InstanceHealth { status: "ok".to_owned(), instance }))
        }
        Ok(Err(error)) => Err(ApiError::new(&codes::UNAVAILABLE, error.to_string())),
        Err(_) => Err(ApiError::new(&codes::UNAVAILABLE, "the store didn't respond within 1.5s")),
    }
}
