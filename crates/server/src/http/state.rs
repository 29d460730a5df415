//! Key-value state, read and written from outside of runs. Writes are in the audit log, not in the log of a run.

use std::time::Duration;

use axum::Json;
use flowline::core::Tenant;
use flowline::core::time::parse_duration;
use flowline::store::query::PAGE;
use flowline::store::{StateSpace, Store, StoreError};
use flowline::{StateOwner, StatePage, StateQuery, StateValue};
use flowline_api::state::{StateChanged, StateEntry, StateList, StateScopeView, StateScopes, StateWrite};

use super::codes;
use super::problem::ApiError;
use super::request::{JsonBody, Params};
use super::route::{Answer, Body, BodyLimit, Query, Route, RouteAccess, handler};
use super::runs::LIMIT;
use super::visible::ApiCaller;

const CHANGED: &[Answer] = &[Answer::json::<StateChanged>(200, "`changed` is false if the key wasn't set.")];

pub const ROUTES: &[Route] = &[
    Route::get("/v1/state", RouteAccess::READ, "List scopes of key-value state", handler!(scopes))
        .about("Scopes that have values: `tenant`, and scopes with a name of your own. Scopes of flows and runs aren't listed; use their flow or run.")
        .answers(&[Answer::json::<StateScopes>(200, "")]),
    Route::get("/v1/state/{scope}", RouteAccess::READ, "List keys and values of a scope", handler!(list))
        .about("Sorted by key. A scope is `tenant`, `flow:FLOW`, `run:RUN`, or any name of your own, such as `orders`, which all flows of the tenant share. A token that's bound to flows can only read the state of those flows and their runs.")
        .query(&[LIMIT, Query::CURSOR])
        .answers(&[Answer::json::<StateList>(200, "A page of values.")])
        .problems(&[&codes::NO_SUCH_RUN, &codes::NO_SUCH_FLOW]),
    Route::get("/v1/state/{scope}/{key}", RouteAccess::READ, "Get a value", handler!(get))
        .answers(&[Answer::json::<StateEntry>(200, "")])
        .problems(&[&codes::NO_SUCH_KEY, &codes::NO_SUCH_RUN, &codes::NO_SUCH_FLOW, &codes::INVALID]),
    Route::put("/v1/state/{scope}/{key}", RouteAccess::OPERATE, "Set a value", handler!(set))
        .about("Replaces the current value. With `ttl`, the value is deleted after that time. Only a run's steps can write its state.")
        .body(Body::of::<StateWrite>(BodyLimit::Payloads(2)))
        .answers(CHANGED)
        .problems(&[&codes::NO_SUCH_RUN, &codes::NO_SUCH_FLOW, &codes::INVALID, &codes::TOO_LARGE]),
    Route::delete("/v1/state/{scope}/{key}", RouteAccess::OPERATE, "Delete a value", handler!(delete))
        .answers(CHANGED)
        .problems(&[&codes::NO_SUCH_RUN, &codes::NO_SUCH_FLOW, &codes::INVALID]),
];

pub fn state_entry(owner: &StateOwner, found: StateValue) -> StateEntry {
    let StateValue { key, value, expires } = found;
    StateEntry { scope: owner.to_string(), key, value, expires_at: expires }
}

pub fn state_list(owner: &StateOwner, page: StatePage) -> StateList {
    let next = page.values.last().filter(|_| page.more).map(|last| last.key.clone());
    StateList { items: page.values.into_iter().map(|found| state_entry(owner, found)).collect(), next }
}

pub async fn read_scopes(store: &dyn Store, tenant: &Tenant) -> Result<StateScopes, StoreError> {
    let own = store.states(&StateSpace::new(tenant, StateOwner::Tenant), StateQuery::first(1)).await?;
    let own = (!own.values.is_empty()).then(|| "tenant".to_owned());
    let named = store.scopes(tenant).await?;
    let all = own.into_iter().chain(named.iter().map(|name| name.to_string()));
    Ok(StateScopes { items: all.map(|scope| StateScopeView { scope }).collect() })
}

async fn scopes(caller: ApiCaller, _: Params) -> Result<Json<StateScopes>, ApiError> {
    let tenant = caller.shared_state()?;
    Ok(Json(read_scopes(tenant.engine().store(), tenant.engine().tenant()).await?))
}

async fn list(caller: ApiCaller, params: Params) -> Result<Json<StateList>, ApiError> {
    let state = caller.state(params.path("scope")).await?;
    let limit = params.number("limit").map_or(PAGE, |limit| limit as usize);
    let page = state
        .list(StateQuery { after: params.text("cursor").map(str::to_owned), ..StateQuery::first(limit) })
        .await?;
    Ok(Json(state_list(state.owner(), page)))
}

async fn get(caller: ApiCaller, params: Params) -> Result<Json<StateEntry>, ApiError> {
    let state = caller.state(params.path("scope")).await?;
    let key = params.path("key");
    match state.find(key).await? {
        Some(found) => Ok(Json(state_entry(state.owner(), found))),
        None => {
            Err(ApiError::new(&codes::NO_SUCH_KEY, format!("scope {} has no key {key:?}", state.owner())))
        }
    }
}

async fn set(
    caller: ApiCaller,
    params: Params,
    JsonBody(write): JsonBody<StateWrite>,
) -> Result<Json<StateChanged>, ApiError> {
    let ttl = match write.ttl.as_deref().map(|text| (text, parse_duration(text))) {
        None => None,
        Some((_, Some(ttl))) if ttl >= Duration::from_millis(1) => Some(ttl),
        Some((text, _)) => {
            let detail = format!("{text:?} isn't a valid TTL; write 30s, 5m, 1h or 7d");
            return Err(ApiError::new(&codes::BAD_BODY, detail).at("/ttl"));
        }
    };
    let state = caller.state(params.path("scope")).await?;
    let key = params.path("key");
    match ttl {
        Some(ttl) => state.set_for(key, &write.value, ttl).await?,
        None => state.set(key, &write.value).await?,
    }
    Ok(Json(StateChanged { scope: state.owner().to_string(), key: key.to_owned(), changed: true }))
}

async fn delete(caller: ApiCaller, params: Params) -> Result<Json<StateChanged>, ApiError> {
    let state = caller.state(params.path("scope")).await?;
    let key = params.path("key");
    let changed = state.delete(key).await?;
    Ok(Json(StateChanged { scope: state.owner().to_string(), key: key.to_owned(), changed }))
}
