//! Named locks of a tenant: take, extend and release one, and see who holds which.
//!
//! The holder gets a secret, the `lockToken`, to extend and release the lock; others see owner, fence and time left. Workers
//! and operators can both use locks, so either scope will do.

use std::time::Duration;

use axum::Json;
use flowline::Engine;
use flowline::core::Time;
use flowline::lock::{self, LockError, NamedLock};
use flowline::store::lock::fence;
use flowline::store::{LockRow, Token};
use flowline_api::locks::{
    AcquireLockAnswer, AcquireLockRequest, ExtendLockAnswer, ExtendLockRequest, HeldLock, LockList,
    ReleaseLockAnswer, ReleaseLockRequest,
};

use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, Route, RouteAccess, TokenScope, handler};
use super::visible::ApiCaller;

/// A holder's heartbeat, which the audit log leaves out.
pub const EXTEND: &str = "/v1/locks/{name}/extend";
const HOLDERS: RouteAccess = RouteAccess::Either(TokenScope::Work, TokenScope::Operate);

pub const ROUTES: &[Route] = &[
    Route::get("/v1/locks", RouteAccess::READ, "List the locks", handler!(list))
        .about("Locks that are held, by name. Needs a token that isn't bound to flows or queues.")
        .answers(&[Answer::json::<LockList>(200, "")]),
    Route::get("/v1/locks/{name}", RouteAccess::READ, "Show a lock", handler!(show))
        .answers(&[Answer::json::<HeldLock>(200, "")])
        .problems(&[&codes::NO_SUCH_LOCK]),
    Route::post("/v1/locks/{name}", HOLDERS, "Acquire a lock", handler!(acquire))
        .about("Succeeds if no one holds the lock, or if you repeat the request with the same `lockToken`, so it's safe to repeat. Extend the lock before it expires. `fence` is higher than that of every earlier holder.")
        .body(Body::small::<AcquireLockRequest>().optional())
        .answers(&[Answer::json::<AcquireLockAnswer>(200, "")])
        .problems(&[&codes::INVALID, &codes::LOCK_HELD]),
    Route::post(EXTEND, HOLDERS, "Extend a lock", handler!(extend))
        .about("The lock then expires `ttlMs` from now. Not in the audit log, since holders do this all the time.")
        .body(Body::small::<ExtendLockRequest>())
        .answers(&[Answer::json::<ExtendLockAnswer>(200, "")])
        .problems(&[&codes::INVALID, &codes::LOCK_LOST]),
    Route::post("/v1/locks/{name}/release", HOLDERS, "Release a lock", handler!(release))
        .body(Body::small::<ReleaseLockRequest>())
        .answers(&[Answer::json::<ReleaseLockAnswer>(200, "")]),
];

/// A lock as it is shown, `now` by the store's clock.
pub fn held(row: LockRow, now: Time) -> HeldLock {
    let LockRow { name, owner, since, until } = row;
    HeldLock { name, owner, fence: fence(since), since, until, remaining_ms: left(until, now) }
}

pub fn left(until: Time, now: Time) -> u64 {
    u64::try_from(until.millis() - now.millis()).unwrap_or_default()
}

async fn rows(engine: &Engine) -> Result<Vec<HeldLock>, ApiError> {
    let now = engine.store().now().await?;
    Ok(engine.locks().await?.into_iter().map(|row| held(row, now)).collect())
}

async fn list(caller: ApiCaller, _: Params) -> Result<Json<LockList>, ApiError> {
    let tenant = caller.whole_tenant("all flows share the locks")?;
    Ok(Json(LockList { items: rows(tenant.engine()).await? }))
}

async fn show(caller: ApiCaller, params: Params) -> Result<Json<HeldLock>, ApiError> {
    let name = params.path("name");
    let found = rows(caller.lock(name).engine()).await?.into_iter().find(|lock| lock.name == name);
    let missing = || ApiError::new(&codes::NO_SUCH_LOCK, format!("no one holds a lock {name:?}"));
    found.map(Json).ok_or_else(missing)
}

async fn acquire(
    caller: ApiCaller,
    params: Params,
    JsonBody(given): JsonBody<AcquireLockRequest>,
) -> Result<Json<AcquireLockAnswer>, ApiError> {
    let owner = given.owner.unwrap_or_else(|| caller.principal.subject.to_string());
    let token = match given.lock_token.as_deref() {
        Some(text) => read_token(text)?,
        None => lock::new_token(),
    };
    let name = params.path("name").to_owned();
    let lock = caller.lock(&name);
    let grant = lasting(&lock, given.ttl_ms).owner(owner.clone()).grant(token).await?;
    let remaining_ms = left(grant.until, lock.engine().store().now().await?);
    let (fence, since, until) = (grant.fence, grant.since, grant.until);
    let lock = HeldLock { name, owner, fence, since, until, remaining_ms };
    Ok(Json(AcquireLockAnswer { lock, lock_token: shown_token(token) }))
}

async fn extend(
    caller: ApiCaller,
    params: Params,
    JsonBody(given): JsonBody<ExtendLockRequest>,
) -> Result<Json<ExtendLockAnswer>, ApiError> {
    let name = params.path("name").to_owned();
    let lock = caller.lock(&name);
    let until = lasting(&lock, given.ttl_ms).extend(read_token(&given.lock_token)?).await?;
    let Some(until) = until else {
        let detail = format!("this token doesn't hold lock {name:?} any more");
        return Err(ApiError::new(&codes::LOCK_LOST, detail));
    };
    let remaining_ms = left(until, lock.engine().store().now().await?);
    Ok(Json(ExtendLockAnswer { name, until, remaining_ms }))
}

async fn release(
    caller: ApiCaller,
    params: Params,
    JsonBody(given): JsonBody<ReleaseLockRequest>,
) -> Result<Json<ReleaseLockAnswer>, ApiError> {
    let name = params.path("name");
    let released = caller.lock(name).release(read_token(&given.lock_token)?).await?;
    Ok(Json(ReleaseLockAnswer { name: name.to_owned(), released }))
}

fn lasting(lock: &NamedLock, ttl_ms: Option<u64>) -> NamedLock {
    lock.clone().ttl(ttl_ms.map_or(lock::TTL, Duration::from_millis))
}

/// The `lockToken` of a text: 32 hexadecimal digits.
fn read_token(text: &str) -> Result<Token, ApiError> {
    let whole = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let token = whole.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    let detail = "a lockToken must be 32 hex digits";
    token.map(Token).ok_or_else(|| ApiError::new(&codes::BAD_BODY, detail).at("/lockToken"))
}

fn shown_token(token: Token) -> String {
    format!("{:032x}", token.0)
}

impl From<LockError> for ApiError {
    fn from(error: LockError) -> ApiError {
        let text = error.to_string();
        match error {
            LockError::Store(error) => error.into(),
            LockError::Name(_) => ApiError::parameter("name", text),
            LockError::Held { owner, until, .. } => ApiError::new(&codes::LOCK_HELD, text)
                .with(|details| (details.owner, details.until) = (Some(owner), Some(until))),
            _ => ApiError::new(&codes::INVALID, text),
        }
    }
}
