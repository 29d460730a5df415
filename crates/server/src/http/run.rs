//! One run: look at it, steer it.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use flowline::core::decide::Finish;
use flowline::core::event::EventType;
use flowline::core::{DecideInput, Json as Raw, Status};
use flowline::explain::explain;
use flowline::store::query::{MAX_PAGE, PAGE};
use flowline::store::{EventQuery, RunRow, Total};
use flowline::verify::verify_run;
use flowline::{Applied, RetryFrom, RunOutcome, StateQuery, StateScope};
use flowline_api::explain::{Explanation, VerifyReport};
use flowline_api::runs::{
    CancelRun, CompleteRun, EventList, FailRun, Retried, RetryRun, RunChanged, RunResult, RunView,
};
use flowline_api::state::RunValues;

use super::codes;
use super::etag::{UNCHANGED, tagged};
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, BodyLimit, Handling, Query, QueryKind, Route, RouteAccess, handler};
use super::runs::{LIMIT, WAIT, key_header};
use super::visible::{ApiCaller, Visible};
use crate::view::{read_run, totals};

const APPLIED: &[Answer] =
    &[Answer::json::<RunChanged>(200, "Done; `changed` is false if there was nothing to change.")];

/// A route that changes a run.
const fn act(path: &'static str, summary: &'static str, handler: Handling) -> Route {
    Route::post(path, RouteAccess::OPERATE, summary, handler).answers(APPLIED).problems(&[
        &codes::NO_SUCH_RUN,
        &codes::RUN_ENDED,
        &codes::REFUSED,
    ])
}

const fn look(path: &'static str, summary: &'static str, handler: Handling) -> Route {
    Route::get(path, RouteAccess::READ, summary, handler).problems(&[&codes::NO_SUCH_RUN])
}

pub const ROUTES: &[Route] = &[
    look("/v1/runs/{run}", "Show a run", handler!(show))
        .answers(&[Answer::json::<RunView>(200, "The run with its steps and jobs."), UNCHANGED]),
    Route::delete("/v1/runs/{run}", RouteAccess::OPERATE, "Delete a run", handler!(delete))
        .about("Also deletes its events, state and receipts, even if retention would keep them, and frees its idempotency key. Only a run that has ended can be deleted.")
        .answers(&[Answer::empty(204, "Deleted.")])
        .problems(&[&codes::NO_SUCH_RUN, &codes::RUN_NOT_ENDED]),
    look("/v1/runs/{run}/events", "Read the log of a run", handler!(events))
        .query(&[
            Query::new("after", QueryKind::Number(0, u64::MAX), "Only events with a higher `seq`."),
            Query::new("type", QueryKind::EventTypes, "Only these types."),
            Query::new("step", QueryKind::Text, "Only events of this step."),
            Query::new("attempt", QueryKind::Number(0, u32::MAX as u64), "Only events of this attempt."),
            LIMIT,
        ])
        .answers(&[Answer::json::<EventList>(200, "Events in order; empty if retention has removed the log.")]),
    look("/v1/runs/{run}/result", "Get the outcome of a run", handler!(result))
        .query(&[WAIT])
        .answers(&[
            Answer::json::<RunResult>(200, "The run has ended."),
            Answer::json::<RunResult>(202, "The run hasn't ended yet."),
        ]),
    look("/v1/runs/{run}/state", "Read the key-value state of a run", handler!(state))
        .query(&[Query::new("scope", QueryKind::Text, "`run`, `flow`, `tenant` or any other name; `run` by default.")])
        .answers(&[Answer::json::<RunValues>(
            200,
            "The first 1,000 keys with their values; GET /v1/state/{scope} lists all, page by page.",
        )]),
    look("/v1/runs/{run}/verify", "Check a run against its log", handler!(verify))
        .answers(&[Answer::json::<VerifyReport>(200, "What doesn't match; empty if all is well.")]),
    look("/v1/runs/{run}/explain", "Explain why a run isn't progressing", handler!(explanation))
        .answers(&[Answer::json::<Explanation>(200, "What each step is waiting for.")]),
    act("/v1/runs/{run}/cancel", "Cancel a run", handler!(cancel))
        .about("Running steps are told to stop.")
        .body(Body::small::<CancelRun>().optional()),
    act("/v1/runs/{run}/pause", "Pause a run", handler!(pause))
        .about("Running steps finish; no more start."),
    act("/v1/runs/{run}/resume", "Resume a paused run", handler!(resume)),
    act("/v1/runs/{run}/complete", "End a run as completed", handler!(complete))
        .body(Body::of::<CompleteRun>(BodyLimit::Payloads(2)).optional()),
    act("/v1/runs/{run}/fail", "End a run as failed", handler!(fail))
        .body(Body::small::<FailRun>()),
    Route::post("/v1/runs/{run}/retry", RouteAccess::OPERATE, "Retry an ended run as a new run", handler!(retry))
        .about("The new run of a flow keeps the completed steps and runs the rest; with `from`, it also repeats that step and every step after it. The new run of a machine starts where the old one was before the event that failed, with its context, receipts and timers, and handles that event again. With `fromStart`, either starts over with the same input. With an `Idempotency-Key`, repeating the request returns the same new run.")
        .body(Body::small::<RetryRun>().optional())
        .answers(&[
            Answer::json::<Retried>(200, "A run with this key already exists."),
            Answer::json::<Retried>(201, "The new run."),
        ])
        .problems(&[&codes::NO_SUCH_RUN, &codes::NO_SUCH_STEP, &codes::RUN_NOT_ENDED, &codes::KEY_CONFLICT, &codes::QUOTA_EXCEEDED]),
];

async fn show(caller: ApiCaller, params: Params, headers: HeaderMap) -> Result<Response, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let view = read_run(run.engine().store(), run.engine().plans(), &run.key()).await?;
    tagged(&headers, &view)
}

async fn delete(caller: ApiCaller, params: Params) -> Result<StatusCode, ApiError> {
    let run = caller.run(params.path("run")).await?;
    run.engine().delete(&run.key()).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn events(caller: ApiCaller, params: Params) -> Result<Json<EventList>, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let query = EventQuery {
        after: params.number("after").unwrap_or(0),
        kinds: params.list("type").filter_map(EventType::parse).collect(),
        step: params.text("step").map(str::to_owned),
        attempt: params.number("attempt").map(|attempt| attempt as u32),
        limit: params.number("limit").map_or(PAGE, |limit| limit as usize),
    };
    let store = run.engine().store();
    let page = store.events(&run.key(), query.clone()).await?;
    let total = match query.takes_all() {
        true => Total::Exact(run.events),
        false if query.after == 0 && !page.more => Total::Exact(page.events.len() as u64),
        false => store.count_events(&run.key(), query).await?,
    };
    let (total, total_at_least) = totals(Some(total));
    Ok(Json(EventList {
        next: page.events.last().filter(|_| page.more).map(|event| event.seq),
        items: page.events,
        has_more: page.more,
        total,
        total_at_least,
        events_trimmed: run.events_trimmed,
    }))
}

async fn result(caller: ApiCaller, params: Params) -> Result<Response, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let wait = params.duration("wait").unwrap_or(Duration::ZERO);
    let ended = match run.status.is_terminal() {
        true => Some(run.engine().outcome(&run.key(), &run).await?),
        false if wait.is_zero() => None,
        false => tokio::time::timeout(wait, run.engine().wait(&run.key())).await.ok().transpose()?,
    };
    Ok(match ended {
        Some(RunOutcome { status, result, error, trimmed: events_trimmed }) => {
            Json(RunResult { run_id: run.run_id.clone(), status, result, error, events_trimmed })
                .into_response()
        }
        None => {
            let run = caller.run(params.path("run")).await?;
            let RunRow { run_id, status, events_trimmed, .. } = run.into_inner();
            let answer = RunResult { run_id, status, result: None, error: None, events_trimmed };
            (StatusCode::ACCEPTED, Json(answer)).into_response()
        }
    })
}

async fn state(caller: ApiCaller, params: Params) -> Result<Json<RunValues>, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let scope = StateScope::from(params.text("scope").unwrap_or("run"));
    scope.check().map_err(|error| ApiError::parameter("scope", error.to_string()))?;
    let space = caller.state_of(&run, &scope)?;
    let page = space.engine().store().states(&space, StateQuery::first(MAX_PAGE)).await?;
    let values = page.values.into_iter().map(|found| (found.key, found.value)).collect();
    Ok(Json(RunValues { scope: scope.as_str().to_owned(), values, has_more: page.more }))
}

async fn explanation(caller: ApiCaller, params: Params) -> Result<Json<Explanation>, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let mut explanation = explain(run.engine().store(), run.engine().plans(), &run.key()).await?;
    run.engine().note_unserved(&mut explanation);
    Ok(Json(explanation))
}

async fn verify(caller: ApiCaller, params: Params) -> Result<Json<VerifyReport>, ApiError> {
    let run = caller.run(params.path("run")).await?;
    Ok(Json(verify_run(run.engine().store(), run.engine().plans(), &run.key()).await?))
}

/// Applies an input to a run that the caller may see.
async fn apply(
    caller: &ApiCaller,
    params: &Params,
    input: DecideInput,
) -> Result<Json<RunChanged>, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let Applied { changed, status } = run.engine().input(&run.key(), input).await?;
    Ok(Json(RunChanged { run_id: run.into_inner().run_id, changed, status }))
}

async fn cancel(
    caller: ApiCaller,
    params: Params,
    JsonBody(cancel): JsonBody<CancelRun>,
) -> Result<Json<RunChanged>, ApiError> {
    apply(&caller, &params, DecideInput::Cancel { reason: cancel.reason }).await
}

async fn pause(caller: ApiCaller, params: Params) -> Result<Json<RunChanged>, ApiError> {
    apply(&caller, &params, DecideInput::Pause).await
}

async fn resume(caller: ApiCaller, params: Params) -> Result<Json<RunChanged>, ApiError> {
    apply(&caller, &params, DecideInput::Resume).await
}

async fn complete(
    caller: ApiCaller,
    params: Params,
    JsonBody(given): JsonBody<CompleteRun>,
) -> Result<Json<RunChanged>, ApiError> {
    let result = given.result.unwrap_or_else(Raw::null);
    apply(&caller, &params, DecideInput::Finish(Finish::Completed { result })).await
}

async fn fail(
    caller: ApiCaller,
    params: Params,
    JsonBody(given): JsonBody<FailRun>,
) -> Result<Json<RunChanged>, ApiError> {
    apply(&caller, &params, DecideInput::Finish(Finish::Failed { error: given.error })).await
}

fn place(retry: &RetryRun) -> Result<RetryFrom<'_>, ApiError> {
    match (retry.from.as_deref(), retry.from_start) {
        (Some(_), true) => {
            Err(ApiError::new(&codes::BAD_BODY, "send either `from` or `fromStart`, not both")
                .at("/fromStart"))
        }
        (from, false) => Ok(from.into()),
        (None, true) => Ok(RetryFrom::Start),
    }
}

async fn retry(
    caller: ApiCaller,
    params: Params,
    headers: HeaderMap,
    JsonBody(given): JsonBody<RetryRun>,
) -> Result<Response, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let place = place(&given)?;
    check_retry(&run, given.from.as_deref()).await?;
    let mut request = run.engine().again(&run.key(), place).await?;
    if let Some(key) = key_header(&headers)? {
        request = request.idempotency_key(key);
    }
    let handle = request.await?;
    let new = run.engine().row(handle.key()).await?;
    let location = format!("/v1/runs/{}", new.run_id);
    let status = if handle.existed() { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, [("location", location)], Json(Retried::of(&new, &run.run_id))).into_response())
}

async fn check_retry(run: &Visible<RunRow>, from: Option<&str>) -> Result<(), ApiError> {
    if !matches!(run.status, Status::Completed | Status::Failed | Status::Cancelled) {
        return Err(ApiError::new(
            &codes::RUN_NOT_ENDED,
            format!(
                "run {} is {}; only a run that has ended can be retried (cancel it first)",
                run.run_id, run.status
            ),
        ));
    }
    let Some(from) = from else { return Ok(()) };
    let plan = run.engine().plans().get(run.engine().store(), &run.tenant, &run.definition).await?;
    match plan.steps.iter().any(|step| &*step.name == from) {
        true => Ok(()),
        false => {
            Err(ApiError::new(&codes::NO_SUCH_STEP, format!("flow {:?} has no step {from:?}", run.flow_name))
                .at("/from"))
        }
    }
}
