//! Tokens and the audit log, for administrators; and who one is, for everybody.

use axum::Json;
use axum::handler::Handler as _;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use flowline::core::Json as Raw;
use flowline::store::query::PAGE;
use flowline::store::{DocumentQuery, Order};
use serde::Serialize;
use serde_json::{Value, json};

use super::audit::collection;
use super::codes;
use super::problem::Problem;
use super::request::{Caller, Given, Params};
use super::route::{Access, Answer, Body, BodyLimit, Content, Kind, Query, Required, Route, Scope, Verb};
use super::runs::LIMIT;
use crate::token::{self, NewToken};

pub const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Post,
        path: "/v1/tokens",
        access: Access::Needs(Scope::Admin),
        summary: "Create a token",
        about: "The response is the only place that shows the secret; the store keeps only a hash.",
        query: &[],
        body: Some(Body {
            schema: "NewToken",
            limit: BodyLimit::Bytes(64 << 10),
            required: Required::Yes,
            also: &[],
        }),
        answers: &[Answer::json(201, "MadeToken", "")],
        problems: &[],
        handler: |request, app| make.call(request, app),
    },
    Route {
        verb: Verb::Get,
        path: "/v1/tokens",
        access: Access::Needs(Scope::Admin),
        summary: "List the tokens of the tenant",
        about: "",
        query: &[],
        body: None,
        answers: &[Answer::json(200, "TokenList", "Tokens without their secrets.")],
        problems: &[],
        handler: |request, app| list.call(request, app),
    },
    Route {
        verb: Verb::Delete,
        path: "/v1/tokens/{id}",
        access: Access::Needs(Scope::Admin),
        summary: "Revoke a token",
        about: "Every instance refuses it after at most two seconds.",
        query: &[],
        body: None,
        answers: &[Answer { status: 204, about: "Revoked.", content: Content::None }],
        problems: &[&codes::NO_SUCH_TOKEN],
        handler: |request, app| revoke.call(request, app),
    },
    Route {
        verb: Verb::Get,
        path: "/v1/audit",
        access: Access::Needs(Scope::Admin),
        summary: "Read the audit log",
        about: "Who changed runs, queues, definitions and tokens, newest first. Entries are kept for 90 days.",
        query: &[LIMIT, Query { name: "cursor", kind: Kind::Text, about: "`next` of the previous page." }],
        body: None,
        answers: &[Answer::json(200, "AuditPage", "")],
        problems: &[],
        handler: |request, app| audit.call(request, app),
    },
    Route {
        verb: Verb::Get,
        path: "/v1/whoami",
        access: Access::Needs(Scope::Read),
        summary: "Show the token's subject and what it allows",
        about: "",
        query: &[],
        body: None,
        answers: &[Answer::json(200, "Principal", "")],
        problems: &[],
        handler: |request, app| whoami.call(request, app),
    },
];

async fn make(caller: Caller, _: Params, Given(new): Given<NewToken>) -> Result<Response, Problem> {
    new.check().map_err(|(field, wrong)| Problem::new(&codes::BAD_BODY, wrong).at(&format!("/{field}")))?;
    let made = token::create(caller.engine.store(), caller.engine.tenant(), new).await?;
    Ok((StatusCode::CREATED, [("cache-control", "no-store")], Json(made)).into_response())
}

async fn list(caller: Caller, _: Params) -> Result<Json<Value>, Problem> {
    let rows = token::list(caller.engine.store(), Some(caller.engine.tenant())).await?;
    Ok(Json(json!({ "items": rows })))
}

async fn revoke(caller: Caller, params: Params) -> Result<StatusCode, Problem> {
    let id = params.path("id");
    match token::revoke(caller.engine.store(), caller.engine.tenant(), id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::new(&codes::NO_SUCH_TOKEN, format!("there is no token {id}"))),
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditPage {
    items: Vec<Raw>,
    has_more: bool,
    next: Option<String>,
}

async fn audit(caller: Caller, params: Params) -> Result<Json<AuditPage>, Problem> {
    let query = DocumentQuery {
        order: Order::Descending,
        after: params.text("cursor").map(str::to_owned),
        limit: params.number("limit").map_or(PAGE, |limit| limit as usize),
    };
    let page = caller.engine.store().documents(&collection(caller.engine.tenant()), query).await?;
    let next = page.items.last().filter(|_| page.more).map(|last| last.id.clone());
    Ok(Json(AuditPage {
        has_more: page.more,
        next,
        items: page.items.into_iter().map(|line| line.body).collect(),
    }))
}

async fn whoami(caller: Caller, _: Params) -> Json<Value> {
    let principal = &caller.principal;
    let scopes: Vec<&str> = principal.scopes.iter().map(|scope| scope.as_str()).collect();
    Json(json!({
        "tenant": principal.tenant, "subject": &*principal.subject, "scopes": scopes, "roles": &*principal.roles,
        "flows": principal.flows.as_deref(), "queues": principal.queues.as_deref(),
    }))
}
