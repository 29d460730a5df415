//! External events: sent to runs, and what happened to them.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use flowline::core::decide::Sender;
use flowline::core::{Json as Raw, RunId, limits};
use flowline::store::query::PAGE;
use flowline::store::{ReceiptQuery, ReceiptStatus, RunRow};
use flowline::{Engine, SendRequest};
use flowline_api::events::{EventSend, ReceiptList, ReceiptView, SentView, StartOrSend};
use tokio::time::Instant;

use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{
    Answer, Body, BodyLimit, Handling, Query, QueryKind, Route, RouteAccess, TokenScope, handler,
};
use super::runs::{LIMIT, key_header};
use super::visible::ApiCaller;
use crate::receipts::{read_receipt, sent_view};

pub const RECEIPT_STATUSES: &[&str] = &["pending", "processing", "completed", "failed"];

const WAIT: Query = Query::new(
    "wait",
    QueryKind::Duration,
    "How long to wait until a machine has handled the event, up to 60s.",
);

const SENT: &[Answer] = &[
    Answer::json::<SentView>(
        200,
        "The flow has accepted it, or the machine has handled it; `changed` is false if the run already had it.",
    ),
    Answer::json::<SentView>(202, "It's in the machine's inbox."),
];

const fn sending(
    path: &'static str,
    summary: &'static str,
    about: &'static str,
    body: Body,
    handler: Handling,
) -> Route {
    Route::post(path, RouteAccess::START, summary, handler)
        .about(about)
        .query(&[WAIT])
        .body(body)
        .answers(SENT)
        .problems(&[
            &codes::NO_SUCH_EVENT,
            &codes::RUN_ENDED,
            &codes::SCHEMA,
            &codes::TOO_LARGE,
            &codes::ROLE,
            &codes::EVENT_REJECTED,
            &codes::KEY_CONFLICT,
            &codes::QUOTA_EXCEEDED,
            &codes::INBOX_FULL,
            &codes::NO_SUCH_RUN,
            &codes::NO_SUCH_FLOW,
            &codes::FORBIDDEN,
        ])
}

const FILTERS: &[Query] = &[
    Query::new("status", QueryKind::OneOf(RECEIPT_STATUSES), "Only receipts with this status."),
    Query::new(
        "worker",
        QueryKind::Text,
        "Only receipts that this instance wrote; with `status=processing`, those whose actions it's running.",
    ),
    Query::CURSOR,
    LIMIT,
];

/// The routes that send events, which can be for somebody else.
pub const SENDS: [&str; 2] = ["/v1/runs/{run}/events", "/v1/flows/{flow}/events"];

pub const ROUTES: &[Route] = &[
    sending(
        "/v1/runs/{run}/events",
        "Send an event to a run",
        "The event is stored durably before the response. With an idempotency key (in the body or as `Idempotency-Key`, unique in the tenant) or an `eventId` (unique in the run), repeating the request does nothing. A machine handles events one at a time; with `wait`, the response is sent once it has handled this one. The sender is the token's subject with the token's roles, or, if the server doesn't require tokens, the user in the body. A token with scope `on_behalf` can name another user, with roles that the token has itself.",
        Body::of::<EventSend>(BodyLimit::Payloads(2)),
        handler!(send),
    ),
    sending(
        "/v1/flows/{flow}/events",
        "Send an event to the run with a business key, starting it if needed",
        "Like sending an event to a run. If no run of the flow could accept the event, none is started.",
        Body::of::<StartOrSend>(BodyLimit::Payloads(2)),
        handler!(start_or_send),
    ),
    Route::get("/v1/runs/{run}/receipts", RouteAccess::READ, "List the receipts of a machine's run", handler!(of_run))
        .about("What happened to the events that the run received, newest first.")
        .query(FILTERS)
        .answers(&[Answer::json::<ReceiptList>(200, "A page of receipts.")])
        .problems(&[&codes::NO_SUCH_RUN]),
    Route::get("/v1/runs/{run}/receipts/{event}", RouteAccess::READ, "Show the receipt of an event", handler!(one))
        .about("With `wait`, the response is sent once the machine has handled the event, or when the time is up, with the receipt so far.")
        .query(&[WAIT])
        .answers(&[Answer::json::<ReceiptView>(200, "The receipt.")])
        .problems(&[&codes::NO_SUCH_RUN, &codes::NO_SUCH_RECEIPT]),
    Route::get("/v1/receipts", RouteAccess::READ, "List the receipts of all runs", handler!(of_tenant))
        .about("Newest first. A token that's bound to flows gets only the receipts of those flows. With a bound token or with `worker`, a page can have fewer items than `limit`.")
        .query(FILTERS)
        .answers(&[Answer::json::<ReceiptList>(200, "A page of receipts.")]),
];

/// Who sends it, and under which name.
fn dress(
    send: EventSend,
    caller: &ApiCaller,
    headers: &HeaderMap,
    request: SendRequest,
) -> Result<SendRequest, ApiError> {
    let bad = |detail: &str, pointer: &str| Err(ApiError::new(&codes::BAD_BODY, detail).at(pointer));
    let mut request = request.sender(sender(&send, caller)?);
    let header = key_header(headers)?;
    match (send.idempotency_key.as_deref(), header) {
        (Some(key), Some(header)) if key != header => {
            return bad("the Idempotency-Key header has another key", "/idempotencyKey");
        }
        (None, None) => {}
        _ if send.event_id.is_some() => {
            return bad("send either an `eventId` or an idempotency key, not both", "/eventId");
        }
        (Some(key), _) | (None, Some(key)) => request = request.key(key),
    }
    match send.event_id {
        Some(id) if id.is_empty() || id.len() > limits::KEY_BYTES => {
            bad(&format!("an event id must have 1 to {} bytes", limits::KEY_BYTES), "/eventId")
        }
        Some(id) => Ok(request.event_id(id)),
        None => Ok(request),
    }
}

/// The token says who sends the event; without tokens, the request does. A token with `on_behalf` names the user it acts for,
/// with roles that it has itself.
fn sender(send: &EventSend, caller: &ApiCaller) -> Result<Sender, ApiError> {
    let principal = &caller.principal;
    if !principal.by_token {
        let roles = send.roles.clone().unwrap_or_default();
        return Ok(Sender { user: send.user_id.clone(), roles, sent_by: None });
    }
    let subject = principal.subject.to_string();
    let refuse = |detail: &str, pointer: &str| Err(ApiError::new(&codes::BAD_BODY, detail).at(pointer));
    let (user, roles) = match (&send.user_id, &send.roles) {
        (None, None) => {
            return Ok(Sender { user: Some(subject), roles: principal.roles.to_vec(), sent_by: None });
        }
        (user, _) if !principal.has(TokenScope::OnBehalf) => {
            let pointer = if user.is_some() { "/userId" } else { "/roles" };
            return refuse(
                "the token determines the sender and its roles; only a token with scope `on_behalf` can name a user",
                pointer,
            );
        }
        (None, Some(_)) => return refuse("`roles` needs a `userId`", "/roles"),
        (Some(user), roles) => (user.clone(), roles.clone().unwrap_or_default()),
    };
    // Said before anything can fail: who is refused has tried.
    if let Some(act) = &caller.act {
        act.is_for(user.chars().take(limits::KEY_BYTES).collect());
    }
    if let Some(role) = roles.iter().find(|role| !principal.roles.contains(role)) {
        let detail = format!("the token can't grant role {role:?}, which it doesn't have itself");
        return Err(ApiError::new(&codes::FORBIDDEN, detail));
    }
    Ok(Sender { user: Some(user), roles, sent_by: Some(subject) })
}

async fn send(
    caller: ApiCaller,
    params: Params,
    headers: HeaderMap,
    JsonBody(mut send): JsonBody<EventSend>,
) -> Result<Response, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let payload = send.payload.take().unwrap_or_else(Raw::nothing);
    let request = run.engine().event(&run.key(), &send.name, payload);
    let request = dress(send, &caller, &headers, request)?;
    let (engine, row) = (run.engine().clone(), run.into_inner());
    answer(&caller, &engine, params.duration("wait"), request, Some(row)).await
}

async fn start_or_send(
    caller: ApiCaller,
    params: Params,
    headers: HeaderMap,
    JsonBody(given): JsonBody<StartOrSend>,
) -> Result<Response, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    let StartOrSend { key, input, name, payload, event_id, idempotency_key, user_id, roles } = given;
    let (input, payload) = (input.unwrap_or_else(Raw::null), payload.unwrap_or_else(Raw::nothing));
    let request = flow.engine().event_for(&flow, &key, input, (&name, payload));
    let send = EventSend { name, payload: None, event_id, idempotency_key, user_id, roles };
    let request = dress(send, &caller, &headers, request)?;
    answer(&caller, flow.engine(), params.duration("wait"), request, None).await
}

/// Sends an event. `row` is the run's, if it was already read.
async fn answer(
    caller: &ApiCaller,
    engine: &Engine,
    wait: Option<Duration>,
    request: SendRequest,
    row: Option<RunRow>,
) -> Result<Response, ApiError> {
    if let Some(act) = caller.act.as_ref().filter(|act| act.is_for_another()) {
        act.begin(engine.store()).await?;
    }
    let until = wait.map(|wait| Instant::now() + wait);
    let mut sent = request.send().await?;
    let run = engine.key(&sent.run_id);
    let row = match row {
        Some(row) => row,
        None => engine.row(&run).await?,
    };
    let (store, plans) = (engine.store(), engine.plans());
    let location = format!("/v1/runs/{}/receipts/{}", row.run_id, super::paths::part(&sent.event_id));
    let is_machine = plans.get(store, &row.tenant, &row.definition).await?.machine.is_some();
    let receipt = match until {
        Some(until) if is_machine => engine.wait_for_receipt(&run, &sent.event_id, until).await?,
        _ => None,
    };
    let receipt = match receipt {
        Some(receipt) => Some(read_receipt(store, plans, receipt).await?),
        None => None,
    };
    if let Some(problem) = receipt.as_ref().and_then(rejection) {
        return Err(problem);
    }
    if receipt.is_some() {
        // What it was when the event came in is no news any more.
        sent.status = engine.row(&run).await?.status;
    }
    let done = !is_machine || receipt.as_ref().is_some_and(ReceiptView::is_done);
    let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    let body = Json(sent_view(sent, receipt));
    Ok(match is_machine {
        true => (status, [("location", location)], body).into_response(),
        false => (status, body).into_response(),
    })
}

/// Why an event was rejected, if it was.
fn rejection(receipt: &ReceiptView) -> Option<ApiError> {
    let code = match receipt.code.as_deref()? {
        "action_failed" => return None,
        "forbidden" => &codes::ROLE,
        "ended" => &codes::RUN_ENDED,
        _ => &codes::EVENT_REJECTED,
    };
    let detail = receipt.error.clone().unwrap_or_else(|| code.title.to_owned());
    Some(ApiError::new(code, detail).with(|details| {
        details.event_id = Some(receipt.event_id.to_string());
        details.accepts = Some(receipt.accepts.clone().unwrap_or_default());
    }))
}

fn query(caller: &ApiCaller, params: &Params, run: Option<RunId>) -> ReceiptQuery {
    ReceiptQuery {
        run,
        status: params.text("status").and_then(ReceiptStatus::parse),
        worker: params.text("worker").map(str::to_owned),
        after: params.text("cursor").map(str::to_owned),
        limit: params.number("limit").map_or(PAGE, |limit| limit as usize),
        ..ReceiptQuery::of(caller.principal.tenant.clone())
    }
}

async fn of_run(caller: ApiCaller, params: Params) -> Result<Json<ReceiptList>, ApiError> {
    let run = caller.run(params.path("run")).await?;
    Ok(Json(caller.receipts(query(&caller, &params, Some(run.into_inner().run_id))).await?))
}

async fn of_tenant(caller: ApiCaller, params: Params) -> Result<Json<ReceiptList>, ApiError> {
    Ok(Json(caller.receipts(query(&caller, &params, None)).await?))
}

async fn one(caller: ApiCaller, params: Params) -> Result<Json<ReceiptView>, ApiError> {
    let run = caller.run(params.path("run")).await?;
    let event_id = params.path("event");
    let until = Instant::now() + params.duration("wait").unwrap_or(Duration::ZERO);
    let missing = || {
        let detail = format!("run {} hasn't received an event {event_id:?}", run.run_id);
        ApiError::new(&codes::NO_SUCH_RECEIPT, detail)
    };
    // No event has such an id, and not every store could be asked for it.
    if event_id.contains('\0') || event_id.len() > limits::KEY_BYTES {
        return Err(missing());
    }
    let receipt = run.engine().wait_for_receipt(&run.key(), event_id, until).await?.ok_or_else(missing)?;
    Ok(Json(read_receipt(run.engine().store(), run.engine().plans(), receipt).await?))
}
