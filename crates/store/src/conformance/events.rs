//! The log of a run: numbered without gaps, read in pages, written by attempts only while they hold their lease.

use std::sync::Arc;

use flowline_core::event::PayloadSlot;
use flowline_core::{Event, EventType, Json, NewEvent};

use super::{Fixture, given};
use crate::{
    Append, AppendError, AppendLine, Commit, EventPage, EventQuery, JobKey, Opened, ReceiptChange,
    ReceiptStatus, RunRow, Snapshot, Token, Total,
};

const STALE: AppendError = AppendError::StaleLease(JobKey::Step(0));

fn messages(log: &[Event]) -> Vec<String> {
    let logs = log.iter().filter(|event| event.kind == EventType::Log);
    logs.filter_map(|event| Some(event.data.as_ref()?.value()["message"].as_str()?.to_owned())).collect()
}

pub async fn seq_is_contiguous_across_commits_and_appends(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let lines = || vec![given::line(EventType::StepStarted), given::log_line("one")];
    f.append(given::append(&job, 0, lines())).await.expect("appends");
    f.commit(Commit { events: given::log_events(3), ..given::next(&run, 1) }).await;
    f.append(given::append(&job, 2, vec![given::log_line("two")])).await.expect("appends");
    f.refused(Commit { events: given::log_events(3), ..given::next(&run, 1) }).await;
    let committed = f.commit(Commit { events: given::log_events(1), ..given::next(&run, 2) }).await;
    assert_eq!(committed.first_seq, 8);
    let log = f.log(&run).await;
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    assert!(log.windows(2).all(|pair| pair[0].ts <= pair[1].ts));
    for event in log {
        assert_eq!(event.id, format!("{}-{}", event.ts.millis(), event.seq));
    }
}

pub async fn appended_lines_are_events_like_others(f: Fixture) {
    let (run, job) = f.leased("r").await;
    assert_eq!(f.append(given::append(&job, 0, vec![given::log_line("hello")])).await, Ok(1));
    let event = f.log(&run).await.remove(1);
    let expected = Event {
        id: format!("{}-2", event.ts.millis()),
        seq: 2,
        ts: event.ts,
        kind: EventType::Log,
        run_id: run.run.clone(),
        flow_name: given::FLOW.into(),
        tenant: run.tenant.clone(),
        step_name: Some("step-0".into()),
        step_id: Some("r__step-0__attempt-1".into()),
        attempt: Some(1),
        data: Some(given::json(serde_json::json!({"level": "log", "message": "hello"}))),
        v: 1,
    };
    assert_eq!(event, expected);
}

pub async fn append_changes_neither_version_nor_state(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let before = f.store.load(std::slice::from_ref(&run)).await.expect("loads").remove(0).expect("is there");
    f.append(given::append(&job, 0, vec![given::line(EventType::StepStarted), given::log_line("x")]))
        .await
        .expect("appends");
    let started_at = Some(f.log(&run).await[1].ts);
    let after = f.store.load(std::slice::from_ref(&run)).await.expect("loads").remove(0);
    let row = RunRow { events: 3, started_at, ..before.row };
    assert_eq!(after, Some(Snapshot { row, state: before.state }));
}

pub async fn append_repeated_with_the_same_from_line_writes_once(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let lines = || vec![given::log_line("one"), given::log_line("two")];
    assert_eq!(f.append(given::append(&job, 0, lines())).await, Ok(2));
    assert_eq!(f.append(given::append(&job, 0, lines())).await, Ok(2));
    assert_eq!(messages(&f.log(&run).await), ["one", "two"]);
    assert_eq!(f.jobs(&run).await[0].lines, 2);
}

pub async fn append_writes_the_lines_that_are_not_there_yet(f: Fixture) {
    let (run, job) = f.leased("r").await;
    f.append(given::append(&job, 0, vec![given::log_line("one")])).await.expect("appends");
    let lines = ["one", "two", "three"].map(given::log_line).to_vec();
    assert_eq!(f.append(given::append(&job, 0, lines)).await, Ok(3));
    assert_eq!(f.append(given::append(&job, 1, vec![given::log_line("two")])).await, Ok(3));
    assert_eq!(f.append(given::append(&job, 3, vec![])).await, Ok(3));
    assert_eq!(messages(&f.log(&run).await), ["one", "two", "three"]);
}

pub async fn append_beyond_the_lines_that_are_there_is_refused(f: Fixture) {
    let (run, job) = f.leased("r").await;
    assert_eq!(f.append(given::append(&job, 1, vec![given::log_line("gap")])).await, Err(STALE));
    assert_eq!(f.log(&run).await.len(), 1);
}

pub async fn a_stale_token_appends_not_even_a_log_line(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    let line = || vec![given::log_line("stale")];
    let wrong_token = Append { token: Token(2), ..given::append(&job, 0, line()) };
    let wrong_attempt = Append { attempt: 2, ..given::append(&job, 0, line()) };
    let wrong_key = Append { key: JobKey::Step(1), ..given::append(&job, 0, line()) };
    assert_eq!(f.append(wrong_token).await, Err(STALE));
    assert_eq!(f.append(wrong_attempt).await, Err(STALE));
    assert_eq!(f.append(wrong_key).await, Err(AppendError::StaleLease(JobKey::Step(1))));
    f.pass(given::LATER).await;
    assert_eq!(f.append(given::append(&job, 0, vec![given::log_line("late, not given up")])).await, Ok(1));
    f.give_up(&job).await;
    assert_eq!(f.append(given::append(&job, 0, line())).await, Err(STALE));
    f.claim(given::claim(&[2])).await;
    assert_eq!(f.append(given::append(&job, 1, line())).await, Err(STALE));
    assert_eq!(messages(&f.log(&run).await), ["late, not given up"]);
}

pub async fn appends_of_one_batch_are_answered_each(f: Fixture) {
    let run = f.started("r", vec![given::step(0), given::step(1)]).await;
    let jobs = f.claim(given::claim(&[1, 2])).await.jobs;
    let batch = vec![
        given::append(&jobs[0], 0, vec![given::log_line("a")]),
        Append { token: Token(3), ..given::append(&jobs[1], 0, vec![given::log_line("b")]) },
        given::append(&jobs[1], 0, vec![given::log_line("c"), given::log_line("d")]),
    ];
    let answers = f.store.append(batch).await.expect("the store answers");
    assert_eq!(answers, [Ok(1), Err(AppendError::StaleLease(jobs[1].key)), Ok(2)]);
    assert_eq!(messages(&f.log(&run).await), ["a", "c", "d"]);
}

pub async fn racing_appends_and_commits_leave_no_gap(f: Fixture) {
    let run = f.started("r", (0..4).map(given::step).collect()).await;
    let jobs = f.claim(given::claim(&[1, 2, 3, 4])).await.jobs;
    let writers: Vec<_> = jobs
        .into_iter()
        .map(|job| {
            let f = f.clone();
            tokio::spawn(async move {
                for n in 0..10 {
                    f.append(given::append(&job, n, vec![given::log_line("x")])).await.expect("appends");
                }
            })
        })
        .collect();
    for version in 1..=10 {
        f.commit(Commit { events: given::log_events(2), ..given::next(&run, version) }).await;
    }
    for writer in writers {
        writer.await.expect("no panic");
    }
    let seqs: Vec<_> = f.log(&run).await.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=61).collect::<Vec<_>>());
    assert_eq!(f.row(&run).await.events, 61);
}

pub async fn strange_text_in_payloads_comes_back_byte_for_byte(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let mut texts: Vec<Json> = given::STRANGE.iter().map(|text| given::json((*text).into())).collect();
    // Not the form that a serializer would choose: spaces, escapes, duplicate keys, a number beyond any float.
    for raw in [r#"{ "a" : 1 , "a" : "\u0041\u0000" }"#, "12345678901234567890123456789.10", "[ ]", "null"] {
        // As it was stored: what comes from outside with a key twice is refused today, and older builds took it.
        texts.push(Json::composed(raw.to_owned()));
    }
    texts.push(given::json("x".repeat(300_000).into()));
    let events = texts.iter().map(|data| NewEvent::run(EventType::Log, Some(data.clone()))).collect();
    f.commit(Commit { events, ..given::next(&run, 1) }).await;
    let found: Vec<_> =
        f.log(&run).await.into_iter().skip(1).map(|event| event.data.expect("data")).collect();
    assert_eq!(found, texts);
}

/// As large as the settings can make them.
pub async fn every_type_of_event_is_stored(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let events = EventType::ALL.iter().map(|kind| NewEvent::run(*kind, None)).collect();
    f.commit(Commit { events, ..given::next(&run, 1) }).await;
    let log = f.log(&run).await;
    assert_eq!(log[1..].iter().map(|event| event.kind).collect::<Vec<_>>(), EventType::ALL);
    assert!(log[1..].iter().all(|event| event.data.is_none() && event.step_name.is_none()));
}

pub async fn a_page_holds_a_thousand_events_at_most(f: Fixture) {
    let run = f.started("r", vec![]).await;
    f.commit(Commit { events: given::log_events(2_099), ..given::next(&run, 1) }).await;
    let page = |after, limit| {
        let query = EventQuery { after, limit, ..EventQuery::default() };
        let (f, run) = (f.clone(), run.clone());
        async move {
            let EventPage { events, more } = f.store.events(&run, query).await.expect("pages");
            (events.iter().map(|event| event.seq).collect::<Vec<_>>(), more)
        }
    };
    assert_eq!(page(0, 1_000).await, ((1..=1_000).collect(), true));
    assert_eq!(page(0, usize::MAX).await, ((1..=1_000).collect(), true));
    assert_eq!(page(1_100, 1_000).await, ((1_101..=2_100).collect(), false));
    assert_eq!(page(1_099, 1_000).await, ((1_100..=2_099).collect(), true));
    assert_eq!(page(2_098, 7).await, (vec![2_099, 2_100], false));
    assert_eq!(page(0, 0).await, (vec![1], true), "a page has at least one event");
    assert_eq!(page(2_100, 7).await, (vec![], false));
    assert_eq!(page(u64::from(u32::MAX) * 1_000, 7).await, (vec![], false));
}

pub async fn events_are_filtered_by_type_step_and_attempt(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let event = |kind, step: &str, attempt| NewEvent::step(kind, &Arc::from(step), attempt, None);
    let events = vec![
        event(EventType::StepStarted, "a", 1),
        event(EventType::StepRetry, "a", 1),
        event(EventType::StepStarted, "a", 2),
        event(EventType::StepStarted, "b", 1),
        event(EventType::StepCompleted, "a", 2),
        event(EventType::StepCompleted, "b", 1),
    ];
    f.commit(Commit { events, ..given::next(&run, 1) }).await;
    let all = EventQuery::default;
    let kinds = || vec![EventType::StepStarted, EventType::FlowStart];
    for (query, seqs, more) in [
        (EventQuery { kinds: kinds(), ..all() }, vec![1, 2, 4, 5], false),
        (EventQuery { step: Some("a".into()), ..all() }, vec![2, 3, 4, 6], false),
        (EventQuery { attempt: Some(1), ..all() }, vec![2, 3, 5, 7], false),
        (EventQuery { step: Some("a".into()), attempt: Some(2), kinds: kinds(), ..all() }, vec![4], false),
        (EventQuery { step: Some("a".into()), limit: 2, ..all() }, vec![2, 3], true),
        (EventQuery { step: Some("a".into()), limit: 4, ..all() }, vec![2, 3, 4, 6], false),
        (EventQuery { kinds: kinds(), after: 2, limit: 2, ..all() }, vec![4, 5], false),
        (EventQuery { step: Some("A".into()), ..all() }, vec![], false),
        (EventQuery { step: Some("a%".into()), ..all() }, vec![], false),
    ] {
        let shown = format!("{query:?}");
        let page = f.store.events(&run, query).await.expect("pages");
        let found: Vec<_> = page.events.iter().map(|event| event.seq).collect();
        assert_eq!((found, page.more), (seqs, more), "{shown}");
    }
}

pub async fn a_count_of_events_honours_the_filters_and_not_the_page(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let log = |step: &str, attempt| NewEvent::step(EventType::Log, &Arc::from(step), attempt, None);
    let mut events: Vec<NewEvent> = (0..1_200).map(|_| log("a", 1)).collect();
    events.extend([log("a", 2), log("b", 2), log("b", 1)]);
    f.commit(Commit { events, ..given::next(&run, 1) }).await;
    let count = async |query: EventQuery| f.store.count_events(&run, query).await.expect("counts");
    let all = EventQuery::default;
    assert_eq!(count(all()).await, Total::Exact(1_204));
    for after in [0, 1_201, 5_000] {
        let page = || EventQuery { after, limit: 1, ..all() };
        assert_eq!(count(EventQuery { attempt: Some(2), ..page() }).await, Total::Exact(2));
        assert_eq!(count(EventQuery { attempt: Some(1), ..page() }).await, Total::Exact(1_201));
        assert_eq!(count(EventQuery { step: Some("b".into()), ..page() }).await, Total::Exact(2));
        assert_eq!(count(EventQuery { kinds: vec![EventType::FlowStart], ..page() }).await, Total::Exact(1));
        assert_eq!(count(EventQuery { attempt: Some(3), ..page() }).await, Total::Exact(0));
    }
}

pub async fn a_run_that_is_not_there_has_no_events(f: Fixture) {
    let page = f.store.events(&given::run("none"), EventQuery::default()).await.expect("pages");
    assert_eq!(page, EventPage { events: vec![], more: false });
}

pub async fn payloads_are_found_by_their_slots(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let data = |n: i64| given::json(serde_json::json!({"payload": n, "result": [n]}));
    let with = |kind, n, slot| NewEvent::run(kind, Some(data(n))).at(slot);
    let events = vec![
        with(EventType::Emit, 1, PayloadSlot::Emit(0)),
        with(EventType::Emit, 2, PayloadSlot::Emit(9_999)),
        with(EventType::StepCompleted, 3, PayloadSlot::Result(0)),
        with(EventType::StepFailed, 4, PayloadSlot::Error(0)),
        NewEvent::run(EventType::Emit, None).at(PayloadSlot::Emit(3)),
        NewEvent::run(EventType::Log, Some(data(9))),
    ];
    f.commit(Commit { events, ..given::next(&run, 1) }).await;
    let line = AppendLine { event: with(EventType::Emit, 5, PayloadSlot::Emit(4)), state: None };
    f.append(given::append(&job, 0, vec![line])).await.expect("appends");
    let slots = [
        PayloadSlot::Error(0),
        PayloadSlot::Emit(9_999),
        PayloadSlot::Input,
        PayloadSlot::Emit(0),
        PayloadSlot::Emit(3),
        PayloadSlot::Result(1),
        PayloadSlot::Result(0),
        PayloadSlot::Emit(4),
        PayloadSlot::Emit(0),
    ];
    let found = f.store.payloads_of(&run, &slots).await.expect("finds");
    let expected = [
        Some(data(4)),
        Some(data(2)),
        None,
        Some(data(1)),
        None,
        None,
        Some(data(3)),
        Some(data(5)),
        Some(data(1)),
    ];
    assert_eq!(found, expected);
    let elsewhere = given::run_of(&given::tenant("other"), "r");
    assert_eq!(f.store.payloads_of(&elsewhere, &slots[..2]).await.expect("finds"), [None, None]);
    assert_eq!(f.store.payloads_of(&run, &[]).await.expect("finds"), []);
    let asked = [
        (elsewhere, vec![PayloadSlot::Input]),
        (run.clone(), vec![PayloadSlot::Result(0), PayloadSlot::Input]),
        (run.clone(), Vec::new()),
        (run, vec![PayloadSlot::Error(0)]),
    ];
    let found = f.store.payloads(&asked).await.expect("finds");
    assert_eq!(found, [vec![None], vec![Some(data(3)), None], vec![], vec![Some(data(4))]]);
    assert_eq!(f.store.payloads(&[]).await.expect("finds"), [[]; 0]);
}

pub async fn what_a_machine_took_in_and_its_contexts_are_found_again(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    f.commit(given::start(&run)).await;
    let received = |number: u32| given::json(serde_json::json!({"name": "add", "number": number}));
    let moved = |transition: u32| given::json(serde_json::json!({"transition": transition, "context": {}}));
    let take = |number: u32| {
        NewEvent::run(EventType::EventReceived, Some(received(number))).at(PayloadSlot::Received(number))
    };
    let go = |transition: u32| {
        NewEvent::run(EventType::StateChanged, Some(moved(transition))).at(PayloadSlot::Context(transition))
    };
    let stay =
        NewEvent::run(EventType::StateChanged, Some(given::json(serde_json::json!({"transition": 4}))));
    let opened = |number: u32| {
        let event = Opened { event_id: format!("e{number}").into(), name: "add".into(), sender: None };
        let (opened, status) = (Some(event), ReceiptStatus::Completed);
        ReceiptChange { number, opened, status, worker: None, outcome: None }
    };
    // Several in one commit; one whose receipt comes with it, one without; a transition that leaves the context as it is.
    let events = vec![go(1), take(1), take(2), go(2), NewEvent::run(EventType::Log, None), go(3)];
    f.commit(Commit { events, receipts: vec![opened(1), opened(2)], ..given::next(&run, 1) }).await;
    let events = vec![take(3), stay, take(4), go(5)];
    f.commit(Commit { events, receipts: vec![opened(3)], ..given::next(&run, 2) }).await;
    let lines = vec![NewEvent::run(EventType::Log, None)];
    f.commit(Commit { events: lines, ..given::next(&run, 3) }).await;

    let slots: Vec<PayloadSlot> =
        (1..=5).map(PayloadSlot::Received).chain((1..=6).map(PayloadSlot::Context)).collect();
    let found = f.store.payloads_of(&run, &slots).await.expect("finds");
    let taken_in = [1, 2, 3, 4].map(|number| Some(received(number)));
    let contexts = [Some(moved(1)), Some(moved(2)), Some(moved(3)), None, Some(moved(5)), None];
    assert_eq!(found, [&taken_in[..], &[None], &contexts[..]].concat());
}

pub async fn the_payload_of_flow_start_is_the_input(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let input = given::json(serde_json::json!({"input": given::STRANGE}));
    let start = NewEvent::run(EventType::FlowStart, Some(input.clone())).at(PayloadSlot::Input);
    f.commit(Commit { events: vec![start], ..given::start(&run) }).await;
    assert_eq!(f.store.payloads_of(&run, &[PayloadSlot::Input]).await.expect("finds"), [Some(input)]);
}

pub async fn a_page_of_events_is_bounded_by_its_bytes(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let megabytes = [9, 9, 17, 0, 1];
    for (version, size) in (1..).zip(megabytes) {
        let data = Some(given::json("x".repeat(size << 20).into()));
        let events = vec![NewEvent::run(EventType::Log, data), NewEvent::run(EventType::State, None)];
        f.commit(Commit { events, ..given::next(&run, version) }).await;
    }
    let pages = async |query: EventQuery| {
        let (mut query, mut pages) = (query, Vec::new());
        loop {
            let page = f.store.events(&run, query.clone()).await.expect("the store gives a page");
            query.after = page.events.last().expect("a page with something on it").seq;
            pages.push(page.events.into_iter().map(|event| event.seq).collect::<Vec<_>>());
            if !page.more {
                return pages;
            }
        }
    };
    let all: [&[u64]; 4] = [&[1, 2, 3], &[4, 5], &[6], &[7, 8, 9, 10, 11]];
    assert_eq!(pages(EventQuery::default()).await, all);
    let logs = EventQuery { kinds: vec![EventType::Log], ..EventQuery::default() };
    let all: [&[u64]; 4] = [&[2], &[4], &[6], &[8, 10]];
    assert_eq!(pages(logs).await, all);
    let small = EventQuery { kinds: vec![EventType::State], limit: 4, ..EventQuery::default() };
    assert_eq!(pages(small).await, [&[3, 5, 7, 9][..], &[11]], "others do not count");
}
