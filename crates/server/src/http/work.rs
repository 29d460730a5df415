//! Work for remote workers: claim, heartbeat, append, emit, complete, release. docs/worker-protocol.md is the guide to these
//! routes.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use flowline::remote::{self, AttemptEnding, Said, WorkRequest};
use flowline::{Applied, Engine, EngineError, Level, StateScope, StepError};
use flowline_api::ProblemDetails;
use flowline_api::work::{self, GETS, LEASES, LINES, OUTCOMES};

use super::App;
use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, BodyLimit, Route, RouteAccess, handler};
use super::visible::ApiCaller;

pub const ROUTES: &[Route] = &[
    Route::post("/v1/work/claim", RouteAccess::WORK, "Claim jobs", handler!(claim))
        .about("Returns at once if there are jobs, otherwise waits for the first. A job is leased for only a few seconds until a heartbeat acknowledges it or its outcome is reported.")
        .body(Body::small::<work::ClaimRequest>())
        .answers(&[Answer::json::<work::ClaimAnswer>(200, "The jobs; empty if there were none in time.")])
        .problems(&[&codes::INVALID]),
    Route::post("/v1/work/heartbeat", RouteAccess::WORK, "Extend leases", handler!(heartbeat))
        .about("Acknowledges new leases, extends all of them, and reports which are gone and why.")
        .body(Body::of::<work::HeartbeatRequest>(BodyLimit::Bytes(2 << 20)))
        .answers(&[Answer::json::<work::HeartbeatAnswer>(
            200,
            "The state of each lease, in the order of the request.",
        )])
        .problems(&[&codes::INVALID]),
    Route::post("/v1/work/complete", RouteAccess::WORK, "Report how attempts ended", handler!(complete))
        .about("Each outcome is committed before the response. Repeating a report changes nothing and returns `applied: false`, as long as the run is kept; another outcome for the same attempt is refused. With several outcomes the response is 200, and each result has its own status. If the only outcome is refused, the response itself has that status and describes the problem.")
        .body(Body::of::<work::CompleteRequest>(BodyLimit::Batch))
        .answers(&[Answer::json::<work::CompleteAnswer>(
            200,
            "The result for each, in the order of the request, and the next jobs.",
        )])
        .problems(&[&codes::INVALID, &codes::STALE_LEASE, &codes::OUTCOME_CONFLICT]),
    Route::post("/v1/work/append", RouteAccess::WORK, "Add lines to the log of an attempt", handler!(append))
        .about("Takes log lines and changes of key-value state. `fromLine` is the number of lines that the worker knows are in the log, so that repeated lines are skipped.")
        .body(Body::of::<work::AppendRequest>(BodyLimit::Payloads(4)))
        .answers(&[Answer::json::<work::AppendAnswer>(200, "The lines are in the log.")])
        .problems(&[&codes::INVALID, &codes::STALE_LEASE]),
    Route::post("/v1/work/emit", RouteAccess::WORK, "Emit an event during an attempt", handler!(emit))
        .about("The event stays emitted even if the attempt fails. Repeating the request changes nothing.")
        .body(Body::of::<work::EmitRequest>(BodyLimit::Payloads(2)))
        .answers(&[Answer::json::<work::EmitAnswer>(200, "Emitted.")])
        .problems(&[&codes::REFUSED, &codes::SCHEMA, &codes::STALE_LEASE]),
    Route::post("/v1/work/release", RouteAccess::WORK, "Release attempts", handler!(release))
        .about("The next attempt of each can start elsewhere; the released one counts neither as failed nor as lost. Leases that are gone are skipped.")
        .body(Body::of::<work::HeartbeatRequest>(BodyLimit::Bytes(2 << 20)))
        .answers(&[Answer::empty(204, "Released.")])
        .problems(&[&codes::INVALID]),
];

async fn claim(
    State(app): State<App>,
    caller: ApiCaller,
    _: Params,
    JsonBody(asked): JsonBody<work::ClaimRequest>,
) -> Result<Response, ApiError> {
    let request = request(&caller, asked)?;
    request.check()?;
    let remote = caller.work();
    app.workers.note(remote.engine(), &caller.principal.subject, &request.worker, &request.queues).await;
    let jobs = remote.claim(request).await?;
    Ok(Json(work::ClaimAnswer { jobs, times: times(remote.engine()) }).into_response())
}

/// What a worker may ask for.
fn request(caller: &ApiCaller, asked: work::ClaimRequest) -> Result<WorkRequest, ApiError> {
    caller.may_claim(&asked.queues)?;
    Ok(WorkRequest {
        worker: asked.worker,
        queues: asked.queues,
        limit: asked.limit as usize,
        wait: Duration::from_millis(asked.wait_ms),
        with_state: asked.with_state,
    })
}

async fn heartbeat(
    State(app): State<App>,
    caller: ApiCaller,
    _: Params,
    JsonBody(asked): JsonBody<work::HeartbeatRequest>,
) -> Result<Json<work::HeartbeatAnswer>, ApiError> {
    at_most("/leases", asked.leases.len(), LEASES)?;
    let remote = caller.work();
    let beats = remote.heartbeat(&asked.leases).await?;
    let held = asked.leases.iter().zip(&beats).find(|(_, beat)| **beat == remote::Beat::Held);
    if let Some(worker) = held.and_then(|(lease, _)| remote::worker_of(lease)) {
        app.workers.refresh(remote.engine(), &worker).await;
    }
    let leases = asked.leases.into_iter().zip(beats);
    let leases = leases.map(|(lease, beat)| work::LeaseState { lease, state: beat }).collect();
    Ok(Json(work::HeartbeatAnswer { leases, times: times(remote.engine()) }))
}

async fn complete(
    State(app): State<App>,
    caller: ApiCaller,
    _: Params,
    JsonBody(asked): JsonBody<work::CompleteRequest>,
) -> Result<Response, ApiError> {
    at_most("/outcomes", asked.outcomes.len(), OUTCOMES)?;
    let next = asked.claim.map(|claim| request(&caller, claim)).transpose()?;
    next.as_ref().map_or(Ok(()), WorkRequest::check)?;
    let endings =
        asked.outcomes.into_iter().enumerate().map(ending).collect::<Result<Vec<AttemptEnding>, _>>()?;
    let remote = caller.work();
    let (mut reports, jobs) = match next {
        // What was reported is reported: that there is no work to be had is said by the next claim.
        Some(next) => {
            app.workers.note(remote.engine(), &caller.principal.subject, &next.worker, &next.queues).await;
            remote.complete_and_claim(endings, next).await
        }
        None => (remote.complete(endings).await, Vec::new()),
    };
    if let [Err(_)] = reports[..]
        && let Some(Err(error)) = reports.pop()
    {
        return Err(error.into());
    }
    let results = reports.into_iter().map(reported).collect();
    Ok(Json(work::CompleteAnswer { results, jobs, times: times(remote.engine()) }).into_response())
}

fn ending((at, outcome): (usize, work::AttemptOutcome)) -> Result<AttemptEnding, ApiError> {
    let work::AttemptOutcome { lease, complete, fail } = outcome;
    match (complete, fail) {
        (Some(work::Completed { result, emits }), None) => {
            let emits = emits.into_iter().map(|emit| (emit.name, emit.payload)).collect();
            Ok(AttemptEnding { lease, outcome: Ok(result), emits })
        }
        (None, Some(failed)) => Ok(AttemptEnding { lease, outcome: Err(failure(failed)), emits: Vec::new() }),
        _ => Err(ApiError::new(&codes::BAD_BODY, "an outcome must have one of `complete` and `fail`")
            .at(&format!("/outcomes/{at}"))),
    }
}

fn failure(failed: work::FailedAttempt) -> StepError {
    let work::FailedAttempt { error, code, stack, retry, after_ms } = failed;
    let mut failure = match (retry, after_ms) {
        (work::RetryAdvice::Never, _) => StepError::fatal(error),
        (work::RetryAdvice::Policy, Some(ms)) => {
            StepError::new(error).retry_after(Duration::from_millis(ms.max(1)))
        }
        (work::RetryAdvice::Policy, None) => StepError::new(error),
    };
    if let Some(code) = code {
        failure = failure.code(&code);
    }
    match stack {
        Some(stack) => failure.stack(stack),
        None => failure,
    }
}

fn reported(report: Result<Applied, EngineError>) -> work::ReportResult {
    match report {
        Ok(Applied { changed, status }) => work::ReportResult {
            status: 200,
            applied: Some(changed),
            run_status: Some(status),
            code: None,
            detail: None,
        },
        Err(error) => {
            let ProblemDetails { status, code, detail, .. } = ApiError::from(error).into_details();
            work::ReportResult {
                status,
                applied: None,
                run_status: None,
                code: Some(code),
                detail: Some(detail),
            }
        }
    }
}

async fn append(
    caller: ApiCaller,
    _: Params,
    JsonBody(asked): JsonBody<work::AppendRequest>,
) -> Result<Json<work::AppendAnswer>, ApiError> {
    at_most("/lines", asked.lines.len(), LINES)?;
    let lines = asked.lines.into_iter().enumerate().map(said).collect::<Result<Vec<Said>, _>>()?;
    let gets = lines.iter().filter_map(|line| match line {
        Said::Get { scope, key } => Some((scope.as_str().to_owned(), key.clone())),
        _ => None,
    });
    let gets: Vec<(String, String)> = gets.collect();
    at_most("/lines", gets.len(), GETS)?;
    let appended = caller.work().append(&asked.lease, asked.from_line, lines).await?;
    let found = gets.into_iter().zip(appended.found);
    let found = found.map(|((scope, get), value)| work::FoundValue { get, scope, value }).collect();
    Ok(Json(work::AppendAnswer { lines: appended.lines, found }))
}

fn said((at, line): (usize, work::AttemptLine)) -> Result<Said, ApiError> {
    let wrong = |place: &str, detail: String| {
        Err(ApiError::new(&codes::BAD_BODY, detail).at(&format!("/lines/{at}{place}")))
    };
    match (line.log, line.state) {
        (Some(mut fields), None) => {
            let level = match fields.remove("level") {
                None => Level::Info,
                Some(level) => match level.as_str().and_then(Level::parse) {
                    Some(level) => level,
                    None => {
                        return wrong("/log/level", format!("{level} isn't one of debug, info, warn, error"));
                    }
                },
            };
            let message = match fields.remove("message") {
                Some(serde_json::Value::String(message)) => message,
                Some(other) => other.to_string(),
                None => String::new(),
            };
            Ok(Said::Log { level, message, fields })
        }
        (None, Some(work::StateLine { set, delete, get, value, scope, ttl_ms })) => {
            let scope = StateScope::from(scope.as_deref().unwrap_or("run"));
            if let Err(error) = scope.check() {
                return wrong("/state/scope", error.to_string());
            }
            if ttl_ms == Some(0) {
                return wrong("/state/ttlMs", "a TTL must be above zero".to_owned());
            }
            match (set, delete, get, value) {
                (Some(key), None, None, value) => {
                    let value = value.unwrap_or_else(flowline::core::Json::null);
                    Ok(Said::Set { scope, key, value, ttl: ttl_ms.map(Duration::from_millis) })
                }
                (None, Some(key), None, None) if ttl_ms.is_none() => Ok(Said::Delete { scope, key }),
                (None, None, Some(key), None) if ttl_ms.is_none() => Ok(Said::Get { scope, key }),
                _ => wrong(
                    "/state",
                    "`state` must have one of `set` (with `value`, and `ttlMs` if it should expire), `delete` and `get`"
                        .to_owned(),
                ),
            }
        }
        _ => wrong("", "a line must have one of `log` and `state`".to_owned()),
    }
}

async fn emit(
    caller: ApiCaller,
    _: Params,
    JsonBody(asked): JsonBody<work::EmitRequest>,
) -> Result<Json<work::EmitAnswer>, ApiError> {
    let Applied { changed, status } = caller.work().emit(&asked.lease, &asked.name, asked.payload).await?;
    Ok(Json(work::EmitAnswer { applied: changed, run_status: status }))
}

async fn release(
    caller: ApiCaller,
    _: Params,
    JsonBody(asked): JsonBody<work::ReleaseRequest>,
) -> Result<StatusCode, ApiError> {
    at_most("/leases", asked.leases.len(), LEASES)?;
    caller.work().release(&asked.leases).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn times(engine: &Engine) -> work::Times {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let lease = engine.config().lease;
    work::Times {
        lease_ms: ms(lease),
        heartbeat_ms: ms(lease / 3),
        acknowledge_ms: ms(remote::ACKNOWLEDGE.min(lease)),
    }
}

fn at_most(place: &str, count: usize, most: usize) -> Result<(), ApiError> {
    if count <= most {
        return Ok(());
    }
    Err(ApiError::new(&codes::BAD_BODY, format!("{count} is too many; the limit is {most}")).at(place))
}
