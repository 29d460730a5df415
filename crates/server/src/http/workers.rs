//! Remote workers seen recently by any instance. For people only: leases, not this list, decide who works.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use flowline::Engine;
use flowline::core::{Json as Raw, Tenant};
use flowline::store::query::PAGE;
use flowline::store::{DocumentQuery, NewDocument};
use flowline_api::queues::{WorkerList, WorkerRow};
use serde_json::json;

use super::problem::ApiError;
use super::request::Params;
use super::route::{Answer, Query, Route, RouteAccess, handler};
use super::runs::LIMIT;
use super::visible::ApiCaller;
use crate::view::read_documents;

/// How long a worker stays listed after its last claim or heartbeat.
const LISTED: Duration = Duration::from_secs(600);
/// A worker is recorded at most this often.
const AGAIN: Duration = Duration::from_secs(15);
/// Workers remembered at once; beyond that, all of them are recorded again.
const REMEMBERED: usize = 10_000;

pub const ROUTES: &[Route] =
    &[Route::get("/v1/workers", RouteAccess::READ, "List remote workers", handler!(list))
        .about("Workers that asked for jobs or sent a heartbeat in the last ten minutes, by name. A token that's bound to queues sees only workers of these, so a page can have fewer items than `limit`, or none, and still have a `next`.")
        .query(&[LIMIT, Query::CURSOR])
        .answers(&[Answer::json::<WorkerList>(200, "")])];

/// When this instance last recorded each worker.
#[derive(Debug, Default)]
pub struct WorkerSightings(Mutex<HashMap<(Tenant, String), Instant>>);

impl WorkerSightings {
    /// Whether it's time to record this worker. If so, it counts as recorded.
    fn is_due(&self, tenant: &Tenant, worker: &str) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (tenant.clone(), worker.to_owned());
        if seen.get(&key).is_some_and(|at| at.elapsed() < AGAIN) {
            return false;
        }
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        seen.insert(key, Instant::now());
        true
    }

    /// Records that a worker asked for work. A failure is ignored, so that it doesn't stop the worker.
    pub async fn note(&self, engine: &Engine, subject: &str, worker: &str, queues: &[String]) {
        let (store, tenant) = (engine.store(), engine.tenant());
        if !self.is_due(tenant, worker) {
            return;
        }
        let Ok(now) = store.now().await else { return };
        let body = json!({
            "worker": worker, "queues": queues, "lastSeen": now, "instance": &*engine.config().instance,
            "subject": subject,
        });
        let seen = NewDocument::new(&collection(tenant), worker, Raw::from(body), Some(LISTED));
        let _ = store.put_document(seen).await;
    }

    /// Records that a listed worker is still alive.
    pub async fn refresh(&self, engine: &Engine, worker: &str) {
        let (store, tenant) = (engine.store(), engine.tenant());
        if !self.is_due(tenant, worker) {
            return;
        }
        let collection = collection(tenant);
        let (Ok(Some(known)), Ok(now)) = (store.document(&collection, worker).await, store.now().await)
        else {
            return;
        };
        let mut body = known.body.value();
        body["lastSeen"] = json!(now);
        let seen = NewDocument::new(&collection, worker, Raw::from(body), Some(LISTED));
        let _ = store.put_document(seen).await;
    }
}

fn collection(tenant: &Tenant) -> String {
    format!("workers:{tenant}")
}

async fn list(caller: ApiCaller, params: Params) -> Result<Json<WorkerList>, ApiError> {
    let query = DocumentQuery {
        after: params.text("cursor").map(str::to_owned),
        limit: params.number("limit").map_or(PAGE, |limit| limit as usize),
        ..DocumentQuery::default()
    };
    let (mut has_more, mut next) = (false, None);
    let workers = caller.rows(async |engine| {
        let page = engine.store().documents(&collection(engine.tenant()), query).await?;
        next = page.items.last().filter(|_| page.more).map(|last| last.id.clone());
        has_more = page.more;
        read_documents::<WorkerRow>(page.items)
    });
    let items = workers.await?.into_inner();
    Ok(Json(WorkerList { items, has_more, next }))
}
