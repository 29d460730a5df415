//! Machines on a real engine, through its public API.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowline::core::decide::Refusal;
use flowline::core::definition::{Cleanup, Missed, OnFailure, Priority, Retry, Runner, When};
use flowline::core::event::EventType;
use flowline::core::{Json, Status};
use flowline::machine::{stay, to};
use flowline::store::{DocumentQuery, EventQuery, ReceiptQuery, ReceiptStatus};
use flowline::{ActionInput, Engine, EngineError, Flow, Machine, Step, StepError};
use serde_json::{Value, json};

use crate::kit::memory;

const SOON: Duration = Duration::from_secs(10);

fn null() -> Json {
    Json::null()
}

fn of(value: Value) -> Json {
    Json::from(value)
}

async fn nothing(_: Step, _: ActionInput) -> Result<(), StepError> {
    Ok(())
}

fn expense() -> Flow {
    Machine::new("expense")
        .events(["submit", "approve", "reject", "edit"])
        .context("amount", "input.amount")
        .state("draft")
        .on("edit", stay().set("amount", "payload.amount"))
        .on("submit", to("review").only_if("context.amount > 0").actions(["notify"]))
        .state("review")
        .entry(["assign"])
        .on("approve", to("approved").role("manager").set("by", "user"))
        .on("reject", to("draft").role("manager"))
        .state("approved")
        .completes()
        .action("notify", |_: Step, input: ActionInput| async move {
            Ok(json!({ "told": input.context["amount"], "state": input.state, "event": input.event }))
        })
        .action("assign", |_: Step, input: ActionInput| async move { Ok(Value::Object(input.results)) })
        .comes_after(["notify"])
        .build()
        .unwrap()
}

async fn engine(flow: &Flow) -> Engine {
    Engine::on(memory()).flow(flow).start().await.unwrap()
}

#[tokio::test]
async fn an_expense_is_approved() {
    let machine = expense();
    let engine = engine(&machine).await;
    let run = engine.run(&machine, json!({"amount": 7})).await.unwrap();
    let (sent, receipt) = engine.event(run.key(), "submit", null()).wait(SOON).await.unwrap();
    let receipt = receipt.unwrap();
    assert!(sent.changed && receipt.status == ReceiptStatus::Completed);
    let outcome = receipt.outcome.unwrap().value();
    assert_eq!(outcome["currentState"], "review");
    assert_eq!(outcome["actionsExecuted"], json!(["notify", "assign"]));
    assert_eq!(engine.row(run.key()).await.unwrap().state.as_deref(), Some("review"));

    let (_, receipt) = engine.event(run.key(), "submit", null()).wait(SOON).await.unwrap();
    let receipt = receipt.unwrap();
    assert_eq!(
        (receipt.status, receipt.outcome.unwrap().value()["code"].clone()),
        (ReceiptStatus::Failed, json!("wrong_state"))
    );

    let refused = engine.event(run.key(), "approve", null()).role("clerk").send().await.unwrap_err();
    assert!(matches!(refused, EngineError::Refused(_)), "{refused}");
    engine.event(run.key(), "approve", null()).user("ada").role("manager").send().await.unwrap();
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.status, Status::Completed);
    assert_eq!(outcome.result.unwrap().value(), json!({"amount": 7, "by": "ada"}));

    let page = engine.store().receipts(ReceiptQuery::of(engine.tenant().clone())).await.unwrap();
    let names: Vec<&str> = page.items.iter().map(|receipt| &*receipt.name).collect();
    assert_eq!(names, ["approve", "submit", "submit"]);
    let ended = engine.event(run.key(), "edit", null()).send().await.unwrap_err();
    assert!(ended.to_string().contains("has ended"), "{ended}");
    engine.stop().await;
}

#[tokio::test]
async fn a_key_stands_for_an_event_of_one_user_whatever_roles_that_has() {
    let machine = expense();
    let engine = engine(&machine).await;
    let run = engine.run(&machine, json!({"amount": 1})).await.unwrap();
    let by = |user: &str, role: &str| {
        engine.event(run.key(), "edit", of(json!({"amount": 4}))).key("by").user(user).role(role).send()
    };
    let (one, again) = (by("ada", "clerk").await.unwrap(), by("ada", "manager").await.unwrap());
    assert_eq!((one.changed, again.changed, &again.event_id), (true, false, &one.event_id));
    let refused = by("bob", "clerk").await.unwrap_err();
    assert!(matches!(refused, EngineError::KeyConflict { .. }), "{refused}");
    engine.stop().await;
}

#[tokio::test]
async fn a_key_stands_for_one_event_in_all_runs() {
    let machine = expense();
    let engine = engine(&machine).await;
    let run = engine.run(&machine, json!({"amount": 1})).await.unwrap();
    let other = engine.run(&machine, json!({"amount": 1})).await.unwrap();
    let edit = |amount: u32| of(json!({ "amount": amount }));
    let first = engine.event(run.key(), "edit", edit(2)).key("k").send().await.unwrap();
    let again = engine.event(run.key(), "edit", edit(2)).key("k").send().await.unwrap();
    assert_eq!((first.changed, again.changed, &again.event_id), (true, false, &first.event_id));
    for (run, amount) in [(&run, 3), (&other, 2)] {
        let refused = engine.event(run.key(), "edit", edit(amount)).key("k").send().await.unwrap_err();
        assert!(matches!(refused, EngineError::KeyConflict { .. }), "{refused}");
    }
    // A run may outlive what its keys stand for: the same event is known all the same.
    let (keys, store) = (format!("event-keys/{}", engine.tenant()), engine.store());
    for kept in store.documents(&keys, DocumentQuery::default()).await.unwrap().items {
        assert!(store.delete_document(&keys, &kept.id).await.unwrap());
    }
    let late = engine.event(run.key(), "edit", edit(2)).key("k").send().await.unwrap();
    assert_eq!((late.changed, &late.event_id), (false, &first.event_id));
    let events = engine.store().events(run.key(), EventQuery::default()).await.unwrap().events;
    assert_eq!(events.iter().filter(|event| event.kind == EventType::EventReceived).count(), 1);
    // A run that has ended is asked for what it took, and takes nothing more.
    engine.cancel(run.key(), None).await.unwrap();
    let taken = engine.event(run.key(), "edit", edit(2)).key("k").send().await.unwrap();
    assert_eq!((taken.changed, &taken.event_id), (false, &first.event_id));
    let ended = engine.event(run.key(), "edit", edit(2)).key("k2").send().await.unwrap_err();
    assert!(matches!(ended, EngineError::Refused(Refusal::Ended(_))), "{ended}");
    let free = engine.event(other.key(), "edit", edit(2)).key("k2").send().await.unwrap();
    assert!(free.changed, "a key does not stand for what was refused");
    engine.stop().await;
}

#[tokio::test]
async fn the_first_event_starts_the_run_of_its_business_key() {
    let machine = expense();
    let engine = engine(&machine).await;
    let mut runs = Vec::new();
    for amount in [5, 6] {
        let event = ("edit", of(json!({ "amount": amount })));
        let request = engine.event_for("expense", "E-1", of(json!({"amount": 1})), event);
        runs.push(request.wait(SOON).await.unwrap().0.run_id);
    }
    assert_eq!(runs[0], runs[1]);
    engine.stop().await;
}

#[tokio::test]
async fn events_of_a_run_are_applied_in_order_one_at_a_time() {
    let (running, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counted, noted) = (running.clone(), seen.clone());
    let machine = Machine::new("line")
        .events(["add", "stop"])
        .context("n", "0")
        .state("open")
        .on("add", stay().set("n", "context.n + 1").actions(["note"]))
        .on("stop", to("shut"))
        .state("shut")
        .completes()
        .action("note", move |_: Step, input: ActionInput| {
            let (running, seen) = (counted.clone(), noted.clone());
            async move {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                tokio::time::sleep(Duration::from_millis(1)).await;
                seen.lock().unwrap().push((input.payload, input.context["n"].clone()));
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        })
        .build()
        .unwrap();
    let engine = engine(&machine).await;
    let run = engine.run(&machine, json!({})).await.unwrap();
    for n in 1..=50 {
        engine.send(run.key(), "add", of(json!(n))).await.unwrap();
    }
    engine.send(run.key(), "stop", null()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().result.unwrap().value(), json!({"n": 50}));
    let expected: Vec<(Value, Value)> = (1..=50).map(|n| (json!(n), json!(n))).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
    engine.stop().await;
}

#[tokio::test]
async fn a_timer_moves_a_machine_that_nobody_speaks_to() {
    let machine = Machine::new("order")
        .events(["pay"])
        .state("new")
        .on("pay", to("paid"))
        .after(Duration::from_millis(40), to("expired").actions(["tell"]))
        .state("paid")
        .completes()
        .state("expired")
        .fails()
        .action("tell", nothing)
        .build()
        .unwrap();
    let engine = engine(&machine).await;
    let run = engine.run(&machine, json!({})).await.unwrap();
    let outcome = tokio::time::timeout(SOON, run.wait()).await.unwrap().unwrap();
    assert_eq!(
        (outcome.status, outcome.error.as_deref()),
        (Status::Failed, Some("the machine ended in state \"expired\""))
    );
    let paid = engine.run(&machine, json!({})).await.unwrap();
    engine.send(paid.key(), "pay", null()).await.unwrap();
    assert_eq!(paid.wait().await.unwrap().status, Status::Completed);
    engine.stop().await;
}

#[tokio::test]
async fn what_belongs_to_nothing_is_refused_with_the_remedy() {
    let error = Machine::new("m").on("go", to("a")).build().unwrap_err();
    assert_eq!(error.to_string(), "machine \"m\": describe a state before what belongs to it");
}

/// What a file can say, the builder can: the same definition comes out, and so the same hash.
#[tokio::test]
async fn a_machine_built_in_rust_is_the_one_that_a_file_says() {
    let text = r#"
machine: claim
description: All that a file can say.
input: {type: object}
events: {submit: , approve: {type: object}, reject: }
context: {amount: input.amount}
output: context.amount
timeout: 30d
state: on-complete
initial: draft
states:
  review:
    description: Waits for a manager.
    entry: [assign, notify]
    exit: [unassign]
    on:
      approve:
        - {to: approved, role: manager, if: context.amount < 1000}
        - {to: draft, role: [manager, director], set: {note: payload.note}, actions: [notify]}
      reject: {set: {rejected: "true"}}
    after:
      - {in: 48h, to: rejected}
      - {at: input.due, missed: skip, if: context.amount > 1, actions: [notify]}
  draft: {on: {submit: review}}
  approved: {final: true}
  rejected: {final: failed}
actions:
  notify: {description: Tells people., command: [./notify.sh], after: [assign], if: user != "", on_failure: continue}
  assign: {worker: depot, retry: 3, timeout: 1m, priority: low}
  unassign: {function: unassign, on_error: draft, queue: slow}
"#;
    let built = Machine::new("claim")
        .description("All that a file can say.")
        .input_schema(json!({ "type": "object" }))
        .events(["submit", "reject"])
        .event_with("approve", json!({ "type": "object" }))
        .context("amount", "input.amount")
        .output("context.amount")
        .run_timeout(Duration::from_secs(30 * 86_400))
        .state_cleanup(Cleanup::OnComplete)
        .initial("draft")
        .state("review")
        .state_description("Waits for a manager.")
        .entry(["assign", "notify"])
        .exit(["unassign"])
        .on("approve", to("approved").role("manager").only_if("context.amount < 1000"))
        .on(
            "approve",
            to("draft").role("manager").role("director").set("note", "payload.note").actions(["notify"]),
        )
        .on("reject", stay().set("rejected", "true"))
        .after(Duration::from_secs(48 * 3600), to("rejected"))
        .timer(
            When::At("input.due".to_owned()),
            Missed::Skip,
            stay().only_if("context.amount > 1").actions(["notify"]),
        )
        .state("draft")
        .on("submit", to("review"))
        .state("approved")
        .completes()
        .state("rejected")
        .fails()
        .action_run_by("notify", Runner::Command(vec!["./notify.sh".to_owned()]))
        .action_description("Tells people.")
        .comes_after(["assign"])
        .only_if(r#"user != """#)
        .on_failure(OnFailure::Continue)
        .action_run_by("assign", Runner::Worker("depot".to_owned()))
        .retry(Retry { attempts: 3, ..Retry::default() })
        .timeout(Duration::from_secs(60))
        .priority(Priority::Low)
        .action_run_by("unassign", Runner::Function("unassign".to_owned()))
        .on_error("draft")
        .queue("slow")
        .build()
        .unwrap();
    assert_eq!(built.definition(), &read(text));
}

fn read(text: &str) -> flowline::core::Definition {
    use flowline::core::definition::{Format, read};
    read("file", text, Format::Yaml).unwrap_or_else(|found| panic!("{}", found.render(false))).definition
}

#[tokio::test]
async fn a_machine_starts_a_flow_and_waits_for_it_and_a_flow_sends_to_a_machine() {
    let pay = Flow::new("pay")
        .step("charge", |_: Step, input: Value| async move {
            match input["cents"].as_u64() {
                Some(0) => Err(StepError::fatal("nothing to pay")),
                cents => Ok(json!({ "paid": cents })),
            }
        })
        .output("results.charge")
        .build()
        .unwrap();
    let order = read(
        r#"
machine: order
events: [checkout, done]
states:
  cart: {on: {checkout: {to: paying, actions: [pay, book]}}}
  paying: {on: {done: {to: paid, set: {receipt: payload}}}}
  paid: {final: true}
  broke: {final: failed}
actions:
  pay: {start: {flow: pay, input: {cents: "${input.payload.cents}"}}, on_error: broke}
  book: {start: {flow: book, input: {run: "${run.id}", paid: "${input.results.pay.paid}"}}, after: [pay]}
"#,
    );
    let book = read(
        r#"
flow: book
steps:
  tell: {send: {run: "${input.run}", event: done, payload: {paid: "${input.paid}"}}}
"#,
    );
    let shop = read(
        r#"
flow: shop
steps:
  order:
    send: {machine: order, key: "${input.order}", input: {shop: 1}, event: checkout, payload: {cents: "${input.cents}"}}
"#,
    );
    let store = memory();
    let engine = Engine::on(store).flow(&pay).definition(order, None).definition(book, None);
    let engine = engine.definition(shop, None).slots(1).start().await.unwrap();
    for (key, cents, status) in [("o-1", 1900, Status::Completed), ("o-2", 0, Status::Failed)] {
        let input = of(json!({ "order": key, "cents": cents }));
        let shop = engine.run_named("shop", input).await.unwrap().await.unwrap();
        let sent = tokio::time::timeout(SOON, shop.wait()).await.unwrap().unwrap();
        assert_eq!(sent.status, Status::Completed);
        let order = sent.result.unwrap().value()["order"]["runId"].as_str().unwrap().to_owned();
        let order = engine.key(&flowline::core::RunId::new(&order).unwrap());
        let outcome = tokio::time::timeout(SOON, engine.wait(&order)).await.unwrap().unwrap();
        assert_eq!(outcome.status, status, "{outcome:?}");
        if status == Status::Completed {
            assert_eq!(outcome.result.unwrap().value(), json!({"shop": 1, "receipt": {"paid": 1900}}));
        }
    }
    engine.stop().await;
}
