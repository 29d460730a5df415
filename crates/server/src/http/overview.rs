//! Figures and checks over all runs of a tenant.

use std::time::Duration;

use axum::Json;
use flowline::stats::{Depth, NO_WIDTH, Question, Stats, stats};
use flowline::verify::verify;
use flowline_api::explain::VerifyReport;

use super::codes;
use super::problem::Problem;
use super::request::{Caller, Params};
use super::route::{Access, Answer, Kind, Query, Route, handler};

/// How far back figures go where nothing is said.
const SINCE: Duration = Duration::from_secs(24 * 3600);

pub const ROUTES: &[Route] = &[
    Route::get("/v1/stats", Access::READ, "Show counts and durations of runs and steps", handler!(count))
        .about("The cost grows with the number of runs covered: by default, those of the last day.")
        .query(&[
            Query::new("flow", Kind::Text, "Only runs of this flow."),
            Query::new("since", Kind::Moment, "Only runs created at or after this: a timestamp or an age; 24h by default."),
            Query::new("bucket", Kind::Span, "Width of the time buckets; 1h by default. Empty buckets are left out; a response has at most 1,000."),
            Query::new("steps", Kind::Flag, "Also compute durations of steps, from the logs."),
        ])
        .answers(&[Answer::json::<Stats>(200, "")]),
    Route::post("/v1/verify", Access::OPERATE, "Check all runs of the tenant against their logs", handler!(check))
        .about("Reads every log. On a large store use `flowline verify`, which has no time limit.")
        .answers(&[Answer::json::<VerifyReport>(200, "What doesn't match; empty if all is well.")]),
];

async fn count(caller: Caller, params: Params) -> Result<Json<Stats>, Problem> {
    let store = caller.engine.store();
    let now = store.now().await?;
    let since = params.moment("since", now).unwrap_or_else(|| now.before(SINCE));
    let bucket = params.duration("bucket").unwrap_or(Duration::from_secs(3600));
    if bucket < Duration::from_millis(1) {
        return Err(Problem::parameter("bucket", NO_WIDTH));
    }
    let flow = params.text("flow");
    match flow {
        Some(flow) => caller.check_flow(flow)?,
        None if caller.principal.flows.is_some() => {
            return Err(Problem::parameter("flow", "this token is bound to flows, so name one of them"));
        }
        None => {}
    }
    let steps = if params.flag("steps") { Depth::Steps } else { Depth::Runs };
    let question = Question {
        tenant: caller.engine.tenant().clone(),
        flow: flow.map(str::to_owned),
        since: Some(since),
        bucket,
        steps,
    };
    Ok(Json(stats(store, &question).await?))
}

async fn check(caller: Caller, _: Params) -> Result<Json<VerifyReport>, Problem> {
    if caller.principal.flows.is_some() {
        let detail = "this token is bound to flows, and this covers all of them; check a single run with GET /v1/runs/{run}/verify";
        return Err(Problem::new(&codes::FORBIDDEN, detail));
    }
    Ok(Json(verify(caller.engine.store(), caller.engine.plans(), Some(caller.engine.tenant())).await?))
}
