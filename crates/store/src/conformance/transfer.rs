//! Being filled with what another store holds. That other store is the in-memory one, made to hold something of
//! everything; what is read back must be what it says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::definition::Retain;
use flowline_core::event::PayloadSlot;
use flowline_core::report::ReportDigests;
use flowline_core::{EventType, NewEvent, RunKey, Status, Tenant, Time};

use super::{Fixture, given};
use crate::row::{Pause, Retention};
use crate::{
    Base, Claim, Clock, Commit, CommitError, Document, DocumentQuery, Failure, FeedFilter, Filling, Index,
    JobState, LeaseUse, MemoryStore, NewJob, NewRun, Opened, Receipt, ReceiptChange, ReceiptQuery,
    ReceiptStatus, Restored, RestoredEvent, RestoredRun, RunQuery, StateOwner, StateQuery, StateScope,
    StateSpace, StateValue, Store, Token,
};

/// The token that restored leases get.
const NEW: Token = Token(0xfeed);

/// An in-memory store at the same time as the one under test.
async fn source(f: &Fixture) -> Fixture {
    let clock = Clock::manual(f.now().await);
    Fixture::manual(Arc::new(MemoryStore::new(clock.clone())), clock)
}

/// Carries everything over, as `flowline move` does: the oldest first. The slot of a payload is only known to who knows
/// the definition; here it is the input's alone.
async fn carry(from: &Fixture, to: &Fixture) {
    for tenant in from.store.tenants().await.expect("tells its tenants") {
        let mut definitions = from.store.definitions(&tenant).await.expect("lists");
        definitions.reverse();
        let owners = definitions.iter().map(|definition| StateOwner::Flow(definition.flow.clone()));
        let mut owners: Vec<StateOwner> = owners.chain([StateOwner::Tenant]).collect();
        let scopes = from.store.scopes(&tenant).await.expect("tells its scopes");
        owners.extend(scopes.into_iter().map(StateOwner::Named));
        restore(to, definitions.into_iter().map(Restored::Definition).collect()).await;
        let page = from.store.runs(RunQuery { limit: 1_000, ..RunQuery::of(tenant.clone()) }).await;
        for row in page.expect("lists").items.into_iter().rev() {
            owners.push(StateOwner::Run(row.run_id.clone()));
            restore(to, parts(from, &row.key()).await).await;
        }
        owners.dedup();
        for owner in owners {
            let space = StateSpace::new(&tenant, owner);
            let page = from.store.states(&space, StateQuery::first(1_000)).await;
            let values = page.expect("tells its values").values;
            restore(to, vec![Restored::Values { space, values }]).await;
        }
        for queue in from.store.queues(&tenant).await.expect("lists").into_iter().filter(|row| row.paused) {
            to.store.pause_queue(&tenant, &queue.queue, Pause::Paused).await.expect("pauses");
        }
    }
    for (collection, documents) in documents(from).await {
        restore(to, vec![Restored::Documents { collection, documents }]).await;
    }
}

/// Every collection and what is in it.
async fn documents(f: &Fixture) -> Vec<(String, Vec<Document>)> {
    let mut all = Vec::new();
    for collection in f.store.collections().await.expect("tells its collections") {
        let query = DocumentQuery { limit: 1_000, ..DocumentQuery::default() };
        let page = f.store.documents(&collection, query).await.expect("lists");
        all.push((collection, page.items));
    }
    all
}

async fn restore(f: &Fixture, parts: Vec<Restored>) {
    f.store.restore(parts).await.expect("restores");
}

/// A run as it is restored.
async fn parts(from: &Fixture, run: &RunKey) -> Vec<Restored> {
    let snapshot = from.store.load(std::slice::from_ref(run)).await.expect("loads").remove(0);
    let snapshot = snapshot.expect("is there");
    let log = from.log(run).await;
    let jobs = from.jobs(run).await;
    let last = log.last().map_or(snapshot.row.created_at, |event| event.ts);
    let reports = from.store.reports(run).await.expect("tells");
    let restored = RestoredRun { row: snapshot.row, state: snapshot.state, last, jobs, token: NEW, reports };
    let input = from.store.payloads_of(run, &[PayloadSlot::Input]).await.expect("finds").remove(0).is_some();
    let slot = |kind| (kind == EventType::FlowStart && input).then_some(PayloadSlot::Input);
    let events = log.into_iter().map(|event| RestoredEvent { slot: slot(event.kind), event }).collect();
    let receipts = receipts(from, run).await;
    vec![
        Restored::Run(Box::new(restored)),
        Restored::Receipts { run: run.clone(), receipts },
        Restored::Events { run: run.clone(), events },
    ]
}

/// The receipts of a run, the oldest first.
async fn receipts(f: &Fixture, run: &RunKey) -> Vec<Receipt> {
    let of_run =
        ReceiptQuery { run: Some(run.run.clone()), limit: 1_000, ..ReceiptQuery::of(run.tenant.clone()) };
    let mut found = f.store.receipts(of_run).await.expect("lists").items;
    found.reverse();
    found
}

/// A receipt in every status, with strange texts, and a worker for some.
fn received() -> Vec<ReceiptChange> {
    let change = |(n, status): (usize, ReceiptStatus)| {
        let text = given::STRANGE[n];
        let sender = Some(given::json(text.into()));
        ReceiptChange {
            number: n as u32,
            opened: Some(Opened { event_id: format!("e {text}").into(), name: text.into(), sender }),
            status,
            worker: status.is_started().then(|| text.into()),
            outcome: status.is_end().then(|| given::json(text.into())),
        }
    };
    ReceiptStatus::ALL.into_iter().enumerate().map(change).collect()
}

/// Runs of every kind, in two tenants, with strange texts wherever there is room for one.
async fn fill(f: &Fixture) -> Vec<RunKey> {
    let other = given::tenant("other");
    let strange: BTreeMap<String, String> =
        given::STRANGE.iter().map(|text| ((*text).to_owned(), (*text).to_owned())).collect();
    let (run, job) = f.leased("r").await;
    let value = |text: &str| Some(given::json(text.into()));
    let mut lines: Vec<_> =
        given::STRANGE.iter().map(|key| given::state_line(StateScope::Run, key, value(key), None)).collect();
    lines.push(given::state_line(StateScope::Run, "ends", value("x"), Some(given::TTL)));
    lines.push(given::state_line(StateScope::Flow, "f", value("y"), None));
    lines.push(given::state_line(StateScope::Tenant, "t", value("z"), None));
    lines.push(given::state_line("orders".into(), "o", value("o"), Some(given::TTL)));
    lines.push(given::state_line("order".into(), "s/o", value("so"), None));
    lines.push(given::log_line(given::STRANGE[3]));
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    let mut runs = vec![run];

    for (id, status) in
        [("c", Status::Completed), ("f", Status::Failed), ("w", Status::Waiting), ("p", Status::Paused)]
    {
        let run = f.started(id, vec![]).await;
        f.pass(Duration::from_millis(3)).await;
        let kind = match status {
            Status::Completed => Some(EventType::FlowCompleted),
            Status::Failed => Some(EventType::FlowFailed),
            _ => None,
        };
        let failure = (status == Status::Failed)
            .then(|| Failure { error: given::STRANGE[0].to_owned(), step: Some("step-0".into()) });
        let state = (status != Status::Failed).then(|| format!("in.{status}").into());
        let index = Index { state, completed_steps: 2, failed_steps: 1, retries: 3, failure, status };
        let events = kind.map(|kind| NewEvent::run(kind, None)).into_iter().collect();
        let due = f.now().await + given::TTL;
        let add = match status {
            Status::Waiting => vec![given::timer(1, due), NewJob { due, ..given::step(2) }],
            Status::Paused => vec![NewJob { held: true, ..given::step(0) }, given::step(1)],
            _ => vec![],
        };
        let receipts = received();
        f.commit(Commit { index, events, add, receipts, ..given::next(&run, 1) }).await;
        runs.push(run);
    }

    let run = given::run_of(&other, "c");
    f.define(&run).await;
    let new = NewRun {
        labels: strange,
        idempotency_key: Some("key".into()),
        retry_of: Some(given::run("old").run),
        retain: Some(Retain::events(given::SHORT)),
        ..given::new_run()
    };
    let input = NewEvent::run(EventType::FlowStart, Some(given::json(given::STRANGE[1].into())));
    let events = vec![input.at(PayloadSlot::Input)];
    let add = vec![given::step(0)];
    f.commit(Commit { base: Base::New(new), events, add, ..given::start(&run) }).await;
    f.store.pause_queue(&other, "default", Pause::Paused).await.expect("pauses");
    f.store.pause_queue(&other, "idle", Pause::Paused).await.expect("pauses");
    for (collection, ttl) in [("tokens", None), ("audit:é {x}", None), ("workers", Some(given::TTL))] {
        for text in given::STRANGE.iter().filter(|text| !text.contains('\0')) {
            let body = given::json((*text).into());
            f.put(collection, text, body, ttl).await;
        }
    }
    runs.push(run);
    runs
}

/// All that a store says of a tenant.
async fn said(f: &Fixture, tenant: &Tenant, runs: &[RunKey]) -> Vec<String> {
    let store: &dyn Store = &*f.store;
    let mut said = Vec::new();
    let mut note = |what: String| said.push(what);
    note(format!("{:?}", store.definitions(tenant).await));
    note(format!("{:?}", store.queues(tenant).await));
    let page = store.runs(RunQuery::of(tenant.clone())).await.expect("lists");
    note(format!("{:?} {:?}", page.items, page.total));
    for text in given::STRANGE {
        let label = Some(((*text).to_owned(), (*text).to_owned()));
        let page = store.runs(RunQuery { label, ..RunQuery::of(tenant.clone()) }).await.expect("lists");
        note(format!("{text}: {:?}", page.items.iter().map(|row| &row.run_id).collect::<Vec<_>>()));
    }
    for status in ReceiptStatus::ALL {
        let of = |worker| ReceiptQuery { status: Some(status), worker, ..ReceiptQuery::of(tenant.clone()) };
        for worker in [None, Some(given::STRANGE[2].to_owned())] {
            let page = store.receipts(of(worker)).await.expect("lists");
            let mut found: Vec<_> =
                page.items.iter().map(|receipt| (&receipt.run_id, receipt.number)).collect();
            found.sort();
            note(format!("{status:?}: {found:?}"));
        }
    }
    for (flow, state) in [(given::FLOW, "in.waiting"), (given::FLOW, "in.completed"), ("none", "in.waiting")]
    {
        let (flow, state) = (Some(flow.to_owned()), Some(state.to_owned()));
        let page = store.runs(RunQuery { flow, state, ..RunQuery::of(tenant.clone()) }).await;
        let page = page.expect("lists");
        note(format!("{:?} {:?}", page.items, page.total));
    }
    for run in runs.iter().filter(|run| run.tenant == *tenant) {
        note(format!("{:?}", store.load(std::slice::from_ref(run)).await));
        note(format!("{:?} {:?}", f.log(run).await, f.jobs(run).await));
        note(format!("{:?}", receipts(f, run).await));
        note(format!("{:?}", store.receipt(run, &format!("e {}", given::STRANGE[1])).await));
        note(format!("{:?}", store.payloads_of(run, &[PayloadSlot::Input, PayloadSlot::Emit(0)]).await));
        for scope in ["run", "flow", "tenant", "order", "orders"] {
            note(format!("{:?}", super::state::all(f, run, &scope.into()).await));
        }
        note(format!("{:?}", store.scopes(tenant).await));
    }
    said
}

/// Two stores say the same of every tenant.
async fn alike(f: &Fixture, from: &Fixture, runs: &[RunKey]) {
    let tenants = from.store.tenants().await.expect("tells");
    assert_eq!(f.store.tenants().await.expect("tells"), tenants);
    assert_eq!(documents(f).await, documents(from).await);
    for tenant in &tenants {
        let (here, there) = (said(f, tenant, runs).await, said(from, tenant, runs).await);
        here.iter().zip(&there).for_each(|(here, there)| assert_eq!(here, there));
        assert_eq!(here.len(), there.len());
    }
}

pub async fn what_is_restored_reads_as_in_the_store_it_comes_from(f: Fixture) {
    let from = source(&f).await;
    let runs = fill(&from).await;
    assert_eq!(f.store.begin_filling().await, Ok(Filling::Begun));
    carry(&from, &f).await;
    f.store.end_filling().await.expect("ends");
    alike(&f, &from, &runs).await;
    let sorted = |mut counters: Vec<crate::Counter>| {
        counters.sort();
        counters
    };
    assert_eq!(
        sorted(f.store.counters().await.expect("counts")),
        sorted(from.store.counters().await.expect("counts"))
    );
    // The feed gives each event once, in order per run.
    let fed = f.store.feed(FeedFilter::default(), "", 1_000).await.expect("feeds").events;
    for run in &runs {
        let of_run = fed.iter().filter(|event| event.run_id == run.run && event.tenant == run.tenant);
        assert_eq!(of_run.cloned().collect::<Vec<_>>(), from.log(run).await);
    }
}

pub async fn runs_restored_one_after_the_other_are_listed_the_last_one_first(f: Fixture) {
    let from = source(&f).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        // Many of one millisecond, and some later than others.
        from.pass(Duration::from_millis(n / 7)).await;
        let id = format!("r{}", (n * 7) % 20);
        from.started(&id, vec![]).await;
        ids.push(id);
    }
    ids.reverse();
    carry(&from, &f).await;
    let listed = |page: crate::RunPage| -> Vec<String> {
        page.items.iter().map(|row| row.run_id.as_str().to_owned()).collect()
    };
    let all = f.store.runs(RunQuery::of(Tenant::default())).await.expect("lists");
    assert_eq!(listed(all), ids);
    // A day before is not among them, and what comes now stands before all.
    let newest = f.started("new", vec![]).await;
    let all = f.store.runs(RunQuery::of(Tenant::default())).await.expect("lists");
    assert_eq!(listed(all)[0], newest.run.as_str());
}

pub async fn restored_runs_are_kept_for_the_times_of_their_own(f: Fixture) {
    const DAY: Duration = Duration::from_secs(86_400);
    let from = source(&f).await;
    let mut runs = Vec::new();
    let soon = Retain::events(given::SHORT);
    for (id, retain) in [
        ("gone", Some(soon.and_runs(given::SHORT))),
        ("trimmed", Some(soon.and_runs(DAY))),
        ("trimmed-before", Some(Retain::events(Duration::ZERO).and_runs(given::SHORT))),
        ("live", Some(soon)),
        ("usual", None),
    ] {
        let run = given::run(id);
        from.define(&run).await;
        let new = NewRun { retain, ..given::new_run() };
        from.commit(Commit { base: Base::New(new), ..given::start(&run) }).await;
        if id != "live" {
            from.commit(given::end(&run, 1)).await;
        }
        runs.push(run);
    }
    let policy = Retention { events: DAY, runs: DAY };
    assert_eq!(from.store.retain(policy, 10).await.expect("retains").trimmed, 1);
    carry(&from, &f).await;
    f.pass(given::LATER).await;
    let done = f.store.retain(policy, 10).await.expect("retains");
    assert_eq!((done.trimmed, done.removed), (1, 2));
    let mut left = Vec::new();
    for run in &runs {
        left.push(f.try_row(run).await.map(|row| row.events_trimmed));
    }
    assert_eq!(left, [None, Some(true), None, Some(false), Some(false)]);
    f.commit(given::end(&runs[3], 1)).await;
    f.pass(given::LATER).await;
    assert_eq!(f.store.retain(policy, 10).await.expect("retains").trimmed, 1, "also where it ends here");
}

pub async fn a_run_in_flight_goes_on_where_it_was(f: Fixture) {
    let from = source(&f).await;
    let run = from.started("r", vec![given::step(0), given::timer(0, from.now().await)]).await;
    carry(&from, &f).await;
    let swept = f.store.sweep(10).await.expect("sweeps");
    assert_eq!(swept.timers.len(), 1, "the timer is due here too");
    let job = f.claim(given::claim(&[1])).await.jobs.remove(0);
    assert_eq!((job.run.clone(), job.attempt), (run.clone(), 1));
    let stale = f.refused(given::next(&run, 2)).await;
    assert_eq!(stale, CommitError::Conflict { expected: 2, found: Some(1) });
    assert_eq!(f.refused(given::start(&run)).await, CommitError::Exists);
    let end = Commit { leases: vec![given::finish(&job)], ..given::end(&run, 1) };
    let committed = f.commit(end).await;
    assert_eq!((committed.version, committed.first_seq), (2, 2));
    let log = f.log(&run).await;
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
    assert!(log[1].ts >= log[0].ts);
    assert_eq!(f.jobs(&run).await, []);
    let fed = f.store.feed(FeedFilter::default(), "", 10).await.expect("feeds").events;
    assert_eq!(fed, log);
}

pub async fn a_restored_lease_is_nobodys_and_runs_out(f: Fixture) {
    let from = source(&f).await;
    let (run, job) = from.leased_for("r", given::SHORT).await;
    let (given_back, _) = {
        let run = from.started("back", vec![given::step(0)]).await;
        let job = from.claim(Claim { ttl: given::TTL, ..given::claim(&[2]) }).await.jobs.remove(0);
        from.append(given::append(&job, 0, vec![given::line(EventType::StepStarted)]))
            .await
            .expect("appends");
        from.store.release(vec![given::hold(&job)]).await.expect("releases");
        (run, job)
    };
    carry(&from, &f).await;
    let finish = Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) };
    assert_eq!(f.refused(finish).await, CommitError::StaleLease(job.key), "its holder is not known here");
    assert!(f.append(given::append(&job, 0, vec![given::log_line("late")])).await.is_err());
    assert_eq!(f.claimed_names(&[7]).await, Vec::<String>::new(), "and nobody else gets it meanwhile");
    f.pass(given::LATER).await;
    let mut expired = f.store.sweep(10).await.expect("sweeps").expired;
    expired.sort_by(|a, b| a.run.cmp(&b.run));
    let shown: Vec<_> = expired
        .iter()
        .map(|lease| (lease.run.clone(), lease.attempt, lease.lines, lease.released, &*lease.worker))
        .collect();
    assert_eq!(shown, [(given_back, 1, 1, true, "me"), (run.clone(), 1, 0, false, "me")]);
    let lost = LeaseUse::Expired { key: job.key, attempt: 1, token: expired[1].token, lines: 0 };
    let again = NewJob { attempt: 2, ..given::step(0) };
    f.commit(Commit { leases: vec![lost], add: vec![again], ..given::next(&run, 1) }).await;
    let jobs: Vec<_> = f.jobs(&run).await.into_iter().map(|job| (job.attempt, job.state)).collect();
    assert_eq!(jobs, [(2, JobState::Waiting)]);
}

pub async fn a_restored_run_ends_and_is_retained_like_any_other(f: Fixture) {
    let from = source(&f).await;
    for id in ["kept", "trimmed"] {
        let run = from.started(id, vec![]).await;
        let done = given::json(serde_json::json!({"result": id}));
        let events = vec![NewEvent::step(EventType::StepCompleted, &id.into(), 1, Some(done))];
        from.commit(Commit { events, ..given::next(&run, 1) }).await;
        from.commit(given::end(&run, 2)).await;
        from.pass(Duration::from_millis(10)).await;
    }
    let day = Duration::from_secs(86_400);
    let policy = Retention { events: Duration::from_millis(15), runs: day };
    from.store.retain(policy, 10).await.expect("retains");
    let (trimmed, whole) = (given::run("kept"), given::run("trimmed"));
    assert!(from.row(&trimmed).await.events_trimmed && !from.row(&whole).await.events_trimmed);
    carry(&from, &f).await;
    assert_eq!(f.row(&trimmed).await, from.row(&trimmed).await);
    assert_eq!((f.log(&trimmed).await.len(), f.log(&whole).await.len()), (0, 3));
    let (left, reports) =
        (from.store.reports(&trimmed).await.expect("tells"), ReportDigests::of(&f.log(&whole).await));
    assert!(left.is_some() && left != Some(ReportDigests::default()));
    assert_eq!(f.store.reports(&trimmed).await.expect("tells"), left);
    assert_eq!(f.store.reports(&whole).await.expect("tells"), None);
    f.pass(Duration::from_millis(50)).await;
    let policy = Retention { events: Duration::from_millis(1), runs: day };
    let done = f.store.retain(policy, 10).await.expect("retains");
    assert_eq!((done.trimmed, done.removed), (1, 0));
    assert_eq!(f.store.reports(&whole).await.expect("tells"), Some(reports));
    let policy = Retention { events: Duration::from_millis(1), runs: Duration::from_millis(1) };
    let done = f.store.retain(policy, 10).await.expect("retains");
    assert_eq!((done.trimmed, done.removed), (0, 2));
    assert_eq!(f.store.counters().await.expect("counts"), []);
    assert_eq!(f.store.feed(FeedFilter::default(), "", 10).await.expect("feeds").events, []);
}

pub async fn what_is_the_latest_and_what_is_retired_is_carried(f: Fixture) {
    let from = source(&f).await;
    let tenant = flowline_core::Tenant::default();
    for (flow, hash) in [("turned-back", "h1"), ("turned-back", "h2"), ("retired", "h3"), ("retired", "h4")] {
        from.store.put_definition(given::definition(&tenant, flow, hash)).await.expect("puts");
    }
    assert!(from.store.set_latest(&tenant, "turned-back", Some("h1")).await.expect("sets"));
    assert!(from.store.set_latest(&tenant, "retired", None).await.expect("sets"));
    carry(&from, &f).await;
    let listed = f.store.definitions(&tenant).await.expect("lists");
    assert_eq!(listed, from.store.definitions(&tenant).await.expect("lists"));
    let latest = f.store.latest(&tenant, "turned-back").await.expect("answers").expect("is there");
    assert_eq!(&*latest.hash, "h1");
    assert_eq!(f.store.latest(&tenant, "retired").await.expect("answers"), None);
}

pub async fn a_log_is_restored_in_parts(f: Fixture) {
    let from = source(&f).await;
    let run = from.started("r", vec![]).await;
    for version in 1..=40 {
        from.commit(Commit { events: given::log_events(7), ..given::next(&run, version) }).await;
        from.pass(Duration::from_millis(version % 3)).await;
    }
    let other = from.started("s", vec![]).await;
    let mut all = parts(&from, &run).await;
    let Some(Restored::Events { mut events, .. }) = all.pop() else { panic!("events come last") };
    events[0].slot = Some(PayloadSlot::Input);
    restore(&f, vec![Restored::Definition(given::definition(&run.tenant, given::FLOW, given::HASH))]).await;
    restore(&f, all).await;
    for (n, part) in events.chunks(97).enumerate() {
        restore(&f, vec![Restored::Events { run: run.clone(), events: part.to_vec() }]).await;
        if n == 0 {
            restore(&f, parts(&from, &other).await).await;
        }
    }
    let log = from.log(&run).await;
    assert_eq!((log.len(), f.log(&run).await), (281, log.clone()));
    for after in [0, 63, 64, 65, 127, 200, 280] {
        let query = crate::EventQuery { after, limit: 5, ..Default::default() };
        let expected = from.store.events(&run, query.clone()).await.expect("pages");
        assert_eq!(f.store.events(&run, query).await.expect("pages"), expected);
    }
    let fed = f.store.feed(FeedFilter::default(), "", 1_000).await.expect("feeds").events;
    let of_run: Vec<_> = fed.into_iter().filter(|event| event.run_id == run.run).collect();
    assert_eq!(of_run, log);
    let input = f.store.payloads_of(&run, &[PayloadSlot::Input]).await.expect("finds");
    assert_eq!(input, [log[0].data.clone()]);
}

pub async fn a_run_that_is_there_is_not_restored_over(f: Fixture) {
    let from = source(&f).await;
    let run = from.started("r", vec![given::step(0)]).await;
    carry(&from, &f).await;
    let before = (f.row(&run).await, f.log(&run).await, f.jobs(&run).await);
    let mut again = parts(&from, &run).await;
    again.truncate(1);
    assert_eq!(f.store.restore(again).await, Err(CommitError::Exists));
    assert_eq!((f.row(&run).await, f.log(&run).await, f.jobs(&run).await), before);
    let total: u64 = f.store.counters().await.expect("counts").iter().map(|counter| counter.count).sum();
    assert_eq!(total, 1);
    assert_eq!(f.claimed_names(&[1, 2]).await.len(), 1);
}

pub async fn a_run_without_its_definition_is_not_restored(f: Fixture) {
    let from = source(&f).await;
    let run = from.started("r", vec![]).await;
    let answer = f.store.restore(parts(&from, &run).await).await;
    assert_eq!(answer, Err(CommitError::UnknownDefinition(given::HASH.into())));
    assert_eq!(f.try_row(&run).await, None);
}

pub async fn values_are_told_with_their_end(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |scope, key: &str, ttl| given::state_line(scope, key, Some(given::json(key.into())), ttl);
    let lines = vec![
        line(StateScope::Run, "short", Some(given::SHORT)),
        line(StateScope::Run, "long", Some(given::TTL)),
        line(StateScope::Run, "always", None),
        line(StateScope::Flow, "flow", None),
        line(StateScope::Tenant, "tenant", Some(given::TTL)),
        line("orders".into(), "named", Some(given::TTL)),
    ];
    let before = f.now().await;
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    let after = f.now().await;
    f.pass(given::LATER).await;
    let told = async |owner: StateOwner| -> Vec<(String, Option<Time>)> {
        let page = f.store.states(&StateSpace::new(&run.tenant, owner), StateQuery::first(10)).await;
        let values = page.expect("tells").values;
        let told = |StateValue { key, value, expires }| {
            assert_eq!(value, given::json(key.as_str().into()));
            (key, expires)
        };
        values.into_iter().map(told).collect()
    };
    let of_run = told(StateOwner::Run(run.run.clone())).await;
    assert_eq!(of_run[0], ("always".to_owned(), None));
    assert_eq!(of_run[1].0, "long");
    let end = of_run[1].1.expect("it ends");
    assert!(before + given::TTL <= end && end <= after + given::TTL, "{end}");
    assert_eq!(of_run.len(), 2, "what has ended is not told");
    assert_eq!(told(StateOwner::Flow(given::FLOW.into())).await, [("flow".to_owned(), None)]);
    for owner in [StateOwner::Tenant, StateOwner::Named("orders".into())] {
        assert_eq!(told(owner).await[0].1, Some(end), "written by the same append");
    }
    assert_eq!(told(StateOwner::Flow("none".into())).await, []);
}

pub async fn documents_are_carried_with_their_end(f: Fixture) {
    let from = source(&f).await;
    let day = Duration::from_secs(86_400);
    for (id, ttl) in [("a", None), ("b", Some(day)), ("c", Some(given::SHORT))] {
        from.put("tokens", id, given::json(id.into()), ttl).await;
    }
    carry(&from, &f).await;
    let carried = documents(&f).await;
    assert_eq!(carried[0].1[..2], documents(&from).await[0].1[..2]);
    assert_eq!(carried[0].1[1].expires, Some(from.now().await + day), "not a day from the move on");
    f.pass(given::LATER).await;
    assert_eq!(f.store.document("tokens", "c").await.expect("answers"), None, "its time is over here too");
    // Carried again, as after a parcel that was sent twice: what comes last counts.
    carry(&from, &f).await;
    assert_eq!(documents(&f).await[0].1.len(), 2);
}

pub async fn a_store_with_anything_in_it_is_not_filled(f: Fixture) {
    assert_eq!(f.store.tenants().await.expect("tells"), []);
    let tenant = given::tenant("other");
    f.store.pause_queue(&tenant, "mail", Pause::Paused).await.expect("pauses");
    assert_eq!(f.store.begin_filling().await, Ok(Filling::NotEmpty), "a paused queue");
    f.store.pause_queue(&tenant, "mail", Pause::Open).await.expect("opens");
    f.put("tokens", "t", given::json("x".into()), None).await;
    assert_eq!(f.store.begin_filling().await, Ok(Filling::NotEmpty), "a document");
    assert!(f.store.delete_document("tokens", "t").await.expect("answers"));
    let over = Some(Duration::ZERO);
    f.put("workers", "w", given::json("x".into()), over).await;
    assert_eq!(f.store.collections().await.expect("tells"), Vec::<String>::new());
    for owner in [StateOwner::Tenant, StateOwner::Named("orders".into())] {
        let space = StateSpace::new(&tenant, owner.clone());
        f.set(&space, "k", Some(given::json("x".into()))).await;
        assert_eq!(f.store.tenants().await.expect("tells"), std::slice::from_ref(&tenant));
        assert_eq!(f.store.begin_filling().await, Ok(Filling::NotEmpty), "a value of {owner}");
        f.set(&space, "k", None).await;
    }
    assert_eq!(f.store.tenants().await.expect("tells"), []);
    let run = f.started("r", vec![given::step(0)]).await;
    let before = (f.row(&run).await, f.log(&run).await, f.jobs(&run).await);
    assert_eq!(f.store.begin_filling().await, Ok(Filling::NotEmpty));
    assert_eq!((f.row(&run).await, f.log(&run).await, f.jobs(&run).await), before);
    assert_eq!(f.store.tenants().await.expect("tells"), [Tenant::default()]);
}

pub async fn a_filling_that_was_broken_off_begins_anew(f: Fixture) {
    let from = source(&f).await;
    let runs = fill(&from).await;
    assert_eq!(f.store.begin_filling().await, Ok(Filling::Begun));
    carry(&from, &f).await;
    assert_eq!(f.store.begin_filling().await, Ok(Filling::Begun), "it was not ended");
    assert_eq!(f.store.tenants().await.expect("tells"), [], "all is gone");
    assert_eq!(documents(&f).await, []);
    assert_eq!(f.store.counters().await.expect("counts"), []);
    for run in &runs {
        assert_eq!((f.try_row(run).await, f.log(run).await), (None, vec![]));
    }
    assert_eq!(f.store.feed(FeedFilter::default(), "", 10).await.expect("feeds").events, []);
    assert_eq!(f.store.sweep(10).await.expect("sweeps").timers, []);
    assert_eq!(f.claimed_names(&[1, 2]).await, Vec::<String>::new());
    carry(&from, &f).await;
    f.store.end_filling().await.expect("ends");
    alike(&f, &from, &runs).await;
    assert_eq!(f.store.begin_filling().await, Ok(Filling::NotEmpty), "now it is a store of its own");
}
