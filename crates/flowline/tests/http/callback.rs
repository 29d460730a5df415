//! Steps whose outcome comes later, by a reference that the request carried.

use std::sync::Arc;
use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::event::EventType;
use flowline::core::{Json, RunId, RunKey, Status};
use flowline::runner::http::HttpConfig;
use flowline::store::{EventQuery, Store};
use flowline::trace::{SpanEnd, Spans};
use flowline::{Config, Engine, EngineBuilder, EngineError, InstanceRole, LeaseRef, RunHandle, StepError};
use serde_json::json;

use super::place::{Answer, SOON, Server, call, private};
use crate::kit::memory;

const BASE: &str = "https://flows.example/sub/";

/// Short, so that a holder soon hears that its lease is gone.
const LEASE: Duration = Duration::from_secs(1);

async fn engine(store: Arc<dyn Store>) -> Engine {
    builder(store).start().await.unwrap()
}

fn builder(store: Arc<dyn Store>) -> EngineBuilder {
    let config = Config { lease: LEASE, ..Config::default() };
    let http = HttpConfig { callbacks: Some(BASE.to_owned()), ..private() };
    Engine::on(store).config(config).http(http)
}

/// Starts a run whose one step waits for its callback; the run and the reference that its request carried.
async fn waiting(engine: &Engine, server: &Server, rest: &str) -> (RunHandle, LeaseRef) {
    let text = format!(
        "flow: later\nsteps:\n  call: {{ http: {{ post: '{}', callback: true }}{rest} }}\n",
        server.url()
    );
    let definition = read("flow.yaml", &text, Format::Yaml).unwrap().definition;
    let plan = engine.register(definition, None).await.unwrap();
    let asked = server.asked().len();
    let run = engine.run_plan(plan, Json::null()).await.unwrap();
    let reference = tokio::time::timeout(SOON, async {
        loop {
            if let Some(asked) = server.asked().get(asked) {
                break asked.headers["flowline-callback-url"].clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let url = reference.await.expect("the request comes soon");
    let reference =
        url.strip_prefix("https://flows.example/sub/v1/callbacks/").expect("the base has one slash");
    (run, reference.parse().unwrap())
}

async fn ended(run: &RunHandle) -> flowline::RunOutcome {
    tokio::time::timeout(SOON, run.wait()).await.expect("the run ends soon").unwrap()
}

#[tokio::test]
async fn an_accepted_step_ends_with_what_is_called_back() {
    // Its body is nobody's business, nor how long it takes.
    let accepted = Answer::Hang(b"HTTP/1.1 202 Accepted\r\ncontent-length: 99\r\n\r\nwhat".to_vec());
    let server = Server::new(vec![accepted]).await;
    let engine = engine(memory()).await;
    let (run, lease) = waiting(&engine, &server, "").await;
    assert_eq!(lease.run, *run.key());
    let applied = engine.settle(&lease, Ok(Json::of(&json!({ "label": 7 })).unwrap())).await.unwrap();
    assert!(applied.changed);
    assert_eq!(ended(&run).await.result.unwrap().value(), json!({ "call": { "label": 7 } }));
    // The same again changes nothing; neither does another word.
    let again = engine.settle(&lease, Ok(Json::of(&json!({ "label": 7 })).unwrap())).await;
    assert!(again.is_ok_and(|applied| !applied.changed));
    let _ = engine.settle(&lease, Err(StepError::fatal("late"))).await;
    let events = engine.store().events(run.key(), EventQuery::default()).await.unwrap().events;
    let kinds: Vec<EventType> = events.iter().map(|event| event.kind).collect();
    let expected =
        [EventType::FlowStart, EventType::StepStarted, EventType::StepCompleted, EventType::FlowCompleted];
    assert_eq!(kinds, expected);
    tokio::time::timeout(SOON, engine.until_idle(Duration::ZERO)).await.expect("nothing is held any more");
    engine.stop().await;
}

#[tokio::test]
async fn the_span_of_an_attempt_ends_with_its_callback() {
    let server = Server::new(vec![Answer::new("202 Accepted", "")]).await;
    let (spans, mut taken) = Spans::new(8);
    let engine = builder(memory()).spans(Arc::new(spans)).start().await.unwrap();
    let (run, lease) = waiting(&engine, &server, "").await;
    engine.settle(&lease, Err(StepError::fatal("no such label").code("unknown_label"))).await.unwrap();
    // Told again, it is no other attempt.
    let _ = engine.settle(&lease, Err(StepError::fatal("no such label").code("unknown_label"))).await;
    ended(&run).await;
    engine.stop().await;
    let mut attempts = Vec::new();
    while let Ok(span) = taken.try_recv() {
        attempts.extend(span.attempt.clone().map(|attempt| (attempt, span.began, span.end)));
    }
    let end = SpanEnd::Failed(Some("unknown_label".to_owned()));
    assert_eq!(attempts, [(("call".into(), 1), lease.claimed, end)]);
}

#[tokio::test]
async fn a_step_can_be_failed_from_outside_and_is_tried_again() {
    let accepted = Answer::new("202 Accepted", "");
    let server = Server::new(vec![accepted, Answer::json("1")]).await;
    let engine = engine(memory()).await;
    let (run, lease) = waiting(&engine, &server, ", retry: { attempts: 2, delay: 1ms }").await;
    engine.settle(&lease, Err(StepError::new("out of stock").code("stock"))).await.unwrap();
    // An answer other than 202 is the outcome, callback or not.
    assert_eq!(ended(&run).await.status, Status::Completed);
    assert_eq!(server.asked().len(), 2);
    let first = &server.asked()[0].headers["flowline-callback-url"];
    assert_ne!(first, &server.asked()[1].headers["flowline-callback-url"]);
    engine.stop().await;
}

#[tokio::test]
async fn any_instance_can_bring_the_outcome_and_the_holder_stops() {
    let server = Server::new(vec![Answer::new("202 Accepted", "")]).await;
    let store = memory();
    let holder = engine(store.clone()).await;
    let config = Config { role: InstanceRole::Operate, retention: None, ..Config::default() };
    let other = Engine::on(store).config(config).start().await.unwrap();
    let (run, lease) = waiting(&holder, &server, "").await;
    // Beyond the lease: it is kept while the outcome is awaited.
    tokio::time::sleep(LEASE + LEASE / 2).await;
    other.settle(&lease, Ok(Json::null())).await.unwrap();
    assert_eq!(ended(&run).await.status, Status::Completed);
    assert_eq!(server.asked().len(), 1);
    tokio::time::timeout(SOON, holder.until_idle(Duration::ZERO)).await.expect("the holder lets go");
    holder.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn an_outcome_that_does_not_come_in_time_comes_too_late() {
    let server = Server::new(vec![Answer::new("202 Accepted", ""), Answer::json("2")]).await;
    let engine = engine(memory()).await;
    let (run, lease) =
        waiting(&engine, &server, ", timeout: 300ms, retry: { attempts: 2, delay: 1ms }").await;
    assert_eq!(ended(&run).await.result.unwrap().value(), json!({ "call": 2 }));
    let late = engine.settle(&lease, Ok(Json::null())).await;
    let refused = |error: &EngineError| matches!(error, EngineError::StaleLease(_) | EngineError::Refused(_));
    assert!(late.as_ref().is_err_and(refused), "{late:?}");
    engine.stop().await;
}

#[tokio::test]
async fn a_reference_that_somebody_made_up_ends_nothing() {
    let server = Server::new(vec![Answer::new("202 Accepted", "")]).await;
    let engine = engine(memory()).await;
    let (run, lease) = waiting(&engine, &server, "").await;
    let nowhere = RunKey::new(lease.run.tenant.clone(), RunId::new("nowhere").unwrap());
    // Whether the run exists makes no difference: nobody can find out that way.
    for made_up in [
        LeaseRef { token: flowline::store::Token(lease.token.0 ^ 1), ..lease.clone() },
        LeaseRef { step: 1, ..lease.clone() },
        LeaseRef { step: u32::MAX, ..lease.clone() },
        LeaseRef { run: nowhere.clone(), ..lease.clone() },
        LeaseRef { run: nowhere, seal: None, ..lease.clone() },
        LeaseRef { step: 1, seal: None, ..lease.clone() },
    ] {
        let refused = engine.settle(&made_up, Ok(Json::null())).await;
        assert!(matches!(refused, Err(EngineError::StaleLease(_))), "{refused:?}");
    }
    assert_eq!(engine.row(run.key()).await.unwrap().status, Status::Running);
    engine.settle(&lease, Ok(Json::null())).await.unwrap();
    assert_eq!(ended(&run).await.status, Status::Completed);
    engine.stop().await;
}

#[tokio::test]
async fn a_recorded_outcome_is_confirmed_only_to_whoever_was_given_the_reference() {
    let server = Server::new(vec![Answer::new("202 Accepted", "")]).await;
    let engine = engine(memory()).await;
    let (run, lease) = waiting(&engine, &server, "").await;
    engine.settle(&lease, Ok(Json::null())).await.unwrap();
    ended(&run).await;
    for made_up in [
        LeaseRef { token: flowline::store::Token(lease.token.0 ^ 1), ..lease.clone() },
        LeaseRef { token: flowline::store::Token(lease.token.0 ^ 1), seal: None, ..lease.clone() },
        LeaseRef { seal: None, ..lease.clone() },
    ] {
        let refused = engine.settle(&made_up, Ok(Json::null())).await;
        assert!(matches!(refused, Err(EngineError::StaleLease(_))), "{refused:?}");
    }
    assert!(!engine.settle(&lease, Ok(Json::null())).await.unwrap().changed);
    engine.stop().await;
}

#[tokio::test]
async fn a_reference_of_an_older_build_still_ends_its_attempt() {
    let server = Server::new(vec![Answer::new("202 Accepted", "")]).await;
    let engine = engine(memory()).await;
    let (run, lease) = waiting(&engine, &server, "").await;
    let older: LeaseRef = LeaseRef { seal: None, ..lease }.to_string().parse().unwrap();
    assert!(engine.settle(&older, Ok(Json::null())).await.unwrap().changed);
    assert_eq!(ended(&run).await.status, Status::Completed);
    engine.stop().await;
}

#[tokio::test]
async fn without_a_url_for_callbacks_nothing_is_sent() {
    let server = Server::new(vec![Answer::new("202 Accepted", "")]).await;
    let told = call(private(), &format!("{{ post: '{}', callback: true }}", server.url()), json!(1)).await;
    assert_eq!((told.code().as_str(), server.asked().len()), ("no_callback_url", 0));
}
