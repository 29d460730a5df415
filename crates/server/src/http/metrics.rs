//! `/metrics` for Prometheus: what this instance has done, and the state of the store.
//!
//! Counters cover this instance, without regard to tenants. What's read from the store at scrape time (queues, runs, stuck
//! runs) covers the token's tenant, or all tenants if the server doesn't require tokens. If the store doesn't respond, only
//! that part is missing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use flowline::core::{Status, Tenant};
use flowline::meters::Meters;
use flowline::store::{Counter, QueueRow, StoreError};
use flowline::stuck::{Reason, Stuck, stuck};

use super::App;
use super::access::Door;
use super::request::Params;
use super::requests::Requests;
use super::route::{Answer, Route, RouteAccess, handler};
use super::visible::ApiCaller;
use crate::exposition::{Exposition, KIND, Labels};
use crate::otlp::Export;

/// How long a scrape waits for the store: once for quick reads, once for stuck runs.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long to reuse the count of stuck runs.
const BELIEVED: Duration = Duration::from_secs(30);
/// Queues with their own label; the rest share `other`. Names come from definitions.
const QUEUES: usize = 200;

pub const ROUTES: &[Route] = &[Route::get("/metrics", RouteAccess::READ, "Get metrics", handler!(metrics))
    .about("Prometheus text format. Counters cover this instance; queues, runs and stuck runs cover the token's tenant, or all tenants if the server doesn't require tokens.")
    .answers(&[Answer::other(200, "Metrics.", "text/plain")])];

/// What an instance measures about itself.
#[derive(Debug)]
pub struct Watched {
    pub requests: Requests,
    export: Option<Export>,
    stuck_after: Duration,
    started: SystemTime,
    stuck: tokio::sync::Mutex<HashMap<Option<Tenant>, (Instant, Stuck)>>,
}

impl Watched {
    pub fn new(stuck_after: Duration, export: Option<Export>) -> Watched {
        Watched {
            requests: Requests::default(),
            export,
            stuck_after,
            started: SystemTime::now(),
            stuck: tokio::sync::Mutex::default(),
        }
    }
}

async fn metrics(State(app): State<App>, caller: ApiCaller, _: Params) -> impl IntoResponse {
    let mut page = Exposition::new(&app.unchecked().config().instance);
    let since = app.watched.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let version: Labels<'_> = &[("version", env!("CARGO_PKG_VERSION"))];
    page.family("flowline_build_info", "gauge", "Version of this instance; always 1.", &[(version, 1)]);
    page.gauge(
        "flowline_start_time_seconds",
        "When the instance started, as Unix time.",
        since.as_secs_f64(),
    );
    write_meters(&mut page, app.unchecked().meters());
    app.watched.requests.write(&mut page);
    if let Door::Tokens(remembered) = &app.door {
        remembered.wrong.write(&mut page);
    }
    if let Some(export) = &app.watched.export {
        export.write(&mut page);
    }
    write_store(&mut page, &app, &caller).await;
    ([(header::CONTENT_TYPE, KIND)], page.finish())
}

fn write_meters(page: &mut Exposition, meters: &Meters) {
    page.counter("flowline_commits_total", "Commits that succeeded.", &meters.commits);
    page.counter(
        "flowline_commit_conflicts_total",
        "Commits that lost a race and were retried.",
        &meters.conflicts,
    );
    page.counter("flowline_commit_batches_total", "Batches of commits sent to the store.", &meters.batches);
    page.histogram(
        "flowline_commit_seconds",
        "Time from sending a batch of commits to the store until its answer.",
        &[(&[], &meters.commit)],
    );
    page.histogram(
        "flowline_decide_seconds",
        "Time to decide the commits of a batch.",
        &[(&[], &meters.decide)],
    );
    page.histogram(
        "flowline_queue_wait_seconds",
        "Time from when a job was due until it was leased.",
        &[(&[], &meters.queue_wait)],
    );
    page.histogram(
        "flowline_attempt_seconds",
        "Duration of attempts that ran in this process, by outcome.",
        &[(&[("outcome", "completed")], &meters.completed), (&[("outcome", "failed")], &meters.failed)],
    );
    page.counter("flowline_claims_total", "Times this instance asked the store for jobs.", &meters.claims);
    page.counter(
        "flowline_leases_expired_total",
        "Expired leases, of any worker, found by this instance.",
        &meters.expired,
    );
    page.counter(
        "flowline_leases_lost_total",
        "Attempts on this instance that lost their lease.",
        &meters.lost,
    );
    let of = |meter: &std::sync::atomic::AtomicU64| meter.load(std::sync::atomic::Ordering::Relaxed);
    page.family(
        "flowline_duplicates_refused_total",
        "counter",
        "Inputs that changed nothing: already recorded, a start whose run exists, or a lease that is gone.",
        &[
            (&[("kind", "applied")], of(&meters.repeated)),
            (&[("kind", "exists")], of(&meters.existed)),
            (&[("kind", "stale_lease")], of(&meters.stale)),
        ],
    );
    page.counter(
        "flowline_quota_refused_total",
        "Starts refused because their tenant was over a quota.",
        &meters.over_quota,
    );
    page.counter(
        "flowline_events_received_total",
        "External events that machines received.",
        &meters.received,
    );
    page.counter(
        "flowline_events_applied_total",
        "Events that caused a transition of a machine.",
        &meters.applied,
    );
    page.counter(
        "flowline_events_rejected_total",
        "Events that a machine rejected when their turn came.",
        &meters.rejected,
    );
    let reconciled = &meters.reconciled;
    page.counter(
        "flowline_reconcile_passes_total",
        "Times this instance checked every run against its log.",
        &reconciled.passes,
    );
    page.counter("flowline_reconcile_runs_total", "Runs checked in those passes.", &reconciled.runs);
    page.counter(
        "flowline_reconcile_found_total",
        "Problems found; counted again in every pass.",
        &reconciled.found,
    );
    page.counter("flowline_reconcile_repaired_total", "Problems repaired.", &reconciled.repaired);
    page.family(
        "flowline_runs_ended_total",
        "counter",
        "Terminal events written by this instance, by status.",
        &[
            (&[("status", "completed")], of(&meters.ended.completed)),
            (&[("status", "failed")], of(&meters.ended.failed)),
            (&[("status", "cancelled")], of(&meters.ended.cancelled)),
        ],
    );
}

/// Gauges read from the store; those that can't be read are left out.
async fn write_store(page: &mut Exposition, app: &App, caller: &ApiCaller) {
    let answered = within(read(app, caller)).await;
    page.gauge("flowline_store_up", "1 if the store answered this scrape.", u8::from(answered.is_some()));
    let trouble = app.unchecked().trouble().borrow().is_some();
    page.gauge("flowline_store_trouble", "1 if the store doesn't accept writes.", u8::from(trouble));
    let Some(read) = answered else { return };
    let runs: Vec<([(&str, &str); 1], u64)> = Status::ALL
        .into_iter()
        .map(|status| {
            let of = read.counters.iter().filter(|counter| counter.status == status);
            ([("status", status.as_str())], of.map(|counter| counter.count).sum())
        })
        .collect();
    let samples: Vec<(Labels<'_>, u64)> = runs.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    page.family("flowline_runs", "gauge", "Runs in the store, by status.", &samples);
    write_queues(page, &read);
    write_stuck(page, app, caller, &read.tenants).await;
}

/// What a scrape reads.
struct Read {
    tenants: Vec<Tenant>,
    counters: Vec<Counter>,
    queues: Vec<QueueRow>,
    now: flowline::core::Time,
}

async fn read(app: &App, caller: &ApiCaller) -> Result<Read, StoreError> {
    let store = app.unchecked().store();
    let mut counters = caller.keep(store.counters().await?);
    if let Door::Tokens(_) = app.door {
        counters.retain(|counter| counter.tenant == caller.principal.tenant);
    }
    // Only a run that has not ended has jobs.
    let mut tenants: Vec<Tenant> = counters
        .iter()
        .filter(|counter| !counter.status.is_terminal())
        .map(|counter| counter.tenant.clone())
        .collect();
    tenants.sort();
    tenants.dedup();
    let mut queues = Vec::new();
    for tenant in &tenants {
        queues.extend(store.queues(tenant).await?);
    }
    Ok(Read { tenants, counters, queues: caller.keep(queues), now: store.now().await? })
}

#[derive(Default)]
struct Depth {
    ready: u64,
    delayed: u64,
    held: u64,
    leased: u64,
    oldest: Duration,
}

fn write_queues(page: &mut Exposition, read: &Read) {
    let mut depths: BTreeMap<Arc<str>, Depth> = BTreeMap::new();
    for row in &read.queues {
        let known = depths.contains_key(&row.queue) || depths.len() < QUEUES;
        let queue = if known { row.queue.clone() } else { "other".into() };
        let depth = depths.entry(queue).or_default();
        depth.ready += row.ready;
        depth.delayed += row.delayed;
        depth.held += row.held;
        depth.leased += row.leased;
        depth.oldest = depth.oldest.max(row.oldest.map_or(Duration::ZERO, |due| read.now.since(due)));
    }
    let jobs: Vec<([(&str, &str); 2], u64)> = depths
        .iter()
        .flat_map(|(queue, depth)| {
            let of = |state, count| ([("queue", &**queue), ("state", state)], count);
            let Depth { ready, delayed, held, leased, .. } = *depth;
            [of("ready", ready), of("delayed", delayed), of("held", held), of("leased", leased)]
        })
        .collect();
    let samples: Vec<(Labels<'_>, u64)> = jobs.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    page.family("flowline_queue_jobs", "gauge", "Jobs in a queue, by state.", &samples);
    let oldest: Vec<([(&str, &str); 1], f64)> =
        depths.iter().map(|(queue, depth)| ([("queue", &**queue)], depth.oldest.as_secs_f64())).collect();
    let samples: Vec<(Labels<'_>, f64)> = oldest.iter().map(|(labels, age)| (&labels[..], *age)).collect();
    page.family(
        "flowline_queue_oldest_seconds",
        "gauge",
        "How long the oldest ready job has been due.",
        &samples,
    );
}

async fn write_stuck(page: &mut Exposition, app: &App, caller: &ApiCaller, tenants: &[Tenant]) {
    if caller.all_runs("").is_err() {
        return;
    }
    let Some(found) = within(believed(app, caller, tenants)).await else { return };
    let runs = Reason::ALL
        .map(|reason| ([("reason", reason.as_str())], found.runs.get(&reason).copied().unwrap_or_default()));
    let samples: Vec<(Labels<'_>, u64)> = runs.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    page.family(
        "flowline_stuck_runs",
        "gauge",
        "Runs without progress for longer than stuck-after, by reason.",
        &samples,
    );
    page.gauge(
        "flowline_stuck_runs_capped",
        "1 if there were too many runs to check them all.",
        u8::from(found.capped),
    );
    page.gauge(
        "flowline_stuck_after_seconds",
        "The setting stuck-after.",
        app.watched.stuck_after.as_secs_f64(),
    );
}

/// Stuck runs, as counted recently. Concurrent callers share a count.
async fn believed(app: &App, caller: &ApiCaller, tenants: &[Tenant]) -> Result<Stuck, StoreError> {
    let whose = match app.door {
        Door::Tokens(_) => Some(caller.principal.tenant.clone()),
        Door::Open { .. } => None,
    };
    let mut known = app.watched.stuck.lock().await;
    if let Some((at, found)) = known.get(&whose)
        && at.elapsed() < BELIEVED
    {
        return Ok(found.clone());
    }
    let found = stuck(app.unchecked().store(), tenants, app.watched.stuck_after).await?;
    known.retain(|_, (at, _)| at.elapsed() < BELIEVED);
    known.insert(whose, (Instant::now(), found.clone()));
    Ok(found)
}

async fn within<T>(question: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
    tokio::time::timeout(PATIENCE, question).await.ok()?.ok()
}
