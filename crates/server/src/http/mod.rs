//! The HTTP API: thin handlers over the engine and the store. Each file is a group of routes with their handlers. A route
//! describes itself completely ([`route::Route`]); the router, the scopes and the OpenAPI document are derived from that.
//!
//! Nothing here decides anything about runs, or keeps anything that another instance would need.

pub mod access;
pub mod app;
pub mod audit;
pub mod bulk;
pub mod callbacks;
pub mod console;
pub mod cors;
pub mod etag;
pub mod events;
pub mod flows;
pub mod guesses;
pub mod health;
pub mod listen;
pub mod live;
pub mod locks;
pub mod metrics;
pub mod openapi;
pub mod overview;
pub mod pages;
pub mod pass;
pub mod paths;
pub mod problem;
pub mod queues;
pub mod request;
pub mod requests;
pub mod route;
pub mod run;
pub mod runs;
pub mod schemas;
pub mod session;
pub mod state;
pub mod threads;
pub mod tls;
pub mod tokens;
pub mod uses;
pub mod visible;
pub mod work;
pub mod workers;

pub use flowline_api::codes;

use std::sync::Arc;

use axum::http::Request;
use axum::response::Response;
use flowline::Engine;
use hyper::body::Incoming;

pub use app::{App, InstanceParts};
use paths::{Paths, RouteMatch};
use route::{Route, RouteEffect};
use threads::Whereabouts;

/// All routes.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    [
        health::ROUTES,
        metrics::ROUTES,
        openapi::ROUTES,
        pages::ROUTES,
        flows::ROUTES,
        runs::ROUTES,
        bulk::ROUTES,
        run::ROUTES,
        events::ROUTES,
        live::ROUTES,
        queues::ROUTES,
        locks::ROUTES,
        state::ROUTES,
        overview::ROUTES,
        tokens::ROUTES,
        session::ROUTES,
        work::ROUTES,
        workers::ROUTES,
        callbacks::ROUTES,
    ]
    .into_iter()
    .flatten()
}

/// Answers requests. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api(Arc<ApiParts>);

#[derive(Debug)]
struct ApiParts {
    reads: App,
    writes: App,
    paths: Paths,
}

impl Api {
    /// Answers from the engine; routes that read use `reads`.
    pub fn of(engine: Engine, reads: Engine, instance: InstanceParts) -> Api {
        let instance = Arc::new(instance);
        let app = |engine| App::new(engine, instance.clone());
        // unwrap: which routes there are is fixed, and a test has them all
        let paths = Paths::new().expect("no two routes conflict");
        Api(Arc::new(ApiParts { reads: app(reads), writes: app(engine), paths }))
    }

    /// Writes when tokens were used, for as long as it's polled.
    pub async fn keep_uses(&self) {
        access::keep_uses(&self.0.writes).await
    }

    /// The last of it.
    pub async fn finish_uses(&self) {
        access::finish_uses(&self.0.writes).await
    }

    /// Answers a request on the threads that serve its route.
    pub async fn answer(self, request: Request<Incoming>, seat: Arc<Whereabouts>) -> Response {
        let ApiParts { reads, writes, paths } = &*self.0;
        let found = paths.find(request.method(), request.uri().path());
        if let RouteMatch::Route(route, _) = &found {
            seat.take(route.effect).await;
        }
        let app = if seat.here() == RouteEffect::Reads { reads } else { writes };
        pass::through(app, found, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_routes_have_the_same_verb_and_path() {
        let mut seen = BTreeSet::new();
        for route in routes() {
            assert!(seen.insert((route.path, route.verb.as_str())), "{:?} {}", route.verb, route.path);
        }
    }

    /// A handler that isn't in one of these has only what the checks give it.
    #[test]
    fn only_the_checks_and_what_belongs_to_no_tenant_reach_the_engine_unchecked() {
        let mut reach = Vec::new();
        let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false
                        if std::fs::read_to_string(&path).unwrap().contains(concat!(".unchecked", "()")) =>
                    {
                        reach.push(path.file_name().unwrap().to_string_lossy().into_owned());
                    }
                    false => {}
                }
            }
        }
        reach.sort();
        let checks = ["access.rs", "request.rs", "session.rs", "visible.rs"];
        let of_the_instance = ["health.rs", "metrics.rs", "requests.rs"];
        // A reference to a lease is sealed, and is the credential.
        let mut may: Vec<&str> = [&checks[..], &of_the_instance, &["callbacks.rs"]].concat();
        may.sort_unstable();
        assert_eq!(reach, may);
    }

    #[test]
    fn every_route_under_v1_names_a_scope_or_has_its_credential_in_the_path() {
        let v1 = routes().filter(|route| route.path.starts_with("/v1/"));
        for route in v1.filter(|route| !["/v1/callbacks/{reference}", "/v1/session"].contains(&route.path)) {
            assert!(route.access != route::RouteAccess::Open, "{}", route.path);
        }
    }
}
