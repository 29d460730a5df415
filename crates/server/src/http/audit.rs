//! The audit log: who steered what. An entry is written for every request to a route that needs `operate` or `admin`, or that
//! takes or releases a lock, whether it was let through or not, and for every event that is sent for somebody else. Starts,
//! other events and the work of workers are in the logs of their runs, and a lock that is merely extended keeps its holder.
//!
//! An entry is written before the act and completed after it. Nothing is done that can't be recorded; and whatever becomes of
//! the connection, an act that has begun is carried to its end ([`carried_out`]).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::http::Extensions;
use axum::response::{IntoResponse, Response};
use flowline::core::{Json, Tenant, Time};
use flowline::store::{NewDocument, Store};
use flowline_api::access::AuditEntry;
use serde_json::{Map, Value};

use super::access::Principal;
use super::codes;
use super::problem::ApiError;
use super::route::{Route, RouteAccess, TokenScope};

/// How long an entry is kept.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
/// What of a request's body is recorded: which things it is about, and what is to be done with them. No payloads, no secrets.
const RECORDED: [&str; 23] = [
    "action",
    "cursor",
    "dryRun",
    "expires",
    "filter",
    "flow",
    "flows",
    "from",
    "fromStart",
    "hash",
    "key",
    "limit",
    "name",
    "overlap",
    "owner",
    "queue",
    "queues",
    "reason",
    "roles",
    "scopes",
    "status",
    "step",
    "subject",
];
/// The most of it, in bytes of JSON.
const ASKED_BYTES: usize = 8 << 10;
/// How often the end of an act is written again to a store that is away, and how long after.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

pub fn is_audited(route: &Route) -> bool {
    matches!(
        route.access,
        RouteAccess::Needs(TokenScope::Operate | TokenScope::Admin) | RouteAccess::Either(..)
    ) && route.verb != super::route::Verb::Get
        && route.path != super::locks::EXTEND
}

pub fn collection(tenant: &Tenant) -> String {
    format!("audit:{tenant}")
}

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

impl Peer {
    /// As the listener says of every request.
    pub fn of(extensions: &Extensions) -> Peer {
        extensions.get().copied().unwrap_or(Peer(SocketAddr::from(([0; 4], 0))))
    }
}

/// An entry in the making.
#[derive(Debug)]
pub struct Act {
    id: String,
    tenant: Tenant,
    subject: Arc<str>,
    token_id: Option<Arc<str>>,
    address: SocketAddr,
    route: &'static Route,
    path: String,
    began: OnceLock<Time>,
    asked: Mutex<Map<String, Value>>,
    /// The user for whom it is done, once the handler knows.
    user: OnceLock<String>,
}

impl Act {
    pub fn of(principal: &Principal, route: &'static Route, path: &str, Peer(address): Peer) -> Act {
        Act {
            id: uuid::Uuid::now_v7().to_string(),
            tenant: principal.tenant.clone(),
            subject: principal.subject.clone(),
            token_id: principal.token_id.clone(),
            address,
            route,
            path: path.to_owned(),
            began: OnceLock::new(),
            asked: Mutex::default(),
            user: OnceLock::new(),
        }
    }

    /// It's done for this user.
    pub fn is_for(&self, user: String) {
        let _ = self.user.set(user);
    }

    /// Whether it's in the log for the sake of somebody else.
    pub fn is_for_another(&self) -> bool {
        self.user.get().is_some()
    }

    /// Adds to what is asked for.
    pub fn asks(&self, name: &str, value: impl Into<Value>) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value.into());
    }

    /// Takes what is asked for from a body.
    pub fn asks_by(&self, body: &[u8]) {
        let Ok(Value::Object(mut body)) = serde_json::from_slice(body) else { return };
        body.retain(|name, _| RECORDED.contains(&name.as_str()));
        if Value::Object(body.clone()).to_string().len() > ASKED_BYTES {
            body = Map::from_iter([("omitted".to_owned(), Value::from(true))]);
        }
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).append(&mut body);
    }

    /// Writes the entry, before anything is done. If that's impossible, nothing may be done.
    pub async fn begin(&self, store: &dyn Store) -> Result<(), ApiError> {
        let refused = |error| {
            tracing::warn!(%error, path = self.path, "could not write to the audit log; the request was refused");
            let detail = "the audit log can't be written, so nothing was done; try again in a moment";
            ApiError::new(&codes::UNAVAILABLE, detail)
        };
        self.write(store, 0).await.map_err(refused)
    }

    /// Completes the entry. If the store is away, that's tried again; the entry is there in any case.
    pub async fn end(&self, store: &dyn Store, status: u16) {
        for tried in 1.. {
            match self.write(store, status).await {
                Ok(()) => return,
                Err(_) if tried < TRIES => tokio::time::sleep(PAUSE).await,
                Err(error) => {
                    return tracing::warn!(%error, path = self.path, status, "could not write to the audit log");
                }
            }
        }
    }

    async fn write(&self, store: &dyn Store, status: u16) -> Result<(), flowline::store::StoreError> {
        let at = match self.began.get() {
            Some(at) => *at,
            None => *self.began.get_or_init({
                let now = store.now().await?;
                move || now
            }),
        };
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let entry = AuditEntry {
            id: self.id.clone(),
            at,
            subject: self.subject.to_string(),
            action: self.route.summary.to_owned(),
            method: self.route.verb.as_str().to_uppercase(),
            path: self.path.clone(),
            status,
            token_id: self.token_id.as_deref().map(str::to_owned),
            address: Some(self.address.ip().to_string()),
            route: Some(self.route.path.to_owned()),
            asked: (!asked.is_empty()).then_some(asked),
            on_behalf_of: self.user.get().cloned(),
        };
        let entry =
            Json::of(&entry).map_err(|error| flowline::store::StoreError::Invalid(error.to_string()))?;
        let entry = NewDocument::new(&collection(&self.tenant), &self.id, entry, Some(KEPT));
        store.put_document(entry).await.map(|_| ())
    }
}

/// Carries an act to its end, whether or not anybody waits for the answer.
pub async fn carried_out(act: impl Future<Output = Response> + Send + 'static) -> Response {
    let lost = |_| ApiError::new(&codes::INTERNAL, "the request was interrupted").into_response();
    tokio::spawn(act).await.unwrap_or_else(lost)
}
