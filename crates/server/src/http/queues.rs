//! Queues: their depths and dead letters; pausing, resuming and redriving them.
//!
//! A dead letter is a run that failed at a step of the queue and wasn't redriven. The run that redrives it has a key derived
//! from it, so it's redriven once.

use axum::Json;
use flowline::core::{RunId, RunKey, Status};
use flowline::store::query::{MAX_PAGE, PAGE, WantTotal};
use flowline::store::row::Pause;
use flowline::store::{QueueRow, RunQuery, RunRow};
use flowline::{Engine, RetryFrom};
use flowline_api::queues::{DeadLetters, QueueChanged, QueueList, Redrive, Redriven, RedrivenRun};

use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, Handling, Query, Route, RouteAccess, handler};
use super::runs::LIMIT;
use super::visible::{ApiCaller, Visible};

/// Failed runs that one request looks through for dead letters.
const LOOKED_AT: usize = 2_000;

pub const ROUTES: &[Route] = &[
    Route::get("/v1/queues", RouteAccess::READ, "List the queues", handler!(list))
        .about("Queues that have jobs or are paused, by name, with a row per kind of step.")
        .answers(&[Answer::json::<QueueList>(200, "")]),
    Route::get("/v1/queues/{queue}", RouteAccess::READ, "Show a queue", handler!(show))
        .answers(&[Answer::json::<QueueList>(200, "One row per kind of step in the queue.")])
        .problems(&[&codes::NO_SUCH_QUEUE]),
    change("/v1/queues/{queue}/pause", "Pause a queue", handler!(pause))
        .about("No more of its jobs are claimed; running ones finish."),
    change("/v1/queues/{queue}/resume", "Resume a queue", handler!(resume)),
    Route::get("/v1/queues/{queue}/dead", RouteAccess::READ, "List the dead letters of a queue", handler!(dead))
        .about("Runs that failed at a step of this queue and haven't been redriven, newest first. A page can have fewer items than `limit`, or none, and still have a `next`, because failed runs of other queues are skipped.")
        .query(&[LIMIT, Query::CURSOR])
        .answers(&[Answer::json::<DeadLetters>(200, "")])
        .problems(&[&codes::NO_SUCH_QUEUE]),
    Route::post("/v1/queues/{queue}/redrive", RouteAccess::OPERATE, "Redrive the dead letters of a queue", handler!(redrive))
        .about("Retries each as a new run that keeps its completed steps. Dead letters that were redriven are gone from the list, so you can repeat the request until `next` is null.")
        .body(Body::small::<Redrive>().optional())
        .answers(&[Answer::json::<Redriven>(200, "")])
        .problems(&[&codes::NO_SUCH_QUEUE]),
];

const fn change(path: &'static str, summary: &'static str, handler: Handling) -> Route {
    Route::post(path, RouteAccess::OPERATE, summary, handler)
        .answers(CHANGED)
        .problems(&[&codes::NO_SUCH_QUEUE])
}

const CHANGED: &[Answer] = &[Answer::json::<QueueChanged>(200, "")];

async fn rows(caller: &ApiCaller) -> Result<Vec<QueueRow>, ApiError> {
    let rows = caller.rows(async |engine| engine.store().queues(engine.tenant()).await).await?;
    Ok(rows.into_inner())
}

async fn list(caller: ApiCaller, _: Params) -> Result<Json<QueueList>, ApiError> {
    Ok(Json(QueueList { items: rows(&caller).await? }))
}

async fn show(caller: ApiCaller, params: Params) -> Result<Json<QueueList>, ApiError> {
    let queue = caller.queue(params.path("queue"))?;
    let mut rows = rows(&caller).await?;
    rows.retain(|row| &*row.queue == *queue);
    if rows.is_empty() {
        return Err(ApiError::new(
            &codes::NO_SUCH_QUEUE,
            format!("queue {:?} has no jobs and isn't paused", *queue),
        ));
    }
    Ok(Json(QueueList { items: rows }))
}

async fn pause(caller: ApiCaller, params: Params) -> Result<Json<QueueChanged>, ApiError> {
    set(&caller, &params, Pause::Paused).await
}

async fn resume(caller: ApiCaller, params: Params) -> Result<Json<QueueChanged>, ApiError> {
    set(&caller, &params, Pause::Open).await
}

async fn set(caller: &ApiCaller, params: &Params, pause: Pause) -> Result<Json<QueueChanged>, ApiError> {
    let queue = caller.queue(params.path("queue"))?;
    queue.engine().store().pause_queue(queue.engine().tenant(), &queue, pause).await?;
    Ok(Json(QueueChanged { queue: queue.to_string(), paused: pause == Pause::Paused }))
}

async fn dead(caller: ApiCaller, params: Params) -> Result<Json<DeadLetters>, ApiError> {
    let queue = caller.queue(params.path("queue"))?;
    let limit = params.number("limit").map_or(PAGE, |limit| limit as usize);
    Ok(Json(find_dead(&caller, &queue, params.text("cursor"), limit).await?))
}

async fn find_dead(
    caller: &ApiCaller,
    queue: &Visible<&str>,
    cursor: Option<&str>,
    limit: usize,
) -> Result<DeadLetters, ApiError> {
    let (store, tenant) = (queue.engine().store(), queue.engine().tenant());
    let mut query = RunQuery {
        status: Some(Status::Failed),
        cursor: cursor.map(str::to_owned),
        // A page is taken whole, or the cursor would pass over what was not.
        limit,
        total: WantTotal::No,
        ..RunQuery::of(tenant.clone())
    };
    let mut items = Vec::new();
    let mut looked_at = 0;
    loop {
        let page = store.runs(query.clone()).await?;
        looked_at += page.items.len();
        let again: Vec<RunKey> = page.items.iter().map(driven_again).collect();
        let driven = store.load(&again).await?;
        let undriven = page.items.into_iter().zip(driven).filter(|(row, driven)| {
            let driven = driven.as_ref().and_then(|driven| driven.row.retry_of.as_ref());
            driven != Some(&row.run_id)
        });
        for row in caller.keep(undriven.map(|(row, _)| row).collect()) {
            if died_in(&row, queue).await? {
                items.push(row);
            }
        }
        query.cursor = page.next;
        // What is left of the page to fill, so that the next one begins where this one ends.
        query.limit = limit.saturating_sub(items.len()).max(1);
        if query.cursor.is_none() || items.len() >= limit || looked_at >= LOOKED_AT {
            return Ok(DeadLetters { items, has_more: query.cursor.is_some(), next: query.cursor });
        }
    }
}

/// The run that redrives this one.
fn driven_again(row: &RunRow) -> RunKey {
    RunKey::new(row.tenant.clone(), RunId::from_key(&row.tenant, &row.flow_name, &redrive_key(row)))
}

fn redrive_key(row: &RunRow) -> String {
    format!("redrive:{}", row.run_id)
}

async fn died_in(row: &RunRow, queue: &Visible<&str>) -> Result<bool, ApiError> {
    let Some(step) = row.failure.as_ref().and_then(|failure| failure.step.as_ref()) else { return Ok(false) };
    let engine = queue.engine();
    let plan = engine.plans().get(engine.store(), &row.tenant, &row.definition).await?;
    Ok(plan.steps.iter().any(|known| known.name == *step && &*known.queue == **queue))
}

async fn redrive(
    caller: ApiCaller,
    params: Params,
    JsonBody(given): JsonBody<Redrive>,
) -> Result<Json<Redriven>, ApiError> {
    let queue = caller.queue(params.path("queue"))?;
    let limit = given.limit.unwrap_or(PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(
            ApiError::new(&codes::BAD_BODY, format!("the limit must be 1 to {MAX_PAGE}")).at("/limit")
        );
    }
    let dead = find_dead(&caller, &queue, given.cursor.as_deref(), limit).await?;
    let mut items = Vec::new();
    for row in &dead.items {
        let (run_id, flow_name) = (row.run_id.clone(), row.flow_name.clone());
        let mut item = RedrivenRun { run_id, flow_name, new_run_id: None, error: None };
        if !given.dry_run {
            match drive_again(queue.engine(), row).await {
                Ok(run) => item.new_run_id = Some(run),
                Err(problem) => item.error = Some(problem.into_details()),
            }
        }
        items.push(item);
    }
    let DeadLetters { has_more, next, .. } = dead;
    Ok(Json(Redriven { items, dry_run: given.dry_run, has_more, next }))
}

async fn drive_again(engine: &Engine, row: &RunRow) -> Result<RunId, ApiError> {
    let request = engine.again(&row.key(), RetryFrom::Failure).await?;
    Ok(request.own_key(redrive_key(row)).await?.id().clone())
}
