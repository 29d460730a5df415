//! `simulate`: the report on a flow, its JSON, and one seed's story.

use serde_json::Value;

use crate::kit::place::Here;

/// A gift that is never shipped when its paper runs out.
const GIFT: &str = r#"
flow: gift
steps:
  pick: { command: ["false"], returns: goods.picked }
  wrap: { subscribes: goods.picked, command: ["false"], returns: gift.wrapped, on_failure: continue }
  label: { subscribes: goods.picked, command: ["false"], returns: label.printed, timeout: 5s }
  ship: { subscribes: [gift.wrapped, label.printed], command: ["false"] }
"#;

fn here() -> Here {
    let here = Here::new();
    here.write("gift.yaml", GIFT);
    here
}

fn items<'a>(report: &'a Value, key: &str) -> &'a Vec<Value> {
    report[key].as_array().unwrap_or_else(|| panic!("{key} is missing: {report}"))
}

#[test]
fn a_join_that_a_failure_leaves_unsatisfied_is_reported_with_its_cause() {
    let report = here().json(0, &["simulate", "gift.yaml", "--seeds", "150"]);
    let silent = items(&report, "unsatisfiedJoins")
        .iter()
        .find(|join| join["run"] == "completed" && join["step"] == "ship")
        .unwrap_or_else(|| panic!("{report}"));
    assert_eq!(silent["missing"], serde_json::json!(["gift.wrapped"]));
    assert_eq!(silent["because"][0], serde_json::json!({ "of": "wrap", "how": "failed" }));
    let said = here().flowline(&["simulate", "gift.yaml", "--seeds", "150"]);
    assert!(
        said.out.contains("ship doesn't get gift.wrapped when wrap fails; the run completes without it"),
        "{said:?}"
    );
}

#[test]
fn a_report_tells_outcomes_ways_to_fail_repetitions_and_the_longest_path() {
    let report = here().json(0, &["simulate", "gift.yaml", "--seeds", "150"]);
    assert_eq!(
        (&report["flow"], &report["seeds"], &report["violations"]),
        (&"gift".into(), &150.into(), &serde_json::json!([]))
    );
    let seeds: u64 =
        items(&report, "outcomes").iter().map(|outcome| outcome["seeds"].as_u64().unwrap()).sum();
    assert_eq!(seeds, 150);
    let path = |step: &str| items(&report, "failurePaths").iter().find(|path| path["step"] == step).cloned();
    let label = path("label").unwrap_or_else(|| panic!("{report}"));
    let words: Vec<&str> =
        label["path"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(words[..3], ["start", "pick", "goods.picked"]);
    assert_eq!(words.last(), Some(&"the run fails"));
    assert!(path("wrap").is_none(), "its failure lets the run go on");
    assert!(items(&report, "mayRunTwice").iter().any(|twice| twice["why"] == "interrupted"), "{report}");
    assert_eq!(report["longestPath"]["steps"].as_array().unwrap().len(), 3);
    assert_eq!(report["neverRun"], serde_json::json!([]));
}

#[test]
fn a_seed_replays_the_same_story() {
    let here = here();
    let story = |seed: &str| here.flowline(&["simulate", "gift.yaml", "--seed", seed]);
    let (one, two) = (story("7"), story("7"));
    assert_eq!((one.exit, &one.out), (0, &two.out));
    assert!(one.out.lines().count() > 10, "{one:?}");
    assert_ne!(one.out, story("8").out);
    let json = here.json(0, &["simulate", "gift.yaml", "--seed", "7"]);
    assert_eq!(json["events"][0]["type"], "flow.start");
}

#[test]
fn a_flow_that_waits_for_somebody_is_found_waiting() {
    let report = here().json(0, &["simulate", "approve.yaml", "--seeds", "100"]);
    let wait = &items(&report, "waitsForEver")[0];
    assert_eq!((&wait["step"], &wait["events"]), (&"act".into(), &serde_json::json!(["approval.given"])));
}

#[test]
fn what_cannot_be_simulated_is_refused_with_its_place() {
    let here = here();
    here.write("bad.yaml", "flow: x\nsteps:\n  a: { command: [ls], subscribes: [nope] }\n");
    here.flowline(&["simulate", "bad.yaml"]).refused(2, &["bad.yaml:3", "nope"]);
    here.flowline(&["simulate", "order.yaml", "--input", "{}"]).refused(2, &["total"]);
    assert!(!here.path(".flowline").exists(), "nothing was made");
}

#[test]
fn a_machine_is_played_and_what_can_go_wrong_is_reported() {
    let here = Here::new();
    here.write(
        "claim.yaml",
        "machine: claim\ninput: { type: object, required: [amount], properties: { amount: { type: integer, minimum: 1, maximum: 200 } } }\n\
         events: [approve]\nstates:\n  review: { on: { approve: { to: done, if: context.amount > 100 } } }\n  done: { final: true }\n",
    );
    let report = here.json(0, &["simulate", "claim.yaml", "--seeds", "60"]);
    assert_eq!(report["stuckStates"][0]["state"], "review", "{report}");
    assert_eq!(report["stuckStates"][0]["events"], serde_json::json!(["approve"]));
    assert_eq!(report["lostEvents"][0]["event"], "approve");
    assert_eq!((&report["longestPath"], &report["violations"]), (&Value::Null, &serde_json::json!([])));
    let seed = report["stuckStates"][0]["seed"].to_string();
    let said = here.flowline(&["simulate", "claim.yaml", "--seeds", "60"]);
    assert!(said.out.contains("review: no condition of approve is true"), "{said:?}");
    let one = here.flowline(&["simulate", "claim.yaml", "--seed", &seed]);
    assert!(one.out.contains("States where a run can get stuck"), "{one:?}");
}
