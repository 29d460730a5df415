//! Bench of machines: how long taking an event in lasts beside one commit of the store alone, and how many events are
//! applied in a second beside steps of flows, all in the same run and on one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use flowline::core::decide::Start;
use flowline::core::event::{EventType, NewEvent};
use flowline::core::{Json, Plan, RunId, RunKey, RunState, Status, Tenant, json};
use flowline::machine::{stay, to};
use flowline::store::{Base, Commit, Index, NewRun, Store};
use flowline::{ActionInput, Config, Engine, Flow, Machine, Step};
use serde::Serialize;

use crate::bench::{BenchFlow, BenchPlan, Latency, latency, measure, own_store};

/// Commits, and events one after the other, to know how long one takes.
const ONE_BY_ONE: u64 = 1_000;

/// What was measured. The names are a contract.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsAnswer {
    pub events: u64,
    pub in_flight: u64,
    /// One commit of the store, without an engine, one after the other.
    pub commit_ms: Latency,
    /// From sending an event to knowing that it is taken in, one after the other.
    pub accept_ms: Latency,
    pub accept_per_commit: f64,
    pub events_per_second: f64,
    /// Events that each ask for an action.
    pub events_with_action_per_second: f64,
    /// Of a diamond, as the bench of flows has it.
    pub steps_per_second: f64,
    pub events_per_step: f64,
}

/// Measures on a database of its own, which is removed again, or on a server's.
pub async fn bench(question: &BenchPlan) -> anyhow::Result<EventsAnswer> {
    let (store, _folder) = own_store(question).await?;
    let plain = machine("bench-events", false)?;
    let acting = machine("bench-actions", true)?;
    let config = Config { slots: 4096, retention: None, ..Config::default() };
    let engine = Engine::on(store.clone()).config(config).flow(&plain).flow(&acting).start().await?;

    let commit_ms = commits(&*store, &plain).await?;
    let accept_ms = accepts(&engine, &plain).await?;
    let warm = question.runs / 10 + 1;
    events(&engine, &plain, warm, question.in_flight).await?;
    let events_per_second = events(&engine, &plain, question.runs, question.in_flight).await?;
    let events_with_action_per_second = events(&engine, &acting, question.runs, question.in_flight).await?;
    engine.stop().await;
    let flows = BenchPlan { shape: BenchFlow::Diamond, runs: (question.runs / 4).max(1), ..question.clone() };
    let part = measure(&flows, store, Arc::default()).await?;
    let steps_per_second = part.steps_per_second(BenchFlow::Diamond);
    Ok(EventsAnswer {
        events: question.runs,
        in_flight: question.in_flight,
        accept_per_commit: accept_ms.p50 / commit_ms.p50,
        commit_ms,
        accept_ms,
        events_per_second,
        events_with_action_per_second,
        steps_per_second,
        events_per_step: events_per_second / steps_per_second,
    })
}

/// A counter, with or without an action for each count.
fn machine(name: &str, acts: bool) -> Result<Flow, flowline::EngineError> {
    let add = stay().set("n", "context.n + 1");
    let machine = Machine::new(name)
        .events(["add", "stop"])
        .context("n", "0")
        .state("open")
        .on("add", if acts { add.actions(["note"]) } else { add })
        .on("stop", to("shut"))
        .state("shut")
        .completes();
    match acts {
        true => machine.action("note", |_: Step, _: ActionInput| std::future::ready(Ok(()))).build(),
        false => machine.build(),
    }
}

/// One commit after the other, each of a new run with one event.
async fn commits(store: &dyn Store, flow: &Flow) -> anyhow::Result<Latency> {
    let plan = Plan::build(flow.definition().clone())?;
    let state = RunState::new(&plan);
    let mut took = Vec::new();
    for _ in 0..ONE_BY_ONE {
        let run = RunId::new(&uuid::Uuid::now_v7().to_string())?;
        let data = json::object([("input", Some(&Json::null()))]);
        let new = NewRun { step_count: 0, ..NewRun::of(&plan, &Start::new(Json::null())) };
        let key = RunKey::new(Tenant::default(), run);
        let commit = Commit {
            events: vec![NewEvent::run(EventType::FlowStart, Some(data))],
            state: state.encode(),
            ..Commit::new(key, Base::New(new), Index::of(Status::Waiting))
        };
        let began = Instant::now();
        for result in store.commit(vec![commit]).await? {
            result?;
        }
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(latency(&mut took))
}

/// One event after the other, to one run.
async fn accepts(engine: &Engine, flow: &Flow) -> anyhow::Result<Latency> {
    let run = engine.run(flow, serde_json::json!({})).await?;
    let mut took = Vec::new();
    for _ in 0..ONE_BY_ONE {
        let began = Instant::now();
        engine.send(run.key(), "add", Json::null()).await?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(latency(&mut took))
}

/// As many senders as runs at once, each with a run of its own; until every run has counted what it was sent.
async fn events(engine: &Engine, flow: &Flow, events: u64, in_flight: u64) -> anyhow::Result<f64> {
    let senders = in_flight.min(events);
    let mut runs = Vec::new();
    for _ in 0..senders {
        runs.push(engine.run(flow, serde_json::json!({})).await?);
    }
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let senders: Vec<_> = runs
        .into_iter()
        .map(|run| {
            let (engine, next) = (engine.clone(), next.clone());
            tokio::spawn(async move {
                let mut sent = 0u64;
                while next.fetch_add(1, Ordering::Relaxed) < events {
                    engine.send(run.key(), "add", Json::null()).await?;
                    sent += 1;
                }
                engine.send(run.key(), "stop", Json::null()).await?;
                let result = run.wait().await?.result.unwrap_or_else(Json::null).value();
                anyhow::ensure!(result["n"] == sent, "a run counted {} of {sent} events", result["n"]);
                Ok(())
            })
        })
        .collect();
    for sender in senders {
        sender.await??;
    }
    Ok(events as f64 / began.elapsed().as_secs_f64())
}
