//! Who may do what: every request has a principal, and every route names the scope that it needs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use flowline::core::Tenant;

use super::App;
use super::codes;
use super::problem::Problem;
use super::route::{self, Route, Scope};

/// The header by which somebody who needs no token names a tenant.
pub const TENANT_HEADER: &str = "flowline-tenant";

/// Somebody who asks.
#[derive(Debug, Clone)]
pub struct Principal {
    pub tenant: Tenant,
    /// For the audit log and for steps that ask who did it.
    pub subject: Arc<str>,
    pub scopes: Arc<[Scope]>,
    /// Only these flows, where it is bound to some.
    pub flows: Option<Arc<[String]>>,
    /// Only these queues, where it is bound to some.
    pub queues: Option<Arc<[String]>>,
}

impl Principal {
    /// Whoever reaches a server that asks for no tokens.
    pub fn anyone(tenant: Tenant) -> Principal {
        Principal {
            tenant,
            subject: "anyone".into(),
            scopes: [Scope::Admin].into(),
            flows: None,
            queues: None,
        }
    }

    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    pub fn may_see_flow(&self, flow: &str) -> bool {
        self.flows.as_ref().is_none_or(|flows| flows.iter().any(|known| known == flow))
    }

    pub fn may_see_queue(&self, queue: &str) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.iter().any(|known| known == queue))
    }
}

/// Lets a request through to its handler, with its principal and its route, or says why not.
pub async fn check(
    State((app, route)): State<(App, &'static Route)>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    if let route::Access::Needs(scope) = route.access {
        let principal = match identify(&app, request.headers()).await {
            Ok(principal) => principal,
            Err(problem) => return problem.into_response(),
        };
        if !principal.has(scope) {
            let detail = format!("this needs a token with scope `{}`", scope.as_str());
            return Problem::new(&codes::FORBIDDEN, detail).into_response();
        }
        request.extensions_mut().insert(principal);
    }
    request.extensions_mut().insert(route);
    next.run(request).await
}

async fn identify(app: &App, headers: &HeaderMap) -> Result<Principal, Problem> {
    let tenant = match headers.get(TENANT_HEADER) {
        None => app.tenant.clone(),
        Some(name) => {
            let name = name.to_str().unwrap_or_default();
            Tenant::new(name)
                .map_err(|error| Problem::new(&codes::BAD_REQUEST, format!("{TENANT_HEADER}: {error}")))?
        }
    };
    Ok(Principal::anyone(tenant))
}
