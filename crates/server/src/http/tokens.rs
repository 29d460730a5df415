//! Tokens and the audit log for administrators, and `whoami` for everyone.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use flowline::store::query::PAGE;
use flowline::store::{DocumentQuery, Order};
use flowline_api::access::{AuditList, MadeToken, NewToken, RotateToken, TokenList, Whoami};

use super::audit::collection;
use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, Query, Route, RouteAccess, handler};
use super::runs::LIMIT;
use super::visible::ApiCaller;
use crate::token::{self, TokenRotation};
use crate::view::read_documents;

pub const ROUTES: &[Route] = &[
    Route::post("/v1/tokens", RouteAccess::ADMIN, "Create a token", handler!(make))
        .about("The response is the only place that shows the secret; the store keeps only a hash.")
        .body(Body::small::<NewToken>())
        .answers(&[Answer::json::<MadeToken>(201, "")]),
    Route::get("/v1/tokens", RouteAccess::ADMIN, "List the tokens of the tenant", handler!(list))
        .answers(&[Answer::json::<TokenList>(200, "Tokens without their secrets.")]),
    Route::delete("/v1/tokens/{id}", RouteAccess::ADMIN, "Revoke a token", handler!(revoke))
        .about("Every instance refuses it after at most two seconds.")
        .answers(&[Answer::empty(204, "Revoked.")])
        .problems(&[&codes::NO_SUCH_TOKEN]),
    Route::post("/v1/tokens/{id}/rotate", RouteAccess::ADMIN, "Replace a token", handler!(rotate))
        .about("Creates a token for the same subject with the same permissions. The old one stays valid for `overlap`, so that clients can switch over, and then expires. The response is the only place that shows the new secret.")
        .body(Body::small::<RotateToken>().optional())
        .answers(&[Answer::json::<MadeToken>(201, "The new token.")])
        .problems(&[&codes::NO_SUCH_TOKEN, &codes::INVALID]),
    Route::get("/v1/audit", RouteAccess::ADMIN, "Read the audit log", handler!(audit))
        .about(
            "Who changed runs, queues, definitions and tokens, newest first. Entries are kept for 90 days.",
        )
        .query(&[LIMIT, Query::CURSOR])
        .answers(&[Answer::json::<AuditList>(200, "")]),
    Route::get(
        "/v1/whoami",
        RouteAccess::READ,
        "Show the token's subject and what it allows",
        handler!(whoami),
    )
    .answers(&[Answer::json::<Whoami>(200, "")]),
];

/// Why no bound token gets to them.
const TENANTS: &str = "tokens and the audit log belong to the whole tenant";

async fn make(caller: ApiCaller, _: Params, JsonBody(new): JsonBody<NewToken>) -> Result<Response, ApiError> {
    token::check(&new)
        .map_err(|(field, wrong)| ApiError::new(&codes::BAD_BODY, wrong).at(&format!("/{field}")))?;
    let tenant = caller.whole_tenant(TENANTS)?;
    let made = token::create(tenant.engine().store(), tenant.engine().tenant(), new).await?;
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

async fn rotate(
    caller: ApiCaller,
    params: Params,
    JsonBody(rotate): JsonBody<RotateToken>,
) -> Result<Response, ApiError> {
    token::check_rotation(&rotate)
        .map_err(|(field, wrong)| ApiError::new(&codes::BAD_BODY, wrong).at(&format!("/{field}")))?;
    let id = params.path("id");
    let tenant = caller.whole_tenant(TENANTS)?;
    match token::rotate(tenant.engine().store(), tenant.engine().tenant(), id, &rotate).await? {
        TokenRotation::Made(made) => Ok((StatusCode::CREATED, Json(made)).into_response()),
        TokenRotation::Missing => Err(no_such_token(id)),
        TokenRotation::Replaced(by) => Err(ApiError::new(&codes::INVALID, token::already_replaced(id, &by))),
    }
}

async fn list(caller: ApiCaller, _: Params) -> Result<Json<TokenList>, ApiError> {
    let tenant = caller.whole_tenant(TENANTS)?;
    let rows = token::list(tenant.engine().store(), tenant.engine().tenant()).await?;
    Ok(Json(TokenList { items: rows }))
}

async fn revoke(caller: ApiCaller, params: Params) -> Result<StatusCode, ApiError> {
    let id = params.path("id");
    let tenant = caller.whole_tenant(TENANTS)?;
    match token::revoke(tenant.engine().store(), tenant.engine().tenant(), id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(no_such_token(id)),
    }
}

fn no_such_token(id: &str) -> ApiError {
    ApiError::new(&codes::NO_SUCH_TOKEN, format!("there is no token {id}"))
}

async fn audit(caller: ApiCaller, params: Params) -> Result<Json<AuditList>, ApiError> {
    let query = DocumentQuery {
        order: Order::Descending,
        after: params.text("cursor").map(str::to_owned),
        limit: params.number("limit").map_or(PAGE, |limit| limit as usize),
        ..DocumentQuery::default()
    };
    let tenant = caller.whole_tenant(TENANTS)?;
    let page = tenant.engine().store().documents(&collection(tenant.engine().tenant()), query).await?;
    let next = page.items.last().filter(|_| page.more).map(|last| last.id.clone());
    Ok(Json(AuditList { has_more: page.more, next, items: read_documents(page.items)? }))
}

async fn whoami(caller: ApiCaller, _: Params) -> Json<Whoami> {
    let principal = &caller.principal;
    Json(Whoami {
        tenant: principal.tenant.clone(),
        subject: principal.subject.to_string(),
        scopes: principal.scopes.to_vec(),
        roles: principal.roles.to_vec(),
        flows: principal.binding.flows.as_deref().map(<[String]>::to_vec),
        queues: principal.binding.queues.as_deref().map(<[String]>::to_vec),
    })
}
