//! The feed: events of many runs, none skipped, none twice.

use flowline_core::{Event, EventType, RunKey};

use super::{Fixture, given};
use crate::{Base, Commit, FeedFilter, FeedPage, NewRun, StoreError};

async fn read(f: &Fixture, filter: &FeedFilter, cursor: &str, limit: usize) -> FeedPage {
    f.store.feed(filter.clone(), cursor, limit).await.expect("the feed answers")
}

/// Reads on until there is no more; gives the events and the last cursor.
async fn drain(f: &Fixture, filter: &FeedFilter, mut cursor: String, limit: usize) -> (Vec<Event>, String) {
    let mut events = Vec::new();
    loop {
        let page = read(f, filter, &cursor, limit).await;
        assert!(page.events.len() <= limit);
        events.extend(page.events);
        cursor = page.cursor;
        if !page.more {
            return (events, cursor);
        }
    }
}

fn of_run(events: &[Event], run: &RunKey) -> Vec<Event> {
    events.iter().filter(|event| event.run_id == run.run && event.tenant == run.tenant).cloned().collect()
}

pub async fn the_feed_gives_every_event_once_in_order_per_run(f: Fixture) {
    let (a, job) = f.leased("a").await;
    let b = f.started("b", vec![]).await;
    for version in 1..4 {
        f.commit(Commit { events: given::log_events(2), ..given::next(&a, version) }).await;
        f.append(given::append(&job, version as u32 - 1, vec![given::log_line("x")])).await.expect("appends");
        f.commit(Commit { events: given::log_events(1), ..given::next(&b, version) }).await;
    }
    for limit in [1, 3, 1_000] {
        let (events, _) = drain(&f, &FeedFilter::default(), String::new(), limit).await;
        assert_eq!(of_run(&events, &a), f.log(&a).await);
        assert_eq!(of_run(&events, &b), f.log(&b).await);
        assert_eq!(events.len(), 10 + 4);
    }
}

pub async fn a_cursor_goes_on_where_it_was_given(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let (first, cursor) = drain(&f, &FeedFilter::default(), String::new(), 10).await;
    assert_eq!(first, f.log(&run).await);
    let idle = read(&f, &FeedFilter::default(), &cursor, 10).await;
    assert_eq!((idle.events, idle.more), (vec![], false));
    f.commit(Commit { events: given::log_events(2), ..given::next(&run, 1) }).await;
    let page = read(&f, &FeedFilter::default(), &idle.cursor, 10).await;
    assert_eq!(page.events, f.log(&run).await[1..]);
    let again = read(&f, &FeedFilter::default(), &cursor, 10).await;
    assert_eq!(again.events, page.events, "an old cursor still works");
}

pub async fn a_page_within_a_commit_goes_on_within_it(f: Fixture) {
    let run = f.started("r", vec![]).await;
    f.commit(Commit { events: given::log_events(7), ..given::next(&run, 1) }).await;
    let page = read(&f, &FeedFilter::default(), "", 3).await;
    assert_eq!((page.events.len(), page.more), (3, true));
    let (rest, _) = drain(&f, &FeedFilter::default(), page.cursor, 3).await;
    assert_eq!(rest, f.log(&run).await[3..]);
}

pub async fn every_event_has_a_cursor_that_goes_on_right_after_it(f: Fixture) {
    let (a, b) = (f.started("a", vec![]).await, f.started("b", vec![]).await);
    for version in 1..4 {
        f.commit(Commit { events: given::log_events(3), ..given::next(&a, version) }).await;
        f.commit(Commit { events: given::log_events(1), ..given::next(&b, version) }).await;
    }
    let logs = FeedFilter { kinds: vec![EventType::Log], ..Default::default() };
    for (filter, limit) in [(FeedFilter::default(), 1_000), (FeedFilter::default(), 4), (logs, 1_000)] {
        let page = read(&f, &filter, "", limit).await;
        let (all, _) = drain(&f, &filter, String::new(), 1_000).await;
        assert_eq!(page.cursors.len(), page.events.len());
        for (given, cursor) in (1..).zip(page.cursors) {
            let (rest, _) = drain(&f, &filter, cursor.clone(), 1_000).await;
            assert_eq!(rest, all[given..], "after {cursor}");
        }
    }
}

pub async fn from_now_gives_only_the_end(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let from_now = FeedFilter { from_now: true, ..FeedFilter::default() };
    let end = read(&f, &from_now, "", 10).await;
    assert_eq!((end.events, end.more), (vec![], false));
    f.commit(Commit { events: given::log_events(1), ..given::next(&run, 1) }).await;
    let page = read(&f, &from_now, &end.cursor, 10).await;
    assert_eq!(page.events, f.log(&run).await[1..]);
}

pub async fn from_now_on_an_empty_store_misses_nothing(f: Fixture) {
    let from_now = FeedFilter { from_now: true, ..FeedFilter::default() };
    let end = read(&f, &from_now, "", 10).await;
    let run = f.started("r", vec![]).await;
    let page = read(&f, &from_now, &end.cursor, 10).await;
    assert_eq!(page.events, f.log(&run).await);
}

pub async fn the_feed_is_filtered_by_tenant_flow_and_type(f: Fixture) {
    let here = f.started("r", vec![]).await;
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    let new = NewRun { flow: "second".into(), ..given::new_run() };
    f.commit(Commit { base: Base::New(new), ..given::start(&there) }).await;
    f.commit(Commit { events: given::log_events(2), ..given::next(&here, 1) }).await;
    f.commit(Commit { events: given::log_events(2), ..given::next(&there, 1) }).await;
    let (here, there) = (f.log(&here).await, f.log(&there).await);
    for (filter, expected) in [
        (FeedFilter { tenant: Some(given::tenant("other")), ..Default::default() }, there.clone()),
        (FeedFilter { tenant: Some(given::tenant("third")), ..Default::default() }, vec![]),
        (FeedFilter { flow: Some(given::FLOW.into()), ..Default::default() }, here.clone()),
        (
            FeedFilter { kinds: vec![EventType::FlowStart], ..Default::default() },
            vec![here[0].clone(), there[0].clone()],
        ),
        (
            FeedFilter {
                tenant: Some(given::tenant("other")),
                flow: Some("second".into()),
                kinds: vec![EventType::Log, EventType::Emit],
                from_now: false,
            },
            there[1..].to_vec(),
        ),
    ] {
        for limit in [1, 100] {
            let (mut found, _) = drain(&f, &filter, String::new(), limit).await;
            // The order is promised per run.
            found.sort_by_key(|event| (event.tenant.clone(), event.run_id.clone()));
            assert_eq!(found, expected, "{filter:?}");
        }
    }
}

pub async fn the_cursor_moves_past_what_the_filter_leaves_out(f: Fixture) {
    let run = f.started("r", vec![]).await;
    f.commit(Commit { events: given::log_events(50), ..given::next(&run, 1) }).await;
    let starts = FeedFilter { kinds: vec![EventType::FlowCompleted], ..Default::default() };
    let (events, cursor) = drain(&f, &starts, String::new(), 10).await;
    assert_eq!(events, []);
    let (rest, _) = drain(&f, &FeedFilter::default(), cursor, 10).await;
    assert_eq!(rest, []);
}

pub async fn a_feed_cursor_that_is_none_is_refused(f: Fixture) {
    for bad in ["x", "-1", "1e3", "{}"] {
        let answer = f.store.feed(FeedFilter::default(), bad, 10).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{bad:?} gave {answer:?}");
    }
}

/// Such as one of a store that was here before, or of this one before it lost its end: what comes next would be skipped.
pub async fn a_feed_cursor_beyond_the_end_is_refused(f: Fixture) {
    f.started("r", vec![]).await;
    let (_, end) = drain(&f, &FeedFilter::default(), String::new(), 10).await;
    let digits = end.find(|c: char| !c.is_ascii_digit()).unwrap_or(end.len());
    let beyond = format!("999999999{}", &end[digits..]);
    let answer = f.store.feed(FeedFilter::default(), &beyond, 10).await;
    assert!(matches!(answer, Err(StoreError::Invalid(_))), "{beyond:?} gave {answer:?}");
    assert_eq!(read(&f, &FeedFilter::default(), &end, 10).await.events, []);
}

pub async fn a_reader_beside_racing_writers_misses_nothing(f: Fixture) {
    f.define(&given::run("r")).await;
    let write = |n: usize| {
        let f = f.clone();
        tokio::spawn(async move {
            let run = given::run(&format!("r{n}"));
            f.commit(given::start(&run)).await;
            for version in 1..6 {
                f.commit(Commit { events: given::log_events(2), ..given::next(&run, version) }).await;
            }
            run
        })
    };
    let writers: Vec<_> = (0..8).map(write).collect();
    let (mut events, mut cursor) = (Vec::new(), String::new());
    while events.len() < 8 * 11 {
        let (more, next) = drain(&f, &FeedFilter::default(), cursor, 7).await;
        events.extend(more);
        cursor = next;
        tokio::task::yield_now().await;
    }
    assert_eq!(events.len(), 8 * 11);
    for writer in writers {
        let run = writer.await.expect("no panic");
        assert_eq!(of_run(&events, &run), f.log(&run).await);
    }
}
