//! The machines among the examples, from their files to their ends.

use std::path::Path;
use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::{Json, Status};
use flowline::{Engine, RunHandle};
use serde_json::{Value, json};

use crate::kit::memory;

const SOON: Duration = Duration::from_secs(30);

/// An engine that has the machine of a file, and a run of it.
async fn run(file: &str, input: Value) -> (Engine, RunHandle) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap();
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let read = read(file, &text, Format::of_path(file).unwrap()).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(read.warnings.is_empty(), "{}", read.warnings);
    let name = read.definition.flow.clone();
    let engine = Engine::on(memory())
        .definition(read.definition, Some(folder.to_str().unwrap().to_owned()))
        .commands();
    let engine = engine.start().await.unwrap();
    let run = engine.run_named(&name, Json::from(input)).await.unwrap().await.unwrap();
    (engine, run)
}

/// Sends an event as somebody with a role, and gives what became of it.
async fn send(engine: &Engine, run: &RunHandle, event: &str, by: (&str, &str), payload: Value) -> Value {
    let request = engine.event(run.key(), event, Json::from(payload)).user(by.0).role(by.1);
    let (_, receipt) = request.wait(SOON).await.unwrap();
    receipt.unwrap().outcome.unwrap().value()
}

async fn state(engine: &Engine, run: &RunHandle) -> String {
    engine.row(run.key()).await.unwrap().state.as_deref().unwrap_or_default().to_owned()
}

const ADA: (&str, &str) = ("ada", "employee");
const MAX: (&str, &str) = ("max", "manager");
const EVE: (&str, &str) = ("eve", "director");

#[tokio::test]
async fn a_small_expense_is_approved_by_a_manager() {
    let (engine, run) = run("expense.yaml", json!({ "amount": 400, "by": "ada" })).await;
    assert_eq!(send(&engine, &run, "submit", MAX, json!(null)).await["code"], "guard");
    let submitted = send(&engine, &run, "submit", ADA, json!(null)).await;
    assert_eq!(
        (&submitted["currentState"], &submitted["actionsExecuted"]),
        (&json!("review"), &json!(["assign"]))
    );
    let approved = send(&engine, &run, "approve", MAX, json!(null)).await;
    assert_eq!(approved["actionsExecuted"], json!(["unassign", "pay", "notify"]));
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.status, Status::Completed);
    assert_eq!(outcome.result.unwrap().value(), json!({ "paid": 400, "approved_by": ["max"] }));
    engine.stop().await;
}

#[tokio::test]
async fn a_large_expense_takes_a_director_who_may_reject_it() {
    let (engine, run) = run("expense.yaml", json!({ "amount": 4000, "by": "ada" })).await;
    send(&engine, &run, "submit", ADA, json!(null)).await;
    assert_eq!(send(&engine, &run, "approve", EVE, json!(null)).await["code"], "forbidden");
    assert_eq!(send(&engine, &run, "approve", MAX, json!(null)).await["currentState"], "director");
    assert_eq!(send(&engine, &run, "approve", MAX, json!(null)).await["code"], "forbidden");
    assert_eq!(
        send(&engine, &run, "reject", EVE, json!({ "reason": "no" })).await["currentState"],
        "rejected"
    );
    assert_eq!(run.wait().await.unwrap().status, Status::Failed);
    engine.stop().await;
}

#[tokio::test]
async fn an_order_is_paid_and_shipped() {
    let input = json!({ "order": "A-1", "total": 1900, "pay_by": "2999-01-01T00:00:00Z" });
    let (engine, run) = run("order-payment.yaml", input).await;
    let paid = send(&engine, &run, "pay", ADA, json!({ "card": "4711" })).await;
    assert_eq!(
        (&paid["currentState"], &paid["actionsExecuted"]),
        (&json!("paid"), &json!(["charge", "receipt"]))
    );
    send(&engine, &run, "ship", ADA, json!(null)).await;
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.result.unwrap().value(), json!({ "order": "A-1", "paid": 1900 }));
    engine.stop().await;
}

#[tokio::test]
async fn an_order_that_is_not_paid_in_time_expires() {
    let input = json!({ "order": "A-1", "total": 1900, "pay_by": "2020-01-01T00:00:00Z" });
    let (engine, run) = run("order-payment.yaml", input).await;
    assert_eq!(run.wait().await.unwrap().status, Status::Failed);
    assert_eq!(state(&engine, &run).await, "expired");
    engine.stop().await;
}

#[tokio::test]
async fn a_ticket_is_reopened_twice_and_no_more() {
    let (engine, run) = run("ticket.toml", json!({ "title": "no paper" })).await;
    let support = ("sam", "support");
    assert_eq!(send(&engine, &run, "take", support, json!(null)).await["currentState"], "working");
    let taken = send(&engine, &run, "take", ("tom", "support"), json!(null)).await;
    assert_eq!((&taken["previousState"], &taken["currentState"]), (&json!("working"), &json!("working")));
    for _ in 0..2 {
        send(&engine, &run, "resolve", support, json!(null)).await;
        let reopened = send(&engine, &run, "reopen", ADA, json!({ "why": "again" })).await;
        assert_eq!(reopened["currentState"], "working");
    }
    send(&engine, &run, "resolve", support, json!(null)).await;
    assert_eq!(send(&engine, &run, "reopen", ADA, json!({ "why": "again" })).await["code"], "guard");
    send(&engine, &run, "close", ADA, json!(null)).await;
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.result.unwrap().value(), json!({ "title": "no paper", "reopened": 2 }));
    engine.stop().await;
}
