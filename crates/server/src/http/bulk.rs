//! One action on many runs, chosen by filters.

use axum::Json;
use flowline::core::{DecideInput, Status};
use flowline::store::query::{MAX_PAGE, WantTotal};
use flowline::store::{RunQuery, RunRow, Total};
use flowline::{Engine, RetryFrom};
use flowline_api::runs::{BulkAction, BulkDone, BulkItem, BulkRequest};

use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, Route, RouteAccess, handler};
use super::visible::ApiCaller;
use crate::filter;
use crate::view::totals;

pub const ROUTES: &[Route] = &[Route::post("/v1/runs/bulk", RouteAccess::OPERATE, "Cancel, pause, resume, retry or delete many runs", handler!(bulk))
    .about("Applies the action to up to `limit` runs that match the filter, newest first. With `dryRun` it only lists them. If it fails for one run, that run gets an `error` and the others continue. If `next` isn't null, there are more: repeat the request with it as `cursor`. Retries use a key derived from the run, so repeating a request doesn't retry a run twice. A machine that an event or a timer took to a final state has no failed event to retry, and gets an `error` unless you set `fromStart`. A delete skips runs that haven't ended.")
    .body(Body::small::<BulkRequest>())
    .answers(&[Answer::json::<BulkDone>(200, "The outcome for each run.")])];

fn wrong(name: &str, what: &str) -> ApiError {
    ApiError::new(&codes::BAD_BODY, what).at(&format!("/filter/{name}"))
}

async fn bulk(
    caller: ApiCaller,
    _: Params,
    JsonBody(bulk): JsonBody<BulkRequest>,
) -> Result<Json<BulkDone>, ApiError> {
    let limit = bulk.limit.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(
            ApiError::new(&codes::BAD_BODY, format!("the limit must be 1 to {MAX_PAGE}")).at("/limit")
        );
    }
    let from = match (bulk.action, bulk.from_start) {
        (_, false) => RetryFrom::Failure,
        (BulkAction::Retry, true) => RetryFrom::Start,
        _ => {
            return Err(ApiError::new(&codes::BAD_BODY, "only a retry can have `fromStart`").at("/fromStart"));
        }
    };
    let runs = caller.runs_of(bulk.filter.flow.clone()).map_err(|detail| wrong("flow", &detail))?;
    let (flow, engine) = (runs.flow()?, runs.engine());
    let query = filter::query(&bulk.filter, engine.tenant().clone(), engine.store().now().await?);
    let query = query.map_err(|error| wrong(error.name, &error.problem))?;
    let query = RunQuery { flow, cursor: bulk.cursor, limit, total: WantTotal::Yes, ..query };
    let mut page = engine.store().runs(query.clone()).await?;
    if bulk.action == BulkAction::Delete {
        if query.status.is_some_and(|status| !status.is_terminal()) {
            let only = "only runs that have ended can be deleted: completed, failed or cancelled";
            return Err(ApiError::new(&codes::BAD_BODY, only).at("/filter/status"));
        }
        page.items.retain(|row| row.status.is_terminal());
        if query.status.is_none() {
            page.total = Some(ended(engine, &query).await?);
        }
    }
    let acts = page.items.iter().map(|row| {
        let reason = bulk.reason.clone();
        async move {
            let (run_id, flow_name) = (row.run_id.clone(), row.flow_name.clone());
            let item = BulkItem {
                run_id,
                flow_name,
                status: row.status,
                changed: None,
                new_run_id: None,
                error: None,
            };
            if bulk.dry_run {
                return item;
            }
            let done = act(engine, row, item.clone(), (bulk.action, from), reason).await;
            done.unwrap_or_else(|problem| BulkItem { error: Some(problem.into_details()), ..item })
        }
    });
    let items = futures_util::future::join_all(acts).await;
    let (total, total_at_least) = totals(page.total);
    let (has_more, next) = (page.next.is_some(), page.next);
    Ok(Json(BulkDone { items, dry_run: bulk.dry_run, has_more, next, total, total_at_least }))
}

/// How many runs that match a query have ended.
async fn ended(engine: &Engine, query: &RunQuery) -> Result<Total, ApiError> {
    let (mut count, mut exact) = (0, true);
    for status in Status::ALL.into_iter().filter(|status| status.is_terminal()) {
        let one = RunQuery { status: Some(status), cursor: None, limit: 1, ..query.clone() };
        match engine.store().runs(one).await?.total {
            Some(Total::Exact(n)) => count += n,
            Some(Total::AtLeast(n)) => (count, exact) = (count + n, false),
            None => {}
        }
    }
    Ok(if exact { Total::Exact(count) } else { Total::AtLeast(count) })
}

async fn act(
    engine: &Engine,
    row: &RunRow,
    item: BulkItem,
    (action, from): (BulkAction, RetryFrom<'_>),
    reason: Option<String>,
) -> Result<BulkItem, ApiError> {
    let input = match action {
        BulkAction::Delete => {
            engine.delete(&row.key()).await?;
            return Ok(BulkItem { changed: Some(true), ..item });
        }
        BulkAction::Cancel => DecideInput::Cancel { reason },
        BulkAction::Pause => DecideInput::Pause,
        BulkAction::Resume => DecideInput::Resume,
        BulkAction::Retry => {
            let request = engine.again(&row.key(), from).await?;
            let handle = request.own_key(format!("retry:{}", row.run_id)).await?;
            let (new_run_id, changed) = (Some(handle.id().clone()), Some(!handle.existed()));
            return Ok(BulkItem { new_run_id, changed, ..item });
        }
    };
    let applied = engine.input(&row.key(), input).await?;
    Ok(BulkItem { changed: Some(applied.changed), status: applied.status, ..item })
}
