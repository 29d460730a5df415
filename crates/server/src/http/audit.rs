//! The audit log: who steered what. A line is written for every request to a route that needs `operate` or `admin`, or that
//! takes or releases a lock, whether it was let through or not, and for every event that is sent for somebody else. Starts,
//! other events and the work of workers are in the logs of their runs, and a lock that is merely extended keeps its holder.

use std::time::Duration;

use flowline::core::{Json, Tenant};
use flowline::store::{NewDocument, Store};
use serde_json::json;

use super::access::Principal;
use super::route::{Access, Route, Scope};

/// How long a line is kept.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

pub fn is_audited(route: &Route) -> bool {
    matches!(route.access, Access::Needs(Scope::Operate | Scope::Admin) | Access::Either(..))
        && route.verb != super::route::Verb::Get
        && route.path != super::locks::EXTEND
}

pub fn collection(tenant: &Tenant) -> String {
    format!("audit:{tenant}")
}

/// What somebody did.
#[derive(Debug)]
pub struct Act<'a> {
    pub route: &'a Route,
    pub path: &'a str,
    /// What it was answered with.
    pub status: u16,
    /// The user for whom it was done.
    pub user: Option<&'a String>,
}

/// Writes a line. That it cannot be written does not undo what was done: it is said in the server's log.
pub async fn write(store: &dyn Store, principal: &Principal, act: Act<'_>) {
    let Act { route, path, status, user } = act;
    let id = uuid::Uuid::now_v7().to_string();
    let Ok(now) = store.now().await else { return };
    let mut line = json!({
        "id": id, "at": now, "subject": &*principal.subject, "action": route.summary, "method": route.verb.as_str().to_uppercase(),
        "path": path, "status": status,
    });
    if let Some(user) = user {
        line["onBehalfOf"] = user.as_str().into();
    }
    let line = NewDocument::new(&collection(&principal.tenant), &id, Json::from(line), Some(KEPT));
    let written = store.put_document(line).await;
    if let Err(error) = written {
        tracing::warn!(%error, path, "could not write to the audit log");
    }
}
