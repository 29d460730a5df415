//! Tokens and the audit log, for administrators; and who one is, for everybody.

use axum::Json;
use axum::handler::Handler as _;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use flowline::store::query::PAGE;
use flowline::store::{DocumentQuery, Order};
use flowline_api::access::{AuditList, MadeToken, NewToken, TokenList, Whoami};

use super::audit::collection;
use super::codes;
use super::problem::Problem;
use super::request::{Caller, JsonBody, Params};
use super::route::{Access, Answer, Body, BodyLimit, Content, Kind, Query, Route, Scope, Verb};
use super::runs::LIMIT;
use crate::token;
use crate::view::read_documents;

pub const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Post,
        path: "/v1/tokens",
        access: Access::Needs(Scope::Admin),
        summary: "Create a token",
        about: "The response is the only place that shows the secret; the store keeps only a hash.",
        query: &[],
        body: Some(Body::of::<NewToken>(BodyLimit::Bytes(64 << 10))),
        answers: &[Answer::json::<MadeToken>(201, "")],
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
        answers: &[Answer::json::<TokenList>(200, "Tokens without their secrets.")],
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
        answers: &[Answer::json::<AuditList>(200, "")],
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
        answers: &[Answer::json::<Whoami>(200, "")],
        problems: &[],
        handler: |request, app| whoami.call(request, app),
    },
];

async fn make(caller: Caller, _: Params, JsonBody(new): JsonBody<NewToken>) -> Result<Response, Problem> {
    token::check(&new)
        .map_err(|(field, wrong)| Problem::new(&codes::BAD_BODY, wrong).at(&format!("/{field}")))?;
    let made = token::create(caller.engine.store(), caller.engine.tenant(), new).await?;
    Ok((StatusCode::CREATED, [("cache-control", "no-store")], Json(made)).into_response())
}

async fn list(caller: Caller, _: Params) -> Result<Json<TokenList>, Problem> {
    let rows = token::list(caller.engine.store(), Some(caller.engine.tenant())).await?;
    Ok(Json(TokenList { items: rows }))
}

async fn revoke(caller: Caller, params: Params) -> Result<StatusCode, Problem> {
    let id = params.path("id");
    match token::revoke(caller.engine.store(), caller.engine.tenant(), id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::new(&codes::NO_SUCH_TOKEN, format!("there is no token {id}"))),
    }
}

async fn audit(caller: Caller, params: Params) -> Result<Json<AuditList>, Problem> {
    let query = DocumentQuery {
        order: Order::Descending,
        after: params.text("cursor").map(str::to_owned),
        limit: params.number("limit").map_or(PAGE, |limit| limit as usize),
        ..DocumentQuery::default()
    };
    let page = caller.engine.store().documents(&collection(caller.engine.tenant()), query).await?;
    let next = page.items.last().filter(|_| page.more).map(|last| last.id.clone());
    Ok(Json(AuditList { has_more: page.more, next, items: read_documents(page.items)? }))
}

async fn whoami(caller: Caller, _: Params) -> Json<Whoami> {
    let principal = &caller.principal;
    Json(Whoami {
        tenant: principal.tenant.clone(),
        subject: principal.subject.to_string(),
        scopes: principal.scopes.to_vec(),
        roles: principal.roles.to_vec(),
        flows: principal.flows.as_deref().map(<[String]>::to_vec),
        queues: principal.queues.as_deref().map(<[String]>::to_vec),
    })
}
