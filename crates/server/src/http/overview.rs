//! Statistics and checks over all runs of a tenant.

use std::time::Duration;

use axum::Json;
use flowline::stats::{Depth, NO_WIDTH, Question, Stats, stats};
use flowline::verify::verify;
use flowline_api::explain::VerifyReport;

use super::problem::ApiError;
use super::request::Params;
use super::route::{Answer, Query, QueryKind, Route, RouteAccess, handler};
use super::visible::ApiCaller;

/// How far back statistics go by default.
const SINCE: Duration = Duration::from_secs(24 * 3600);

pub const ROUTES: &[Route] = &[
    Route::get("/v1/stats", RouteAccess::READ, "Show counts and durations of runs and steps", handler!(count))
        .about("The cost grows with the number of runs covered: by default, those of the last day.")
        .query(&[
            Query::new("flow", QueryKind::Text, "Only runs of this flow."),
            Query::new("since", QueryKind::Moment, "Only runs created at or after this: a timestamp or an age; 24h by default."),
            Query::new("bucket", QueryKind::Span, "Width of the time buckets; 1h by default. Empty buckets are left out; a response has at most 1,000."),
            Query::new("steps", QueryKind::Flag, "Also compute durations of steps, from the logs."),
        ])
        .answers(&[Answer::json::<Stats>(200, "")]),
    Route::post("/v1/verify", RouteAccess::OPERATE, "Check all runs of the tenant against their logs", handler!(check))
        .about("Reads every log. On a large store use `flowline verify`, which has no time limit.")
        .answers(&[Answer::json::<VerifyReport>(200, "What doesn't match; empty if all is well.")]),
];

async fn count(caller: ApiCaller, params: Params) -> Result<Json<Stats>, ApiError> {
    let runs = caller.runs_of(params.text("flow").map(str::to_owned));
    let runs = runs.map_err(|detail| ApiError::parameter("flow", detail))?;
    let (flow, store) = (runs.flow()?, runs.engine().store());
    let now = store.now().await?;
    let since = params.moment("since", now).unwrap_or_else(|| now.before(SINCE));
    let bucket = params.duration("bucket").unwrap_or(Duration::from_secs(3600));
    if bucket < Duration::from_millis(1) {
        return Err(ApiError::parameter("bucket", NO_WIDTH));
    }
    let steps = if params.flag("steps") { Depth::Steps } else { Depth::Runs };
    let tenant = runs.engine().tenant().clone();
    let question = Question { tenant, flow, since: Some(since), bucket, steps };
    Ok(Json(stats(store, &question).await?))
}

async fn check(caller: ApiCaller, _: Params) -> Result<Json<VerifyReport>, ApiError> {
    let all = caller.all_runs("check a single run with GET /v1/runs/{run}/verify")?;
    let engine = all.engine();
    Ok(Json(verify(engine.store(), engine.plans(), Some(engine.tenant())).await?))
}
