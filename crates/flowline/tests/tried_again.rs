//! A machine's run that failed, taken up again in place: where it stands, what it applies, and what it refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowline::core::decide::Finish;
use flowline::core::event::EventType;
use flowline::core::{Json, RunKey, Status};
use flowline::machine::{stay, to};
use flowline::store::{EventQuery, ReceiptQuery, ReceiptStatus, RunRow};
use flowline::{ActionInput, Engine, Flow, Machine, RunHandle, Step, StepError};
use serde_json::{Value, json};

use crate::kit::memory;

const SOON: Duration = Duration::from_secs(10);

struct Place {
    engine: Engine,
    machine: Flow,
    /// Whether the bank answers.
    open: Arc<AtomicBool>,
}

impl Place {
    /// Draft, review and an end; paying fails while the bank is closed.
    async fn new() -> Place {
        let open = Arc::new(AtomicBool::new(false));
        let bank = open.clone();
        let pay = move |_: Step, input: ActionInput| {
            let open = bank.load(Ordering::SeqCst);
            async move {
                match open {
                    true => Ok(json!({ "paid": input.context["amount"] })),
                    false => Err(StepError::fatal("the bank is closed")),
                }
            }
        };
        let machine = Machine::new("claim")
            .events(["edit", "submit", "approve", "drop"])
            .context("amount", "input.amount")
            .state("draft")
            .on("edit", stay().set("amount", "payload.amount"))
            .on("submit", to("review"))
            .state("review")
            .after(Duration::from_secs(3_600), to("draft"))
            .on("approve", to("paid").set("by", "user").actions(["pay"]))
            .on("drop", to("dropped"))
            .state("paid")
            .on("edit", to("closed"))
            .state("closed")
            .completes()
            .state("dropped")
            .fails()
            .action("pay", pay)
            .build()
            .unwrap();
        let store = memory();
        let engine = Engine::on(store).flow(&machine).start().await.unwrap();
        Place { engine, machine, open }
    }

    async fn begin(&self) -> RunHandle {
        self.engine.run(&self.machine, json!({ "amount": 7 })).await.unwrap()
    }

    async fn send(&self, run: &RunKey, id: &str, name: &str, payload: Value) -> ReceiptStatus {
        let sent = self.engine.event(run, name, Json::from(payload)).event_id(id).user("ada");
        let (_, receipt) = sent.wait(SOON).await.unwrap();
        receipt.unwrap().status
    }

    /// In review, after an edit; then an approval that fails the run, with another event behind it.
    async fn failed(&self) -> RunHandle {
        let run = self.begin().await;
        self.send(run.key(), "e1", "edit", json!({ "amount": 9 })).await;
        self.send(run.key(), "e2", "submit", Value::Null).await;
        assert_eq!(self.send(run.key(), "e3", "approve", Value::Null).await, ReceiptStatus::Failed);
        assert_eq!(run.wait().await.unwrap().status, Status::Failed);
        run
    }

    async fn row(&self, run: &RunKey) -> RunRow {
        self.engine.row(run).await.unwrap()
    }

    async fn log(&self, run: &RunKey, kind: EventType) -> Vec<Value> {
        let query = EventQuery { kinds: vec![kind], ..EventQuery::default() };
        let page = self.engine.store().events(run, query).await.unwrap();
        page.events.iter().map(|event| event.data.as_ref().unwrap().value()).collect()
    }

    async fn receipts(&self, run: &RunKey) -> Vec<(String, ReceiptStatus)> {
        let query = ReceiptQuery { run: Some(run.run.clone()), ..ReceiptQuery::of(run.tenant.clone()) };
        let page = self.engine.store().receipts(query).await.unwrap();
        let mut all: Vec<_> =
            page.items.iter().map(|one| (one.number, one.event_id.to_string(), one.status)).collect();
        all.sort_by_key(|(number, ..)| *number);
        all.into_iter().map(|(_, id, status)| (id, status)).collect()
    }

    async fn verified(&self, run: &RunKey) {
        let plans = self.engine.plans();
        let report = flowline::verify::verify_run(self.engine.store(), plans, run).await.unwrap();
        assert_eq!(report.violations, []);
    }
}

#[tokio::test]
async fn a_failed_event_is_applied_again_where_it_failed() {
    let place = Place::new().await;
    let old = place.failed().await;
    let due = place.log(old.key(), EventType::TimerSet).await[0]["at"].clone();
    place.open.store(true, Ordering::SeqCst);
    let new = place.engine.retry(old.key(), None).await.unwrap();
    place.engine.wait_for_receipt(new.key(), "e3", tokio::time::Instant::now() + SOON).await.unwrap();
    let row = place.row(new.key()).await;
    assert_eq!((row.state.as_deref(), row.retry_of.as_ref()), (Some("paid"), Some(old.id())));
    let changes = place.log(new.key(), EventType::StateChanged).await;
    assert_eq!(
        changes[0],
        json!({ "to": "review", "transition": 3, "context": { "amount": 9 }, "inherited": true })
    );
    assert_eq!((&changes[1]["event"], &changes[1]["transition"]), (&json!("approve"), &json!(4)));
    assert_eq!(changes[1]["context"], json!({ "amount": 9, "by": "ada" }));
    assert_eq!(place.log(new.key(), EventType::TimerSet).await[0]["at"], due, "it keeps its time");
    let known = [
        ("e1", ReceiptStatus::Completed),
        ("e2", ReceiptStatus::Completed),
        ("e3", ReceiptStatus::Completed),
    ];
    assert_eq!(place.receipts(new.key()).await, known.map(|(id, status)| (id.to_owned(), status)));
    let again = place.engine.event(new.key(), "edit", Json::null()).event_id("e1").send().await.unwrap();
    assert!(!again.changed, "it was taken in before, by the run that this one repeats");
    assert_eq!(place.send(new.key(), "e4", "edit", Value::Null).await, ReceiptStatus::Completed);
    assert_eq!(new.wait().await.unwrap().status, Status::Completed);
    place.verified(old.key()).await;
    place.verified(new.key()).await;
}

#[tokio::test]
async fn a_retry_that_fails_again_can_be_retried_again() {
    let place = Place::new().await;
    let old = place.failed().await;
    let second = place.engine.retry(old.key(), None).await.unwrap();
    assert_eq!(second.wait().await.unwrap().status, Status::Failed);
    place.open.store(true, Ordering::SeqCst);
    let third = place.engine.retry(second.key(), None).await.unwrap();
    place.engine.wait_for_receipt(third.key(), "e3", tokio::time::Instant::now() + SOON).await.unwrap();
    assert_eq!(place.row(third.key()).await.state.as_deref(), Some("paid"));
    assert_eq!(place.receipts(third.key()).await.len(), 3);
    place.verified(third.key()).await;
}

#[tokio::test]
async fn a_run_that_was_ended_while_it_waited_stands_where_it_stood() {
    let place = Place::new().await;
    for by_hand in [true, false] {
        let run = place.begin().await;
        place.send(run.key(), "e1", "submit", Value::Null).await;
        let ended = match by_hand {
            true => place.engine.finish(run.key(), Finish::Failed { error: "no".to_owned() }).await,
            false => place.engine.cancel(run.key(), None).await,
        };
        assert!(ended.unwrap().changed);
        let new = place.engine.retry(run.key(), None).await.unwrap();
        let row = place.row(new.key()).await;
        assert_eq!((row.state.as_deref(), row.status), (Some("review"), Status::Waiting));
        assert_eq!(place.receipts(new.key()).await, [("e1".to_owned(), ReceiptStatus::Completed)]);
        assert_eq!(
            place.log(new.key(), EventType::TimerSet).await,
            place.log(run.key(), EventType::TimerSet).await
        );
        place.verified(new.key()).await;
    }
}

#[tokio::test]
async fn a_run_that_came_to_a_final_state_is_retried_from_the_start_alone() {
    let place = Place::new().await;
    let run = place.begin().await;
    place.send(run.key(), "e1", "submit", Value::Null).await;
    place.send(run.key(), "e2", "drop", Value::Null).await;
    let refused = place.engine.retry(run.key(), None).await.err().unwrap().to_string();
    assert!(refused.contains("final state \"dropped\"") && refused.contains("from the start"), "{refused}");
    let new = place.engine.retry_from_start(run.key()).await.unwrap();
    let row = place.row(new.key()).await;
    assert_eq!((row.state.as_deref(), row.retry_of.as_ref()), (Some("draft"), Some(run.id())));
    assert!(place.receipts(new.key()).await.is_empty());
}

#[tokio::test]
async fn an_action_that_sent_the_machine_to_a_failed_end_is_tried_again() {
    let open = Arc::new(AtomicBool::new(false));
    let bank = open.clone();
    let pay = move |_: Step, _: ActionInput| {
        let open = bank.load(Ordering::SeqCst);
        async move { if open { Ok(Value::Null) } else { Err(StepError::fatal("the bank is closed")) } }
    };
    let machine = Machine::new("order")
        .events(["approve"])
        .state("review")
        .on("approve", to("paid").actions(["pay"]))
        .state("paid")
        .completes()
        .state("broken")
        .fails()
        .action("pay", pay)
        .on_error("broken")
        .build()
        .unwrap();
    let store = memory();
    let engine = Engine::on(store).flow(&machine).start().await.unwrap();
    let place = Place { engine, machine, open };
    let old = place.begin().await;
    assert_eq!(place.send(old.key(), "e1", "approve", Value::Null).await, ReceiptStatus::Failed);
    assert_eq!(old.wait().await.unwrap().status, Status::Failed);
    assert_eq!(place.row(old.key()).await.state.as_deref(), Some("broken"));
    place.open.store(true, Ordering::SeqCst);
    let new = place.engine.retry(old.key(), None).await.unwrap();
    assert_eq!(new.wait().await.unwrap().status, Status::Completed);
    assert_eq!(place.receipts(new.key()).await, [("e1".to_owned(), ReceiptStatus::Completed)]);
    place.verified(new.key()).await;
}
