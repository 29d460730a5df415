//! `delete`: one run, or all that a filter lets through.

use serde_json::{Value, json};

use crate::kit::place::Here;

fn ids(listed: &Value) -> Vec<String> {
    let mut ids: Vec<String> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["runId"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

#[test]
fn an_ended_run_is_deleted_and_its_key_is_free_and_one_at_work_is_refused() {
    let here = Here::new();
    let run = ["run", "order.yaml", "--input", r#"{"total": 1}"#, "--idempotency-key", "k"];
    let first = here.json(0, &run)["runId"].as_str().unwrap().to_owned();
    let waiting = here.json(0, &["run", "approve.yaml"])["runId"].as_str().unwrap().to_owned();
    here.flowline(&["delete", &waiting]).refused(2, &["hasn't ended", &format!("flowline cancel {waiting}")]);
    assert_eq!(here.json(0, &["delete", &first]), json!({ "runId": first, "deleted": true }));
    here.flowline(&["show", &first]).refused(2, &["there is no run"]);
    here.flowline(&["delete", &first]).refused(2, &["there is no run"]);
    assert_eq!(here.json(0, &["show", &waiting])["status"], "waiting");
    let other = ["run", "order.yaml", "--input", r#"{"total": 2}"#, "--idempotency-key", "k"];
    assert_eq!(here.json(0, &other)["runId"], json!(first), "the key names the same run, anew");
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
}

#[test]
fn a_filter_deletes_what_it_shows_in_a_dry_run_and_nothing_that_has_not_ended() {
    let here = Here::new();
    let run = |file: &str, exit, label: &str| {
        let input = ["--input", r#"{"total": 1}"#, "--label", label];
        here.json(exit, &[&["run", file], &input[..]].concat())["runId"].as_str().unwrap().to_owned()
    };
    let mut failed = [run("doomed.yaml", 1, "a=1"), run("doomed.yaml", 1, "a=2")];
    failed.sort();
    let completed = run("order.yaml", 0, "a=1");
    run("approve.yaml", 0, "a=1");
    here.flowline(&["delete"]).refused(2, &["--all"]);
    here.flowline(&["delete", "--status", "waiting"]).refused(2, &["only runs that have ended"]);

    let dry = here.json(0, &["delete", "--flow", "doomed", "--dry-run"]);
    assert_eq!((ids(&dry), &dry["deleted"], &dry["dryRun"]), (failed.to_vec(), &json!(0), &json!(true)));
    assert_eq!(here.json(0, &["runs"])["total"], 4, "a dry run deletes nothing");
    let done = here.json(0, &["delete", "--flow", "doomed"]);
    assert_eq!((ids(&done), &done["deleted"]), (failed.to_vec(), &json!(2)));
    assert_eq!(ids(&here.json(0, &["delete", "--label", "a=1"])), [completed]);
    assert_eq!(ids(&here.json(0, &["delete", "--all", "--dry-run"])), [""; 0]);
    assert_eq!(here.json(0, &["delete", "--all"])["deleted"], 0);
    assert_eq!(here.json(0, &["runs"])["total"], 1, "what waits is still there");
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
}
