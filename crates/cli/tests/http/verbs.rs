//! The client's methods, against a real server.

use std::time::Duration;

use flowline_client::Client;
use flowline_client::api::access::{NewToken, RotateToken, TokenScope};
use flowline_client::api::events::{EventSend, StartOrSend};
use flowline_client::api::queues::Redrive;
use flowline_client::api::runs::{
    BatchOutcome, BatchStart, BulkAction, BulkRequest, CancelRun, CompleteRun, FailRun, RetryRun, RunFilter,
    RunStart,
};
use flowline_client::api::state::StateWrite;
use flowline_client::types::{Json, Status};

use crate::kit::served::Served;

const WAIT: Option<Duration> = Some(Duration::from_secs(20));
const YAML: &str = "application/yaml";

#[tokio::test]
async fn every_method_of_the_client_reads_what_the_server_answers() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--allow-commands"]);
    let client = Client::new(&format!("http://{}", served.address)).unwrap();
    assert_eq!(client.health().await.unwrap().status, "ok");

    let quick = "flow: quick\naccepts: { nudge: {} }\nsteps:\n  say: { command: [sh, -c, 'echo \"{\\\"result\\\": 1.50}\"'] }\n";
    let slow = "flow: slow\naccepts: { nudge: {} }\nsteps:\n  wait: { subscribes: [nudge], worker: depot }\n";
    let machine = "machine: door\nevents: { open: {}, shut: {} }\ninitial: shut\nstates:\n  shut: { on: { open: { to: opened } } }\n  opened: { on: { shut: { to: shut } } }\n";
    assert!(client.validate(YAML, slow).await.unwrap().valid);
    let registered = client.register(YAML, slow).await.unwrap();
    assert!(registered.created);
    client.register(YAML, quick).await.unwrap();
    client.register(YAML, machine).await.unwrap();
    assert_eq!(client.flows(&[]).await.unwrap().items.len(), 3);
    assert_eq!(client.flow("slow", &[]).await.unwrap().stored.hash, registered.hash);
    assert_eq!(client.versions("slow").await.unwrap().items.len(), 1);
    assert!(!client.graph("slow", &[]).await.unwrap().nodes.is_empty());
    assert!(client.retire("slow").await.unwrap().retired);
    assert_eq!(client.activate("slow", &registered.hash).await.unwrap().hash, Some(registered.hash));

    let done = client.start("quick", &RunStart::default(), WAIT).await.unwrap();
    assert_eq!(done.status, Status::Completed);
    let run = done.run_id.as_str();
    assert_eq!(client.result(run, None).await.unwrap().status, Status::Completed);
    let shown = client.show(run).await.unwrap();
    assert_eq!((shown.row.status, shown.parts.steps.len()), (Status::Completed, 1));
    assert!(shown.parts.result.unwrap().get().contains("1.50"), "digits stay as they are");
    assert!(client.events(run, &[("limit", "2")]).await.unwrap().has_more);
    assert!(client.explain(run).await.unwrap().summary.contains("completed"));
    assert!(client.verify(run).await.unwrap().violations.is_empty());
    assert!(client.verify_all().await.unwrap().violations.is_empty());
    assert_eq!(client.stats(&[]).await.unwrap().total.runs, 1);
    assert!(client.run_state(run, &[]).await.unwrap().values.is_empty());

    let of = |flow: &str| RunStart { flow: Some(flow.to_owned()), ..RunStart::default() };
    let batch = BatchStart { runs: vec![of("slow"), of("nowhere"), of("slow"), of("slow")] };
    let started = client.start_batch(&batch).await.unwrap().items;
    let [
        BatchOutcome::Started(one),
        BatchOutcome::Refused { error },
        BatchOutcome::Started(two),
        BatchOutcome::Started(three),
    ] = &started[..]
    else {
        panic!("{started:?}")
    };
    assert_eq!(error.code, "no-such-flow");
    let (one, two, three) = (one.run_id.as_str(), two.run_id.as_str(), three.run_id.as_str());
    assert_eq!(client.pause(one).await.unwrap().status, Status::Paused);
    assert!(client.resume(one).await.unwrap().changed);
    let nudge = EventSend { name: "nudge".to_owned(), ..EventSend::default() };
    assert!(client.send_event(one, &nudge, None).await.unwrap().changed);
    assert_eq!(client.queues().await.unwrap().items.len(), 1);
    assert_eq!(client.queue("depot").await.unwrap().items[0].ready, 1);
    assert!(client.pause_queue("depot").await.unwrap().paused);
    assert!(!client.resume_queue("depot").await.unwrap().paused);
    assert!(client.dead_letters("depot", &[]).await.unwrap().items.is_empty());
    assert!(client.redrive("depot", &Redrive::default()).await.unwrap().items.is_empty());
    assert!(client.workers(&[]).await.unwrap().items.is_empty());
    assert_eq!(client.cancel(one, &CancelRun::default()).await.unwrap().status, Status::Cancelled);
    assert_eq!(client.complete_run(two, &CompleteRun::default()).await.unwrap().status, Status::Completed);
    let fail = FailRun { error: "by hand".to_owned() };
    assert_eq!(client.fail_run(three, &fail).await.unwrap().status, Status::Failed);
    assert_eq!(client.retry(one, &RetryRun::default()).await.unwrap().retry_of.as_str(), one);
    client.delete_run(two).await.unwrap();
    let bulk = BulkRequest {
        action: BulkAction::Cancel,
        filter: RunFilter { flow: Some("slow".to_owned()), ..RunFilter::default() },
        dry_run: true,
        limit: None,
        cursor: None,
        reason: None,
        from_start: false,
    };
    assert_eq!(client.bulk(&bulk).await.unwrap().items.len(), 3);
    assert_eq!(client.runs(&[("flow", "slow"), ("status", "failed")]).await.unwrap().items.len(), 1);

    let open = StartOrSend { key: "front/1".to_owned(), name: "open".to_owned(), ..StartOrSend::default() };
    let sent = client.start_or_send("door", &open, WAIT).await.unwrap();
    assert_eq!(sent.receipt.unwrap().result.unwrap().current_state, "opened");
    assert_eq!(client.show(sent.run_id.as_str()).await.unwrap().machine.unwrap().inbox, 0);
    assert_eq!(client.receipts(&[]).await.unwrap().items.len(), 1);
    assert_eq!(client.receipts_of(sent.run_id.as_str(), &[]).await.unwrap().items.len(), 1);
    assert!(client.receipt(sent.run_id.as_str(), &sent.event_id, WAIT).await.unwrap().is_done());

    let write = StateWrite { value: Json::composed("2.0".to_owned()), ttl: None };
    assert!(client.set_value("orders", "a/b c", &write).await.unwrap().changed);
    assert_eq!(client.value("orders", "a/b c").await.unwrap().value.get(), "2.0");
    assert_eq!(client.values("orders", &[]).await.unwrap().items.len(), 1);
    assert_eq!(client.scopes().await.unwrap().items.len(), 1);
    assert!(client.delete_value("orders", "a/b c").await.unwrap().changed);
    assert!(client.locks().await.unwrap().is_empty());

    let new = NewToken { subject: "ci".to_owned(), scopes: vec![TokenScope::Admin], ..NewToken::default() };
    let made = client.create_token(&new).await.unwrap();
    assert_eq!(client.tokens().await.unwrap().items, std::slice::from_ref(&made.row));
    assert_eq!(client.whoami().await.unwrap().subject, "anyone", "this server asks for no token");
    assert!(!client.audit(&[("limit", "3")]).await.unwrap().items.is_empty());
    let rotate = RotateToken { overlap: Some("0s".to_owned()), expires: Some("1d".to_owned()) };
    let replacing = client.rotate_token(&made.row.id, &rotate).await.unwrap();
    assert_eq!(client.tokens().await.unwrap().items, std::slice::from_ref(&replacing.row));
    client.revoke_token(&replacing.row.id).await.unwrap();
}
