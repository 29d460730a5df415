//! Receipts: written by commits alone, listed newest first, gone with their run.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::{Json, RunKey, Tenant, Time};

use super::{Fixture, given};
use crate::row::Retention;
use crate::{
    Commit, CommitError, Opened, Receipt, ReceiptChange, ReceiptPage, ReceiptQuery, ReceiptStatus, StoreError,
};

const TICK: Duration = Duration::from_millis(3);

fn all() -> ReceiptQuery {
    ReceiptQuery::of(Tenant::default())
}

fn opened(number: u32) -> ReceiptChange {
    let event = Opened { event_id: format!("e{number}").into(), name: "approve".into(), sender: None };
    ReceiptChange { opened: Some(event), ..changed(number, ReceiptStatus::Pending) }
}

fn changed(number: u32, status: ReceiptStatus) -> ReceiptChange {
    ReceiptChange { number, opened: None, status, worker: None, outcome: None }
}

fn worked_on(number: u32, status: ReceiptStatus, worker: &str) -> ReceiptChange {
    ReceiptChange { worker: Some(worker.into()), ..changed(number, status) }
}

/// Commits changes on top of a version, and gives the date.
async fn change(f: &Fixture, run: &RunKey, version: u64, receipts: Vec<ReceiptChange>) -> Time {
    f.commit(Commit { receipts, ..given::next(run, version) }).await.ts
}

/// A run whose first commit opens receipts 0 to `count` - 1.
async fn started(f: &Fixture, run: &RunKey, count: u32) -> Time {
    f.define(run).await;
    let receipts = (0..count).map(opened).collect();
    f.commit(Commit { receipts, ..given::start(run) }).await.ts
}

async fn get(f: &Fixture, run: &RunKey, event_id: &str) -> Option<Receipt> {
    f.store.receipt(run, event_id).await.expect("the store answers")
}

async fn page(f: &Fixture, query: ReceiptQuery) -> ReceiptPage {
    f.store.receipts(query).await.expect("the store lists receipts")
}

/// Where receipts are from, in the order of the list.
fn shown(page: &ReceiptPage) -> Vec<(String, u32)> {
    page.items.iter().map(|receipt| (receipt.run_id.to_string(), receipt.number)).collect()
}

fn places(of: &[(&str, u32)]) -> Vec<(String, u32)> {
    of.iter().map(|(run, number)| ((*run).to_owned(), *number)).collect()
}

fn json(text: &str) -> Json {
    given::json(text.into())
}

pub async fn a_receipt_opens_with_its_commit(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let sender = Json::parse(r#"{"user": "ann",  "role": "manager"}"#).expect("is JSON");
    let event = Opened { event_id: "e".into(), name: "approve".into(), sender: Some(sender.clone()) };
    let change = ReceiptChange { opened: Some(event), ..changed(7, ReceiptStatus::Pending) };
    let ts = f.commit(Commit { receipts: vec![change], ..given::start(&run) }).await.ts;
    let expected = Receipt {
        event_id: "e".into(),
        run_id: run.run.clone(),
        flow_name: given::FLOW.into(),
        tenant: run.tenant.clone(),
        number: 7,
        name: "approve".into(),
        sender: Some(sender),
        status: ReceiptStatus::Pending,
        worker: None,
        received_at: ts,
        started_at: None,
        completed_at: None,
        outcome: None,
    };
    assert_eq!(get(&f, &run, "e").await.as_ref(), Some(&expected));
    assert_eq!(page(&f, all()).await, ReceiptPage { items: vec![expected], next: None });
}

pub async fn a_receipt_that_is_not_there_is_none(f: Fixture) {
    let run = given::run("r");
    started(&f, &run, 1).await;
    assert_eq!(get(&f, &run, "e1").await, None);
    assert_eq!(get(&f, &given::run("none"), "e0").await, None);
    assert_eq!(get(&f, &given::run_of(&given::tenant("other"), "r"), "e0").await, None);
    let none = ReceiptQuery { run: Some(given::run("none").run), ..all() };
    assert_eq!(page(&f, none).await, ReceiptPage { items: vec![], next: None });
}

pub async fn the_receipt_of_an_event_is_filtered_like_others_and_needs_its_run(f: Fixture) {
    let run = given::run("r");
    started(&f, &run, 3).await;
    let one = ReceiptQuery::only(&run, "e1");
    assert_eq!(shown(&page(&f, one.clone()).await), places(&[("r", 1)]));
    let status = Some(ReceiptStatus::Completed);
    assert_eq!(shown(&page(&f, ReceiptQuery { status, ..one.clone() }).await), []);
    let of_run = ReceiptQuery { run: Some(run.run.clone()), limit: 1, ..all() };
    let after = page(&f, of_run).await.next;
    assert_eq!(
        shown(&page(&f, ReceiptQuery { after: after.clone(), ..one.clone() }).await),
        places(&[("r", 1)])
    );
    let passed = ReceiptQuery { event_id: Some("e2".to_owned()), after, ..one.clone() };
    assert_eq!(shown(&page(&f, passed).await), [], "it was on the page before");
    let anywhere = f.store.receipts(ReceiptQuery { run: None, ..one }).await;
    assert!(matches!(anywhere, Err(StoreError::Invalid(_))), "{anywhere:?}");
}

pub async fn a_receipt_goes_on_with_the_commits_that_say_so(f: Fixture) {
    let run = given::run("r");
    let received = started(&f, &run, 2).await;
    f.pass(TICK).await;
    let began = change(&f, &run, 1, vec![worked_on(0, ReceiptStatus::Processing, "w1")]).await;
    let receipt = get(&f, &run, "e0").await.expect("is there");
    assert_eq!((receipt.status, receipt.worker.as_deref()), (ReceiptStatus::Processing, Some("w1")));
    assert_eq!((receipt.received_at, receipt.started_at), (received, Some(began)));
    assert_eq!((receipt.completed_at, receipt.outcome), (None, None));
    f.pass(TICK).await;
    let outcome = Some(json("done"));
    let done = ReceiptChange { outcome: outcome.clone(), ..changed(0, ReceiptStatus::Completed) };
    let ended = change(&f, &run, 2, vec![done]).await;
    let receipt = get(&f, &run, "e0").await.expect("is there");
    assert_eq!((receipt.status, receipt.worker.as_deref()), (ReceiptStatus::Completed, Some("w1")));
    assert_eq!((receipt.started_at, receipt.completed_at), (Some(began), Some(ended)));
    assert_eq!((receipt.received_at, receipt.outcome), (received, outcome));
    let other = get(&f, &run, "e1").await.expect("is there");
    assert_eq!((other.status, other.started_at), (ReceiptStatus::Pending, None), "not touched");
}

pub async fn a_receipt_finished_at_once_has_all_its_dates(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let change = ReceiptChange {
        status: ReceiptStatus::Failed,
        worker: Some("w".into()),
        outcome: Some(json("rejected")),
        ..opened(0)
    };
    let ts = f.commit(Commit { receipts: vec![change], ..given::start(&run) }).await.ts;
    let receipt = get(&f, &run, "e0").await.expect("is there");
    assert_eq!(receipt.received_at, ts);
    assert_eq!((receipt.started_at, receipt.completed_at), (Some(ts), Some(ts)));
    assert_eq!((receipt.worker.as_deref(), receipt.outcome), (Some("w"), Some(json("rejected"))));
}

pub async fn what_a_change_does_not_say_stays(f: Fixture) {
    let run = given::run("r");
    started(&f, &run, 1).await;
    let outcome = Some(json("first"));
    let first = ReceiptChange { outcome, ..worked_on(0, ReceiptStatus::Processing, "w1") };
    let began = change(&f, &run, 1, vec![first]).await;
    f.pass(TICK).await;
    // Its worker was lost, and another takes it up.
    change(&f, &run, 2, vec![changed(0, ReceiptStatus::Pending)]).await;
    let receipt = get(&f, &run, "e0").await.expect("is there");
    assert_eq!((receipt.status, receipt.started_at), (ReceiptStatus::Pending, Some(began)));
    assert_eq!((receipt.worker.as_deref(), receipt.outcome), (Some("w1"), Some(json("first"))));
    change(&f, &run, 3, vec![worked_on(0, ReceiptStatus::Processing, "w2")]).await;
    let receipt = get(&f, &run, "e0").await.expect("is there");
    assert_eq!((receipt.status, receipt.started_at), (ReceiptStatus::Processing, Some(began)));
    assert_eq!((receipt.worker.as_deref(), receipt.outcome), (Some("w2"), Some(json("first"))));
    let of = |worker: &str| ReceiptQuery { worker: Some(worker.to_owned()), ..all() };
    assert_eq!(shown(&page(&f, of("w1")).await), []);
    assert_eq!(shown(&page(&f, of("w2")).await), places(&[("r", 0)]));
}

pub async fn a_refused_commit_changes_no_receipt(f: Fixture) {
    let run = given::run("r");
    started(&f, &run, 1).await;
    let before = page(&f, all()).await;
    let receipts = vec![worked_on(0, ReceiptStatus::Processing, "w"), opened(1)];
    let refused = f.refused(Commit { receipts: receipts.clone(), ..given::next(&run, 2) }).await;
    assert_eq!(refused, CommitError::Conflict { expected: 2, found: Some(1) });
    assert_eq!(f.refused(Commit { receipts, ..given::start(&run) }).await, CommitError::Exists);
    assert_eq!((page(&f, all()).await, get(&f, &run, "e1").await), (before, None));
}

pub async fn a_change_of_a_receipt_that_is_not_there_is_passed_over(f: Fixture) {
    let run = given::run("r");
    started(&f, &run, 1).await;
    change(&f, &run, 1, vec![worked_on(9, ReceiptStatus::Completed, "w")]).await;
    assert_eq!(shown(&page(&f, all()).await), places(&[("r", 0)]));
    let of = ReceiptQuery { worker: Some("w".into()), ..all() };
    assert_eq!(shown(&page(&f, of).await), []);
}

pub async fn receipts_are_listed_newest_first(f: Fixture) {
    // Neither the ids of runs nor their age tell the order: the date of the receipt does.
    let (a, b) = (given::run("a"), given::run("b"));
    started(&f, &b, 0).await;
    started(&f, &a, 2).await;
    f.pass(TICK).await;
    change(&f, &b, 1, vec![opened(0)]).await;
    f.pass(TICK).await;
    change(&f, &a, 1, vec![opened(2)]).await;
    f.pass(TICK).await;
    change(&f, &b, 2, vec![changed(0, ReceiptStatus::Completed)]).await;
    assert_eq!(shown(&page(&f, all()).await), places(&[("a", 2), ("b", 0), ("a", 1), ("a", 0)]));
    let of_run = ReceiptQuery { run: Some(a.run.clone()), ..all() };
    assert_eq!(shown(&page(&f, of_run).await), places(&[("a", 2), ("a", 1), ("a", 0)]));
    for receipt in page(&f, all()).await.items {
        let run = RunKey::new(receipt.tenant.clone(), receipt.run_id.clone());
        assert_eq!(get(&f, &run, &receipt.event_id).await, Some(receipt), "a list shows them as they are");
    }
}

pub async fn pages_of_receipts_join_without_gap_or_repeat(f: Fixture) {
    for id in ["a", "b", "c"] {
        started(&f, &given::run(id), 4).await;
        // Many of one date, some later than others.
        f.pass(if id == "b" { TICK } else { Duration::ZERO }).await;
    }
    let done = |n| worked_on(n, ReceiptStatus::Completed, "w");
    change(&f, &given::run("b"), 1, vec![done(1), done(3)]).await;
    let of_run = |id: &str| ReceiptQuery { run: Some(given::run(id).run), ..all() };
    let by_worker = ReceiptQuery { worker: Some("w".into()), ..all() };
    let pending = ReceiptQuery { status: Some(ReceiptStatus::Pending), ..all() };
    for (query, count) in [(all(), 12), (of_run("c"), 4), (by_worker, 2), (pending, 10)] {
        let whole = page(&f, ReceiptQuery { limit: 100, ..query.clone() }).await;
        assert_eq!((whole.items.len(), &whole.next), (count, &None));
        for limit in [1, 3, 4, 11, 12] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = page(&f, ReceiptQuery { limit, after, ..query.clone() }).await;
                assert!(page.items.len() == limit || page.next.is_none(), "a page is full, or the last");
                assert!(!page.items.is_empty(), "a page that was promised has something");
                seen.extend(page.items);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, whole.items);
        }
    }
    // What comes in meanwhile does not disturb the pages behind.
    let first = page(&f, ReceiptQuery { limit: 5, ..all() }).await;
    f.pass(TICK).await;
    change(&f, &given::run("a"), 1, vec![opened(4)]).await;
    let rest = page(&f, ReceiptQuery { limit: 100, after: first.next, ..all() }).await;
    assert_eq!(rest.items.len(), 7);
}

pub async fn a_page_of_receipts_is_bounded(f: Fixture) {
    let run = given::run("r");
    started(&f, &run, 1_005).await;
    for query in [all(), ReceiptQuery { run: Some(run.run.clone()), ..all() }] {
        let first = page(&f, ReceiptQuery { limit: usize::MAX, ..query.clone() }).await;
        assert_eq!((first.items.len(), first.items[0].number), (1_000, 1_004));
        let rest = page(&f, ReceiptQuery { limit: usize::MAX, after: first.next, ..query.clone() }).await;
        assert_eq!((rest.items.len(), rest.next), (5, None));
        assert_eq!(page(&f, ReceiptQuery { limit: 0, ..query }).await.items.len(), 1);
    }
}

pub async fn receipts_are_filtered_by_run_status_and_worker(f: Fixture) {
    let (a, b) = (given::run("a"), given::run("b"));
    started(&f, &a, 4).await;
    f.pass(TICK).await;
    started(&f, &b, 3).await;
    let on = worked_on;
    let of_a = vec![
        on(0, ReceiptStatus::Completed, "w1"),
        on(1, ReceiptStatus::Failed, "w2"),
        on(2, ReceiptStatus::Processing, "w1"),
    ];
    change(&f, &a, 1, of_a).await;
    change(&f, &b, 1, vec![on(0, ReceiptStatus::Completed, "w2"), changed(1, ReceiptStatus::Failed)]).await;
    let (completed, failed) = (Some(ReceiptStatus::Completed), Some(ReceiptStatus::Failed));
    let (w1, w2) = (Some("w1".to_owned()), Some("w2".to_owned()));
    let run = Some(a.run.clone());
    for (query, expected) in [
        (ReceiptQuery { status: completed, ..all() }, vec![("b", 0), ("a", 0)]),
        (ReceiptQuery { status: failed, ..all() }, vec![("b", 1), ("a", 1)]),
        (ReceiptQuery { status: Some(ReceiptStatus::Pending), ..all() }, vec![("b", 2), ("a", 3)]),
        (ReceiptQuery { status: Some(ReceiptStatus::Processing), ..all() }, vec![("a", 2)]),
        (ReceiptQuery { worker: w1.clone(), ..all() }, vec![("a", 2), ("a", 0)]),
        (ReceiptQuery { worker: w2.clone(), ..all() }, vec![("b", 0), ("a", 1)]),
        (ReceiptQuery { worker: w1.clone(), status: completed, ..all() }, vec![("a", 0)]),
        (ReceiptQuery { worker: w1.clone(), status: failed, ..all() }, vec![]),
        (ReceiptQuery { worker: Some("none".into()), ..all() }, vec![]),
        (ReceiptQuery { run: run.clone(), status: failed, ..all() }, vec![("a", 1)]),
        (ReceiptQuery { run: run.clone(), worker: w1.clone(), ..all() }, vec![("a", 2), ("a", 0)]),
        (ReceiptQuery { run, worker: w1, status: completed, ..all() }, vec![("a", 0)]),
    ] {
        assert_eq!(shown(&page(&f, query.clone()).await), places(&expected), "{query:?}");
    }
}

pub async fn tenants_do_not_see_each_others_receipts(f: Fixture) {
    let other = given::tenant("other");
    let (here, there) = (given::run("r"), given::run_of(&other, "r"));
    started(&f, &here, 2).await;
    started(&f, &there, 1).await;
    change(&f, &there, 1, vec![worked_on(0, ReceiptStatus::Failed, "w")]).await;
    assert_eq!(page(&f, all()).await.items.len(), 2);
    let theirs = page(&f, ReceiptQuery::of(other.clone())).await.items;
    assert_eq!((theirs.len(), &theirs[0].tenant), (1, &other));
    assert_eq!(shown(&page(&f, ReceiptQuery { worker: Some("w".into()), ..all() }).await), []);
    let of_run = ReceiptQuery { run: Some(here.run.clone()), ..ReceiptQuery::of(other) };
    assert_eq!(page(&f, of_run).await.items, theirs);
    assert_eq!(get(&f, &there, "e1").await, None);
}

pub async fn strange_texts_in_receipts_come_back(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let change = |(n, text): (usize, &&str)| {
        let event = Opened { event_id: Arc::from(*text), name: Arc::from(*text), sender: Some(json(text)) };
        let worker = Some(Arc::from(*text));
        ReceiptChange { opened: Some(event), worker, outcome: Some(json(text)), ..opened(n as u32) }
    };
    let receipts = given::STRANGE.iter().enumerate().map(change).collect();
    f.commit(Commit { receipts, ..given::start(&run) }).await;
    for (n, text) in given::STRANGE.iter().enumerate() {
        let receipt = get(&f, &run, text).await.expect("is there");
        assert_eq!((receipt.number, &*receipt.event_id, &*receipt.name), (n as u32, *text, *text));
        assert_eq!((receipt.sender.clone(), receipt.outcome.clone()), (Some(json(text)), Some(json(text))));
        let by_worker = page(&f, ReceiptQuery { worker: Some((*text).to_owned()), ..all() }).await;
        assert_eq!(by_worker.items, [receipt], "{text:?}");
    }
}

pub async fn receipts_stay_with_a_trimmed_run_and_go_with_its_row(f: Fixture) {
    let (run, kept) = (given::run("r"), given::run("kept"));
    started(&f, &kept, 1).await;
    started(&f, &run, 3).await;
    let receipts = vec![worked_on(0, ReceiptStatus::Completed, "w"), opened(3)];
    f.commit(Commit { receipts, ..given::end(&run, 1) }).await;
    f.pass(given::LATER).await;
    let hour = Duration::from_secs(3_600);
    f.store.retain(Retention { events: given::SHORT, runs: hour }, 10).await.expect("retains");
    assert_eq!(page(&f, all()).await.items.len(), 5, "its row is there still");
    f.store.retain(Retention { events: given::SHORT, runs: given::SHORT }, 10).await.expect("retains");
    assert_eq!(shown(&page(&f, all()).await), places(&[("kept", 0)]));
    assert_eq!(get(&f, &run, "e0").await, None);
    for query in [
        ReceiptQuery { run: Some(run.run.clone()), ..all() },
        ReceiptQuery { worker: Some("w".into()), ..all() },
        ReceiptQuery { status: Some(ReceiptStatus::Completed), ..all() },
    ] {
        assert_eq!(shown(&page(&f, query).await), []);
    }
    started(&f, &run, 1).await;
    assert_eq!(page(&f, ReceiptQuery { run: Some(run.run), ..all() }).await.items.len(), 1, "its id is free");
}

pub async fn a_receipt_cursor_that_is_none_is_refused(f: Fixture) {
    let run = given::run("r");
    started(&f, &run, 1).await;
    for after in ["", "x", "1", "1.2.", "1.x.3", "-"] {
        for run in [None, Some(run.run.clone())] {
            let answer = f.store.receipts(ReceiptQuery { after: Some(after.into()), run, ..all() }).await;
            assert!(matches!(answer, Err(StoreError::Invalid(_))), "{after:?}: {answer:?}");
        }
    }
}
