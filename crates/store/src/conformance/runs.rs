//! Lists of runs: newest first, paged by key, with totals.

use std::time::Duration;

use flowline_core::{Status, Tenant, Time};

use super::{Fixture, given};
use crate::query::{EXACT_TOTAL, WantTotal};
use crate::{Base, Commit, Index, NewRun, RunPage, RunQuery, RunRow, StoreError, Total};

fn all() -> RunQuery {
    RunQuery::of(Tenant::default())
}

fn ids(page: &RunPage) -> Vec<String> {
    page.items.iter().map(|row| row.run_id.to_string()).collect()
}

async fn page(f: &Fixture, query: RunQuery) -> RunPage {
    f.store.runs(query).await.expect("the store lists runs")
}

/// Starts a run of a flow with one label.
async fn start(f: &Fixture, id: &str, flow: &str, label: (&str, &str)) {
    let run = given::run(id);
    f.define(&run).await;
    let labels = [(label.0.to_owned(), label.1.to_owned())].into();
    let new = NewRun { flow: flow.into(), labels, ..given::new_run() };
    f.commit(Commit { base: Base::New(new), ..given::start(&run) }).await;
}

pub async fn runs_are_listed_newest_first(f: Fixture) {
    // Neither the ids nor the dates tell the order: creation does.
    for id in ["m", "z", "a", "k"] {
        f.started(id, vec![]).await;
    }
    f.commit(given::next(&given::run("m"), 1)).await;
    let found = page(&f, all()).await;
    assert_eq!(ids(&found), ["k", "a", "z", "m"]);
    assert_eq!((found.total, &found.next), (Some(Total::Exact(4)), &None));
    for row in &found.items {
        assert_eq!(Some(row), f.try_row(&row.key()).await.as_ref(), "a list shows rows as they are");
    }
}

pub async fn an_empty_store_lists_nothing(f: Fixture) {
    let nothing = RunPage { items: vec![], total: Some(Total::Exact(0)), next: None };
    assert_eq!(page(&f, all()).await, nothing);
}

pub async fn pages_join_without_gap_or_repeat(f: Fixture) {
    for n in 0..10 {
        f.started(&format!("r{n}"), vec![]).await;
    }
    let first = page(&f, RunQuery { limit: 4, ..all() }).await;
    f.started("newer", vec![]).await;
    let second = page(&f, RunQuery { limit: 4, cursor: first.next.clone(), ..all() }).await;
    let third = page(&f, RunQuery { limit: 4, cursor: second.next.clone(), ..all() }).await;
    assert_eq!(ids(&first), ["r9", "r8", "r7", "r6"]);
    assert_eq!(ids(&second), ["r5", "r4", "r3", "r2"]);
    assert_eq!(ids(&third), ["r1", "r0"]);
    assert_eq!(third.next, None);
    assert_eq!((first.total, third.total), (Some(Total::Exact(10)), Some(Total::Exact(11))));
}

pub async fn a_full_last_page_has_no_next(f: Fixture) {
    for n in 0..4 {
        f.started(&format!("r{n}"), vec![]).await;
    }
    let first = page(&f, RunQuery { limit: 2, ..all() }).await;
    assert!(first.next.is_some());
    let last = page(&f, RunQuery { limit: 2, cursor: first.next, ..all() }).await;
    assert_eq!((ids(&last), last.next), (vec!["r1".to_owned(), "r0".to_owned()], None));
}

pub async fn a_page_of_runs_is_bounded(f: Fixture) {
    f.define(&given::run("r")).await;
    let starts = (0..1_005).map(|n| given::start(&given::run(&format!("r{n}"))));
    f.store.commit(starts.collect()).await.expect("the store answers");
    let found = page(&f, RunQuery { limit: usize::MAX, ..all() }).await;
    assert_eq!((found.items.len(), found.total), (1_000, Some(Total::Exact(1_005))));
    let rest = page(&f, RunQuery { limit: usize::MAX, cursor: found.next, ..all() }).await;
    assert_eq!((rest.items.len(), rest.next), (5, None));
    assert_eq!(page(&f, RunQuery { limit: 0, ..all() }).await.items.len(), 1);
}

pub async fn runs_are_filtered_by_flow_and_status(f: Fixture) {
    for (id, flow) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x"), ("e", "y")] {
        start(&f, id, flow, ("k", "v")).await;
    }
    for id in ["a", "c", "e"] {
        f.commit(given::end(&given::run(id), 1)).await;
    }
    let (x, done) = (Some("x".to_owned()), Some(Status::Completed));
    for (query, expected) in [
        (RunQuery { flow: x.clone(), ..all() }, vec!["d", "c", "a"]),
        (RunQuery { status: done, ..all() }, vec!["e", "c", "a"]),
        (RunQuery { status: Some(Status::Running), ..all() }, vec!["d", "b"]),
        (RunQuery { flow: x.clone(), status: done, ..all() }, vec!["c", "a"]),
        (RunQuery { flow: Some("none".into()), ..all() }, vec![]),
        (RunQuery { status: Some(Status::Failed), ..all() }, vec![]),
    ] {
        let found = page(&f, query).await;
        assert_eq!(ids(&found), expected);
        assert_eq!(found.total, Some(Total::Exact(expected.len() as u64)));
    }
    let first = page(&f, RunQuery { flow: x.clone(), status: done, limit: 1, ..all() }).await;
    let next = page(&f, RunQuery { flow: x, status: done, limit: 1, cursor: first.next, ..all() }).await;
    assert_eq!((ids(&next), next.next), (vec!["a".to_owned()], None));
}

pub async fn runs_are_filtered_by_state_within_their_flow(f: Fixture) {
    for (id, flow) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x"), ("e", "y"), ("f", "x")] {
        start(&f, id, flow, ("k", id)).await;
        let index = Index { state: Some("review".into()), ..given::index(Status::Waiting) };
        f.commit(Commit { index, ..given::next(&given::run(id), 1) }).await;
    }
    start(&f, "flow", "x", ("k", "v")).await;
    for (id, state, status) in
        [("c", "review", Status::Running), ("d", "paid", Status::Waiting), ("f", "review", Status::Cancelled)]
    {
        let index = Index { state: Some(state.into()), ..given::index(status) };
        f.commit(Commit { index, ..given::next(&given::run(id), 2) }).await;
    }
    let of = |flow: &str, state: &str| RunQuery {
        flow: Some(flow.to_owned()),
        state: Some(state.to_owned()),
        ..all()
    };
    let label = Some(("k".to_owned(), "a".to_owned()));
    for (query, expected) in [
        (of("x", "review"), vec!["f", "c", "a"]),
        (RunQuery { status: Some(Status::Waiting), ..of("x", "review") }, vec!["a"]),
        (RunQuery { status: Some(Status::Failed), ..of("x", "review") }, vec![]),
        (RunQuery { label, ..of("x", "review") }, vec!["a"]),
        (of("x", "paid"), vec!["d"]),
        (of("y", "review"), vec!["e", "b"]),
        (of("y", "paid"), vec![]),
    ] {
        let found = page(&f, query).await;
        assert_eq!(ids(&found), expected);
        assert_eq!(found.total, Some(Total::Exact(expected.len() as u64)));
    }
    let by_flow = page(&f, RunQuery { flow: Some("x".into()), ..all() }).await;
    assert_eq!(by_flow.total, Some(Total::Exact(5)), "a flow's total is over all its states");
    let waiting = page(&f, RunQuery { status: Some(Status::Waiting), ..all() }).await;
    assert_eq!(waiting.total, Some(Total::Exact(4)), "and so is a status's");
    let first = page(&f, RunQuery { limit: 2, ..of("x", "review") }).await;
    assert_eq!(ids(&first), ["f", "c"]);
    let next = page(&f, RunQuery { limit: 2, cursor: first.next, ..of("x", "review") }).await;
    assert_eq!((ids(&next), next.next), (vec!["a".to_owned()], None));
}

pub async fn a_state_without_its_flow_is_refused(f: Fixture) {
    let answer = f.store.runs(RunQuery { state: Some("review".into()), ..all() }).await;
    assert!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
}

pub async fn runs_are_filtered_by_label(f: Fixture) {
    for (n, text) in given::STRANGE.iter().enumerate() {
        start(&f, &format!("v{n}"), "x", ("key", text)).await;
        start(&f, &format!("k{n}"), "x", (text, "value")).await;
    }
    for (n, text) in given::STRANGE.iter().enumerate() {
        let by_value = RunQuery { label: Some(("key".into(), text.to_string())), ..all() };
        let found = page(&f, by_value).await;
        assert_eq!((ids(&found), found.total), (vec![format!("v{n}")], Some(Total::Exact(1))), "{text:?}");
        let by_key = RunQuery { label: Some((text.to_string(), "value".into())), ..all() };
        let found = page(&f, by_key).await;
        assert_eq!((ids(&found), found.total), (vec![format!("k{n}")], Some(Total::Exact(1))), "{text:?}");
    }
    let none = RunQuery { label: Some(("key".into(), "value".into())), ..all() };
    assert_eq!(ids(&page(&f, none).await), Vec::<String>::new());
}

pub async fn labels_narrow_other_filters_and_page(f: Fixture) {
    for n in 0..6 {
        start(&f, &format!("r{n}"), if n % 2 == 0 { "x" } else { "y" }, ("team", "one")).await;
        start(&f, &format!("o{n}"), "x", ("team", "two")).await;
    }
    let query =
        || RunQuery { flow: Some("x".into()), label: Some(("team".into(), "one".into())), limit: 2, ..all() };
    let first = page(&f, query()).await;
    assert_eq!((ids(&first), first.total), (vec!["r4".to_owned(), "r2".to_owned()], Some(Total::Exact(3))));
    let last = page(&f, RunQuery { cursor: first.next, ..query() }).await;
    assert_eq!((ids(&last), last.total, last.next), (vec!["r0".to_owned()], Some(Total::Exact(3)), None));
}

pub async fn runs_are_filtered_by_the_date_of_their_creation(f: Fixture) {
    let mut dates: Vec<Time> = Vec::new();
    for n in 0..3 {
        let run = f.started(&format!("r{n}"), vec![]).await;
        dates.push(f.row(&run).await.created_at);
        f.pass(given::SHORT).await;
    }
    for (since, until, expected) in [
        (Some(dates[1]), None, vec!["r2", "r1"]),
        (None, Some(dates[1]), vec!["r0"]),
        (Some(dates[0]), Some(dates[2]), vec!["r1", "r0"]),
        (Some(dates[2]), Some(dates[2]), vec![]),
    ] {
        let found = page(&f, RunQuery { since, until, ..all() }).await;
        assert_eq!(ids(&found), expected);
        assert_eq!(found.total, Some(Total::Exact(expected.len() as u64)));
    }
}

pub async fn runs_are_found_by_time_also_where_the_clock_was_set_back(f: Fixture) {
    let far = Duration::from_secs(3 * 3600);
    f.started("first", vec![]).await;
    f.pass(given::SHORT).await;
    f.started("ahead", vec![]).await;
    f.turn_back(far);
    f.started("back", vec![]).await;
    f.pass(given::SHORT).await;
    f.started("later", vec![]).await;
    let every = page(&f, all()).await.items;
    assert_eq!(every.len(), 4);
    let step = Duration::from_millis(1);
    let mut times: Vec<Option<Time>> = vec![None];
    times.extend(every.iter().flat_map(|row| [Some(row.created_at), Some(row.created_at + step)]));
    for (since, until) in times.iter().flat_map(|since| times.iter().map(move |until| (*since, *until))) {
        for status in [None, Some(Status::Running), Some(Status::Completed)] {
            let query = RunQuery { since, until, status, ..all() };
            let expected: Vec<&RunRow> = every.iter().filter(|row| query.matches(row)).collect();
            let found = page(&f, query.clone()).await;
            assert_eq!(found.items.iter().collect::<Vec<_>>(), expected, "{query:?}");
            assert_eq!(found.total, Some(Total::Exact(expected.len() as u64)), "{query:?}");
        }
    }
}

pub async fn a_total_is_given_only_where_it_is_wanted(f: Fixture) {
    f.started("r", vec![]).await;
    assert_eq!(page(&f, RunQuery { total: WantTotal::No, ..all() }).await.total, None);
}

pub async fn tenants_do_not_see_each_others_runs(f: Fixture) {
    f.started("here", vec![]).await;
    let there = given::run_of(&given::tenant("other"), "there");
    f.define(&there).await;
    f.commit(given::start(&there)).await;
    let here = page(&f, all()).await;
    assert_eq!((ids(&here), here.total), (vec!["here".to_owned()], Some(Total::Exact(1))));
    let other = page(&f, RunQuery::of(given::tenant("other"))).await;
    assert_eq!((ids(&other), other.total), (vec!["there".to_owned()], Some(Total::Exact(1))));
    assert_eq!(page(&f, RunQuery::of(given::tenant("third"))).await.items, []);
}

pub async fn a_cursor_that_is_none_is_refused(f: Fixture) {
    for bad in ["", "x", "-1", "1e3", "9999999999999999999999999", "{}"] {
        let answer = f.store.runs(RunQuery { cursor: Some(bad.into()), ..all() }).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{bad:?} gave {answer:?}");
    }
}

pub async fn totals_are_exact_to_ten_thousand_where_no_counter_has_them(f: Fixture) {
    f.define(&given::run("r")).await;
    for batch in 0..10 {
        let starts = (0..1_000).map(|n| given::start(&given::run(&format!("r{batch}-{n}"))));
        f.store.commit(starts.collect()).await.expect("the store answers");
    }
    let counted = || RunQuery { since: Some(Time::from_millis(0)), limit: 1, ..all() };
    assert_eq!(page(&f, counted()).await.total, Some(Total::Exact(EXACT_TOTAL)));
    f.started("one-more", vec![]).await;
    assert_eq!(page(&f, counted()).await.total, Some(Total::AtLeast(EXACT_TOTAL)));
    assert_eq!(page(&f, RunQuery { limit: 1, ..all() }).await.total, Some(Total::Exact(EXACT_TOTAL + 1)));
}
