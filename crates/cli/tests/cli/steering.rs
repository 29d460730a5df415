//! What is done to runs from outside.

use crate::kit::place::Here;

#[test]
fn a_run_is_started_paused_resumed_and_cancelled() {
    let here = Here::new();
    let run = here.start(&["slow.yaml", "--label", "team=a"]);
    let run = run.as_str();
    let act = |words: &[&str]| here.json(0, words);
    assert_eq!(act(&["pause", run])["status"], "paused");
    assert_eq!(act(&["pause", run])["changed"], false);
    assert_eq!(act(&["resume", run])["status"], "running");
    let cancelled = act(&["cancel", run, "--reason", "twice"]);
    assert_eq!((&cancelled["runId"], &cancelled["changed"]), (&run.into(), &true.into()));
    assert_eq!(here.json(2, &["pause", run])["error"]["code"], "run-ended");
    let shown = act(&["show", run]);
    assert_eq!((&shown["error"], &shown["steps"][0]["status"]), (&"twice".into(), &"dropped".into()));
    assert_eq!(act(&["explain", run])["steps"][0]["state"], "dropped");
}

#[test]
fn a_flow_in_the_store_is_started_by_its_name() {
    let here = Here::new();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    let answer = here.json(0, &["start", "order", "--input", r#"{"total": 2}"#, "--priority", "urgent"]);
    assert_eq!((&answer["flowName"], &answer["existed"]), (&"order".into(), &false.into()));
    assert_eq!(here.json(2, &["start", "ordr"])["error"]["code"], "no-such-flow");
}

#[test]
fn a_delayed_run_waits() {
    let here = Here::new();
    let run = here.start(&["slow.yaml", "--delay", "1h"]);
    assert_eq!(here.json(0, &["show", &run])["status"], "waiting");
    assert_eq!(here.json(0, &["queues"])["items"][0]["delayed"], 1);
    let told = here.flowline(&["explain", &run]).out;
    assert!(told.contains("start due at ") && !told.contains("ms"), "{told}");
}

#[test]
fn a_failed_run_is_retried_as_a_new_one() {
    let here = Here::new();
    let failed = here.json(1, &["run", "doomed.yaml"]);
    let first = failed["runId"].as_str().unwrap();
    let again = here.json(0, &["retry", first]);
    assert_ne!(again["runId"], failed["runId"]);
    let shown = here.json(0, &["show", again["runId"].as_str().unwrap()]);
    assert_eq!(shown["retryOf"], first);
    here.flowline(&["retry", first, "--from", "nope"]).refused(2, &["nope"]);
}

#[test]
fn runs_are_ended_by_hand() {
    let here = Here::new();
    let (one, two) = (here.start(&["slow.yaml"]), here.start(&["slow.yaml"]));
    assert_eq!(here.json(0, &["complete", &one, "--result", "[1]"])["status"], "completed");
    assert_eq!(here.json(0, &["fail", &two, "--error", "burnt"])["status"], "failed");
    assert_eq!(here.json(0, &["show", &one])["result"], serde_json::json!([1]));
    assert_eq!(here.json(0, &["show", &two])["error"], "burnt");
}

#[test]
fn a_step_that_nothing_triggered_is_skipped_at_its_runs_own_end_and_stays_pending_where_that_is_cut_off() {
    let here = Here::new();
    let text = "flow: hello\nsteps:\n  a: { command: ['true'], emits: [bad] }\n  \
        b: { subscribes: [bad], command: ['true'] }\n";
    here.write("hello.yaml", text);
    let of_b = |run: &str| here.json(0, &["show", run])["steps"][1]["status"].clone();
    let own = here.json(0, &["run", "hello.yaml"])["runId"].as_str().unwrap().to_owned();
    assert_eq!(of_b(&own), "skipped");
    for verb in [&["cancel"][..], &["complete"], &["fail", "--error", "burnt"]] {
        let run = here.start(&["hello.yaml"]);
        here.json(0, &[verb, &[&run]].concat());
        assert_eq!(of_b(&run), "pending", "{verb:?}");
    }
}

#[test]
fn a_paused_queue_is_not_worked_on_until_it_is_opened() {
    let here = Here::new();
    let run = here.start(&["approve.yaml"]);
    assert_eq!(here.json(0, &["queues", "pause", "default"])["paused"], true);
    let told = here.flowline(&["explain", &run]).out;
    assert_eq!(
        told.matches("queue \"default\" is paused; resume it with `flowline queues resume default`").count(),
        2,
        "of the run and of its step: {told}"
    );
    let worked = here.json(0, &["work", "--until-idle", "--patience", "0s"]);
    assert_eq!(worked["steps"]["completed"], 0);
    assert_eq!(here.json(0, &["queues"])["items"][0]["paused"], true);
    here.json(0, &["queues", "resume", "default"]);
    assert_eq!(here.json(0, &["work", "--until-idle"])["steps"]["completed"], 1);
    assert_eq!(here.json(0, &["queues"])["items"], serde_json::json!([]));
    here.json(0, &["queues", "pause", "reports"]);
    let rows = here.json(0, &["queues"]);
    assert_eq!((&rows["items"][0]["queue"], &rows["items"][0]["paused"]), (&"reports".into(), &true.into()));
}

#[test]
fn retention_removes_ended_runs_only() {
    let here = Here::new();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    here.start(&["slow.yaml"]);
    let done = here.json(0, &["retain", "--events", "0s", "--runs", "0s"]);
    assert_eq!(done["removed"], 1);
    assert_eq!(here.json(0, &["runs"])["items"][0]["flowName"], "slow");
    here.flowline(&["retain", "--events", "9d", "--runs", "1d"]).refused(2, &["--events"]);
}

#[test]
fn how_long_runs_are_kept_is_a_setting() {
    let here = Here::new();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    assert_eq!(here.json(0, &["retain"])["removed"], 0);
    here.write("flowline.toml", "keep-runs = \"0s\"");
    let kept = here.json(0, &["config"]);
    assert_eq!(kept["keep-events"]["value"], "0s", "events go with their run: {kept}");
    assert_eq!(here.json(0, &["retain"])["removed"], 1);
    here.write("flowline.toml", "keep-runs = \"1d\"\nkeep-events = \"2d\"");
    here.flowline(&["runs"]).refused(2, &["keep-events", "keep-runs"]);
}

#[test]
fn a_definition_says_how_long_its_runs_are_kept() {
    let here = Here::new();
    let text =
        |retain: &str| format!("flow: kept\nretain: {retain}\nsteps:\n  a: {{ command: [echo, hi] }}\n");
    here.write("kept.yaml", &text("{ events: 1ms, runs: 1h }"));
    let run = here.json(0, &["run", "kept.yaml"])["runId"].as_str().unwrap().to_owned();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    let show = here.json(0, &["show", &run]);
    assert_eq!(show["retain"], serde_json::json!({ "events": "1ms", "runs": "1h" }));
    let shown = here.flowline(&["show", &run]).out;
    let kept = shown.lines().find(|line| line.starts_with("kept")).unwrap_or_default();
    assert!(kept.contains("events until 20") && kept.contains("run until 20"), "{shown}");
    let done = here.json(0, &["retain"]);
    assert_eq!((&done["trimmed"], &done["removed"]), (&1.into(), &0.into()), "sooner than the settings say");
    let done = here.json(0, &["retain", "--events", "0s", "--runs", "0s"]);
    assert_eq!((&done["trimmed"], &done["removed"]), (&0.into(), &1.into()), "and later");
    assert_eq!(here.json(0, &["runs"])["items"][0]["runId"], run);
    here.json(0, &["verify"]);

    let live = here.start(&["slow.yaml"]);
    assert!(!here.flowline(&["show", &live]).out.contains("kept"), "as the settings say");
    here.write("kept.yaml", &text("{ events: 2h, runs: 1h }"));
    here.flowline(&["validate", "kept.yaml"])
        .refused(2, &["kept.yaml:2", "retain-order", "at least as long"]);
}
