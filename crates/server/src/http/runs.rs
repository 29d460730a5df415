//! Starting one or many runs, and listing them.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flowline::core::{Json as Raw, limits};
use flowline::internal::check_start;
use flowline::store::query::{MAX_PAGE, PAGE, WantTotal};
use flowline::store::{RunPage, RunQuery, Total};
use flowline::{Engine, StartRequest, trace};
use flowline_api::runs::{BATCH, BatchOutcome, BatchStart, BatchStarted, RunList, RunStart, Started};

use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, BodyLimit, Query, QueryKind, Route, RouteAccess, handler};
use super::visible::{ApiCaller, Visible};
use crate::filter::{self, RunFilter};
use crate::view::{run_list, start_request, started};

/// The header that names an idempotency key.
const KEY_HEADER: &str = "idempotency-key";
pub const STATUSES: &[&str] = &["running", "waiting", "paused", "completed", "failed", "cancelled"];

pub const ROUTES: &[Route] = &[
    Route::post("/v1/flows/{flow}/runs", RouteAccess::START, "Start a run", handler!(start))
        .about("The run is stored durably before the response. With an idempotency key (in the body or as `Idempotency-Key`) the request is safe to repeat: the same key and input return the same run. With `wait`, the response is sent when the run has ended, or when the time is up, with the run's current status. A `traceparent` header (W3C Trace Context) makes the run part of that trace.")
        .query(&[WAIT])
        .body(Body::of::<RunStart>(BodyLimit::Payloads(2)).optional())
        .answers(&[
            Answer::json::<Started>(
                200,
                "A run with this key already exists, or the run ended within `wait`.",
            ),
            Answer::json::<Started>(201, "Started."),
        ])
        .problems(&[&codes::NO_SUCH_FLOW, &codes::SCHEMA, &codes::KEY_CONFLICT, &codes::TOO_LARGE, &codes::QUOTA_EXCEEDED]),
    Route::post("/v1/runs/batch", RouteAccess::START, "Start many runs", handler!(batch))
        .about("Each run is independent: if one is refused, the others still start. Results are in the order of the request.")
        .body(Body::of::<BatchStart>(BodyLimit::Batch))
        .answers(&[Answer::json::<BatchStarted>(200, "The outcome for each run.")])
        .problems(&[&codes::INVALID]),
    Route::get("/v1/runs", RouteAccess::READ, "List runs, newest first", handler!(list))
        .about("Lists the runs that match all filters. `total` is exact if you filter only by `flow`, `status` and `state`; otherwise it's exact up to 10,000, and above that you get `totalAtLeast` instead.")
        .query(FILTERS)
        .answers(&[Answer::json::<RunList>(200, "A page of runs.")]),
    Route::get("/v1/flows/{flow}/runs", RouteAccess::READ, "List runs of a flow, newest first", handler!(list_flow))
        .about("Like `GET /v1/runs?flow=…`, with the same filters, but returns 404 for a flow that was never registered.")
        .query(FILTERS.split_at(1).1)
        .answers(&[Answer::json::<RunList>(200, "A page of runs.")])
        .problems(&[&codes::NO_SUCH_FLOW]),
];

/// Filters of a list; the flow has to come first.
const FILTERS: &[Query] = &[
    Query::new("flow", QueryKind::Text, "Only runs of this flow."),
    Query::new("status", QueryKind::OneOf(STATUSES), "Only runs with this status."),
    Query::new("state", QueryKind::Text, "Only runs of a machine in this state; requires `flow`."),
    Query::new("label", QueryKind::Label, "Only runs with this label: NAME=VALUE."),
    Query::new("since", QueryKind::Moment, "Only runs created at or after this: a timestamp or an age."),
    Query::new("until", QueryKind::Moment, "Only runs created before this: a timestamp or an age."),
    Query::CURSOR,
    LIMIT,
    Query::new("total", QueryKind::Flag, "`false` leaves out the total, which some filters make expensive."),
];

pub const WAIT: Query =
    Query::new("wait", QueryKind::Duration, "How long to wait for the run to end, up to 60s.");
pub const LIMIT: Query =
    Query::new("limit", QueryKind::Number(1, MAX_PAGE as u64), "Items per page; 50 by default.");

/// Makes the run part of the request's trace, unless its labels name another. An invalid header is ignored, as the standard
/// requires.
fn join_trace(start: &mut RunStart, headers: &HeaderMap) {
    let given = headers.get(trace::LABEL).and_then(|value| value.to_str().ok());
    if let Some(given) = given.filter(|given| trace::Trace::parse(given).is_some())
        && start.labels.len() < limits::LABELS
    {
        start.labels.entry(trace::LABEL.to_owned()).or_insert_with(|| given.to_owned());
    }
}

async fn request(start: RunStart, flow: &Visible<&str>) -> Result<StartRequest, ApiError> {
    let engine = flow.engine();
    let input = start.input.clone().unwrap_or_else(Raw::null);
    let request = match &start.version {
        None => engine.run_named(flow, input).await?,
        Some(hash) => {
            let (store, tenant) = (engine.store(), engine.tenant());
            let found = store.definition(tenant, hash).await?.filter(|found| &*found.flow == **flow);
            let missing =
                || ApiError::new(&codes::NO_SUCH_FLOW, format!("flow {:?} has no version {hash}", **flow));
            let found = found.ok_or_else(missing)?;
            engine.run_plan(engine.plans().get(store, tenant, &found.hash).await?, input)
        }
    };
    Ok(start_request(request, start))
}

async fn start(
    caller: ApiCaller,
    params: Params,
    headers: HeaderMap,
    JsonBody(mut start): JsonBody<RunStart>,
) -> Result<Response, ApiError> {
    if let Some(key) = key_header(&headers)? {
        if start.idempotency_key.as_deref().is_some_and(|other| other != key) {
            return Err(ApiError::new(&codes::BAD_BODY, "the Idempotency-Key header has another key")
                .at("/idempotencyKey"));
        }
        start.idempotency_key = Some(key.to_owned());
    }
    if start.flow.as_deref().is_some_and(|flow| flow != params.path("flow")) {
        return Err(ApiError::new(&codes::BAD_BODY, "the path names another flow").at("/flow"));
    }
    check_key(start.idempotency_key.as_deref()).map_err(|problem| problem.at("/idempotencyKey"))?;
    join_trace(&mut start, &headers);
    let flow = caller.flow(params.path("flow"))?;
    let handle = request(start, &flow).await?.await?;
    let ended = match params.duration("wait") {
        Some(wait) => tokio::time::timeout(wait, handle.wait()).await.ok().transpose()?,
        None => None,
    };
    let mut answer = started(flow.engine(), &handle).await?;
    let mut status = if handle.existed() { StatusCode::OK } else { StatusCode::CREATED };
    if let Some(outcome) = ended {
        status = StatusCode::OK;
        (answer.status, answer.result, answer.error) = (outcome.status, outcome.result, outcome.error);
    }
    let location = format!("/v1/runs/{}", handle.id());
    Ok((status, [(header::LOCATION, location)], Json(answer)).into_response())
}

/// The idempotency key in the headers.
pub fn key_header(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let key = headers.get(KEY_HEADER).map(|key| key.to_str());
    key.transpose().map_err(|_| ApiError::parameter(KEY_HEADER, "an idempotency key must be plain text"))
}

/// Refuses what no flow could accept before it looks for the flow.
fn check_key(key: Option<&str>) -> Result<(), ApiError> {
    let checked = check_start(key, &BTreeMap::new());
    checked.map_err(|error| ApiError::new(&codes::INVALID, error.to_string()))
}

async fn batch(
    caller: ApiCaller,
    _: Params,
    headers: HeaderMap,
    JsonBody(mut batch): JsonBody<BatchStart>,
) -> Result<Json<BatchStarted>, ApiError> {
    if key_header(&headers)?.is_some() {
        let detail = "each run of a batch has its own key: set `idempotencyKey` in `runs`";
        return Err(ApiError::parameter(KEY_HEADER, detail));
    }
    if batch.runs.len() > BATCH {
        let detail = format!("a batch can start up to {BATCH} runs; this one has {}", batch.runs.len());
        return Err(ApiError::new(&codes::BAD_BODY, detail).at("/runs"));
    }
    if let Some(at) = batch.runs.iter().position(|start| start.flow.is_none()) {
        return Err(ApiError::new(&codes::BAD_BODY, "missing field `flow`").at(&format!("/runs/{at}/flow")));
    }
    for (at, start) in batch.runs.iter().enumerate() {
        check_key(start.idempotency_key.as_deref())
            .map_err(|problem| problem.at(&format!("/runs/{at}/idempotencyKey")))?;
    }
    batch.runs.iter_mut().for_each(|start| join_trace(start, &headers));
    // All are on their way together, so that they share commits.
    let starts = batch.runs.into_iter().map(|item| start_one(&caller, item));
    let answers = futures_util::future::join_all(starts).await;
    let became = |answer: Result<Started, ApiError>| match answer {
        Ok(started) => BatchOutcome::Started(started),
        Err(problem) => BatchOutcome::Refused { error: problem.into_details() },
    };
    Ok(Json(BatchStarted { items: answers.into_iter().map(became).collect() }))
}

async fn start_one(caller: &ApiCaller, mut start: RunStart) -> Result<Started, ApiError> {
    let flow = start.flow.take().unwrap_or_default();
    let flow = caller.flow(&flow)?;
    let handle = request(start, &flow).await?.await?;
    Ok(started(flow.engine(), &handle).await?)
}

/// Reads the filters of a list.
async fn query(engine: &Engine, params: &Params) -> Result<RunQuery, ApiError> {
    let text = |name| params.text(name).map(str::to_owned);
    let filter = RunFilter {
        flow: text("flow"),
        status: text("status"),
        state: text("state"),
        label: text("label"),
        since: text("since"),
        until: text("until"),
    };
    let query = filter::query(&filter, engine.tenant().clone(), engine.store().now().await?);
    Ok(RunQuery {
        cursor: text("cursor"),
        limit: params.number("limit").map_or(PAGE, |limit| limit as usize),
        total: if params.text("total") == Some("false") { WantTotal::No } else { WantTotal::Yes },
        ..query.map_err(|error| ApiError::parameter(error.name, error.problem))?
    })
}

async fn list_flow(caller: ApiCaller, params: Params) -> Result<Json<RunList>, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    let (store, tenant) = (flow.engine().store(), flow.engine().tenant());
    let query = RunQuery { flow: Some(flow.to_string()), ..query(flow.engine(), &params).await? };
    let page = store.runs(query).await?;
    if page.items.is_empty() && !store.definitions(tenant).await?.iter().any(|known| &*known.flow == *flow) {
        return Err(ApiError::no_such_flow(&flow));
    }
    Ok(Json(run_list(page)))
}

async fn list(caller: ApiCaller, params: Params) -> Result<Json<RunList>, ApiError> {
    let runs = caller.runs_of(params.text("flow").map(str::to_owned));
    let runs = runs.map_err(|detail| ApiError::parameter("flow", detail))?;
    let query = query(runs.engine(), &params).await?;
    let page = match runs.flow() {
        Ok(flow) => runs.engine().store().runs(RunQuery { flow, ..query }).await?,
        // A list of what isn't there is empty.
        Err(_) => RunPage { items: Vec::new(), total: Some(Total::Exact(0)), next: None },
    };
    Ok(Json(run_list(page)))
}
