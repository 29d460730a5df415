//! Counts and times requests by route, logs them, and counts open streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::http::Method;
use axum::response::Response;
use flowline::meters::Histogram;
use http_body_util::BodyExt as _;

use super::App;
use super::access::is_stream;
use crate::exposition::{Exposition, Labels};

/// Requests of one instance since it started.
#[derive(Debug, Default)]
pub struct Requests {
    /// By method and path template, which bounds their number by that of the routes.
    routes: Mutex<BTreeMap<(&'static str, &'static str), Route>>,
    /// Open event streams.
    streams: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Route {
    statuses: BTreeMap<u16, u64>,
    took: Histogram,
}

impl Requests {
    /// Records a request and its response.
    pub fn passed(
        &self,
        app: &App,
        method: &Method,
        route: &'static str,
        began: Instant,
        response: Response,
    ) -> Response {
        let (method, status, took) = (name(method), response.status().as_u16(), began.elapsed());
        {
            let mut routes = self.lock();
            let route = routes.entry((method, route)).or_default();
            *route.statuses.entry(status).or_default() += 1;
            route.took.observe(took);
        }
        tracing::debug!(
            instanceId = &*app.unchecked().config().instance,
            method,
            route,
            status,
            ms = took.as_secs_f64() * 1e3,
            "request"
        );
        self.follow(response)
    }

    /// Counts an event stream until its body is dropped.
    fn follow(&self, response: Response) -> Response {
        if !is_stream(&response) {
            return response;
        }
        let open = Open::new(&self.streams);
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &open;
                frame
            }))
        })
    }

    pub fn write(&self, page: &mut Exposition) {
        let routes = self.lock();
        let counts: Vec<(&str, &str, String, u64)> = routes
            .iter()
            .flat_map(|((method, path), route)| {
                route.statuses.iter().map(|(status, count)| (*method, *path, status.to_string(), *count))
            })
            .collect();
        let labels: Vec<[(&str, &str); 3]> = counts
            .iter()
            .map(|(method, path, status, _)| {
                [("method", *method), ("route", *path), ("status", status.as_str())]
            })
            .collect();
        let samples: Vec<(Labels<'_>, u64)> =
            labels.iter().zip(&counts).map(|(labels, (.., count))| (&labels[..], *count)).collect();
        page.family("flowline_http_requests_total", "counter", "Requests answered.", &samples);
        let took: Vec<([(&str, &str); 2], &Histogram)> = routes
            .iter()
            .map(|((method, path), route)| ([("method", *method), ("route", *path)], &route.took))
            .collect();
        let samples: Vec<(Labels<'_>, &Histogram)> =
            took.iter().map(|(labels, took)| (&labels[..], *took)).collect();
        page.histogram(
            "flowline_http_request_seconds",
            "Time from a request until its response starts.",
            &samples,
        );
        page.gauge("flowline_sse_clients", "Open event streams.", self.streams.load(Ordering::Relaxed));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, &'static str), Route>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts as one for as long as it lives.
struct Open(Arc<AtomicU64>);

impl Open {
    fn new(counter: &Arc<AtomicU64>) -> Open {
        counter.fetch_add(1, Ordering::Relaxed);
        Open(counter.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A method's name; unknown methods share a label.
fn name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_counts_for_as_long_as_it_is_open() {
        let requests = Requests::default();
        let open = || requests.streams.load(Ordering::Relaxed);
        let response = Response::builder().header("content-type", "text/event-stream");
        let stream = requests.follow(response.body(Body::from("data: 1\n\n")).unwrap());
        let page = requests.follow(Response::new(Body::from("page")));
        assert_eq!(open(), 1);
        drop((stream, page));
        assert_eq!(open(), 0);
    }
}
