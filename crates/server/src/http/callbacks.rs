//! Callbacks: the outcomes of steps whose request was answered with 202, brought by whoever did the work.
//!
//! The reference in the path is all that the caller has to show: it names one attempt and holds the token of its lease, so
//! it works once, and for that attempt alone. No other token is asked for.

use axum::Json;
use axum::extract::State;
use flowline::core::Json as Raw;
use flowline::core::time::parse_duration;
use flowline::{Applied, LeaseRef, StepError};
use flowline_api::events::{Callback, CallbackRetry};
use flowline_api::runs::RunChanged;

use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, BodyLimit, Route, RouteAccess, handler};
use super::{App, codes};

pub const ROUTES: &[Route] = &[Route::post("/v1/callbacks/{reference}", RouteAccess::Open, "Report the outcome of a step", handler!(settle))
    .about("Use the URL from the header `flowline-callback-url` of the step's request, unchanged. The reference in it is the credential: it works once, while the attempt is waiting.")
    .body(Body::of::<Callback>(BodyLimit::Payloads(2)).optional())
    .answers(&[Answer::json::<RunChanged>(200, "Recorded; `changed` is false if it already was.")])
    .problems(&[
        &codes::NOT_FOUND,
        &codes::NO_SUCH_RUN,
        &codes::STALE_LEASE,
        &codes::OUTCOME_CONFLICT,
        &codes::RUN_ENDED,
        &codes::REFUSED,
    ])];

async fn settle(
    State(app): State<App>,
    params: Params,
    JsonBody(callback): JsonBody<Callback>,
) -> Result<Json<RunChanged>, ApiError> {
    let lease = params.path("reference").parse::<LeaseRef>();
    let lease = lease.map_err(|error| ApiError::new(&codes::NOT_FOUND, error.to_string()))?;
    let Applied { changed, status } = app.unchecked().settle(&lease, outcome(callback)?).await?;
    Ok(Json(RunChanged { run_id: lease.run.run, changed, status }))
}

fn outcome(callback: Callback) -> Result<Result<Raw, StepError>, ApiError> {
    let coded = |error: StepError, code: Option<String>| match code {
        Some(code) => error.code(&code),
        None => error,
    };
    match (callback.result, callback.fail, callback.retry) {
        (result, None, None) => Ok(Ok(result.unwrap_or_else(Raw::null))),
        (None, Some(fail), None) => Ok(Err(coded(StepError::fatal(fail.error), fail.code))),
        (None, None, Some(CallbackRetry { error, code, after })) => {
            let error = coded(StepError::new(error), code);
            let Some(after) = after else { return Ok(Err(error)) };
            let wait = parse_duration(&after).ok_or_else(|| {
                ApiError::new(&codes::BAD_BODY, format!("{after:?} isn't a duration (30s, 5m)"))
                    .at("/retry/after")
            })?;
            Ok(Err(error.retry_after(wait)))
        }
        _ => Err(ApiError::new(&codes::BAD_BODY, "send one of `result`, `fail` and `retry`").at("")),
    }
}
