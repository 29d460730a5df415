//! `flows activate` and `flows retire`, and files that define the same flow.

use serde_json::json;

use crate::kit::place::{Here, ORDER};

/// The hash that a new run of the flow is pinned to.
fn runs_with(here: &Here) -> String {
    let run = here.start(&["order", "--input", r#"{"total": 1}"#]);
    here.json(0, &["show", &run])["definition"].as_str().unwrap().to_owned()
}

#[test]
fn a_version_is_activated_by_its_short_hash_and_a_retired_flow_comes_back() {
    let here = Here::new();
    let input = ["--input", r#"{"total": 1}"#];
    here.start(&[&["order.yaml"], &input[..]].concat());
    let first = runs_with(&here);
    here.write("order.yaml", &format!("{ORDER}\ndescription: another\n"));
    here.start(&[&["order.yaml"], &input[..]].concat());
    let second = runs_with(&here);
    assert_ne!(first, second);

    let changed = here.json(0, &["flows", "activate", "order", &first[..12]]);
    assert_eq!(changed, json!({ "flow": "order", "hash": first, "retired": false }));
    assert_eq!(runs_with(&here), first);
    here.flowline(&["flows", "activate", "order", "000000000000"]).refused(2, &["order", "flows --versions"]);
    here.flowline(&["flows", "activate", "none", &first]).refused(2, &["\"none\""]);

    let said = here.flowline(&["flows", "retire", "order"]);
    assert!(said.exit == 0 && said.out.contains("flow order is retired"), "{said:?}");
    here.flowline(&[&["start", "order"], &input[..]].concat())
        .refused(2, &["flow \"order\" is retired", "flowline flows activate order HASH"]);
    let refused = here.json(2, &[&["start", "order"], &input[..]].concat());
    assert_eq!(refused["error"]["code"], "flow-retired");
    let listed = here.json(0, &["flows"]);
    assert_eq!((&listed["items"][0]["retired"], &listed["items"][0]["hash"]), (&json!(true), &json!(second)));
    assert!(here.flowline(&["flows"]).out.contains("retired"));

    // Naming the file is a registration.
    here.start(&[&["order.yaml"], &input[..]].concat());
    assert_eq!(runs_with(&here), second);
    assert_eq!(here.json(0, &["flows"])["items"][0]["retired"], false);
}

#[test]
fn two_files_with_one_flow_do_not_validate() {
    let here = Here::new();
    here.write("again.yaml", ORDER);
    let said = here.flowline(&["validate", "order.yaml", "again.yaml", "slow.yaml"]);
    assert_eq!(said.exit, 2, "{said:?}");
    assert!(said.err.contains("order.yaml and again.yaml both define flow \"order\""), "{said:?}");
    let found = here.json(2, &["validate", "order.yaml", "again.yaml"]);
    assert_eq!((&found[0]["code"], &found[0]["file"]), (&json!("duplicate-flow"), &json!("again.yaml")));
    assert_eq!(here.flowline(&["validate", "order.yaml", "order.yaml"]).exit, 0);
}
