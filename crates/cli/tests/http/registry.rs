//! Which definition new runs use: by the API, by the files of a folder, and what a server can't run.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::served::Served;

fn version(n: u32) -> String {
    format!("flow: order\ndescription: version {n}\nsteps:\n  a: {{ worker: depot }}\n")
}

fn register(served: &Served, n: u32) -> String {
    let reply = served.send("POST", "/v1/flows", &[("content-type", "application/yaml")], &version(n));
    assert!(reply.status == 200 || reply.status == 201, "{reply:?}");
    reply.json()["hash"].as_str().unwrap().to_owned()
}

fn start(served: &Served) -> Value {
    served.post("/v1/flows/order/runs", &json!({})).json()
}

/// The definition that a run is pinned to.
fn definition_of(served: &Served, run: &Value) -> Value {
    served.get(&format!("/v1/runs/{}", run["runId"].as_str().unwrap())).json()["definition"].clone()
}

#[test]
fn an_edit_that_is_undone_is_registered_again() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let (first, second) = (register(&served, 1), register(&served, 2));
    assert_eq!(definition_of(&served, &start(&served)), json!(second));
    assert_eq!(register(&served, 1), first);
    assert_eq!(definition_of(&served, &start(&served)), json!(first));
    assert_eq!(served.get("/v1/flows/order").json()["hash"], json!(first));
}

#[test]
fn a_definition_says_how_long_its_runs_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let define = |retain: Value| {
        let definition =
            json!({ "flow": "order", "retain": retain, "steps": { "a": { "worker": "depot" } } });
        served.post("/v1/flows", &definition)
    };
    assert_eq!(define(json!({ "events": "1d", "runs": "7d" })).status, 201);
    let kept = start(&served);
    let shown = served.get(&format!("/v1/runs/{}", kept["runId"].as_str().unwrap())).json();
    assert_eq!(shown["retain"], json!({ "events": "1d", "runs": "7d" }));
    let flow = served.get("/v1/flows/order").json();
    assert_eq!(flow["definition"]["retain"], json!({ "events": "1d", "runs": "7d" }));
    assert_eq!(define(json!({ "events": "12h" })).status, 201);
    start(&served);
    let listed = served.get("/v1/runs").json();
    let retains: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|run| &run["retain"]).collect();
    assert_eq!(retains, [&json!({ "events": "12h" }), &json!({ "events": "1d", "runs": "7d" })]);
    let refused = define(json!({ "events": "8d", "runs": "7d" }));
    assert_eq!(refused.status, 400, "{refused:?}");
    let said = refused.json().to_string();
    assert!(said.contains("retain.events") && said.contains("at least as long as their events"), "{said}");
}

#[test]
fn a_version_is_activated_and_a_flow_is_retired_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let (first, second) = (register(&served, 1), register(&served, 2));
    let activate = |hash: &str| served.post("/v1/flows/order/activate", &json!({ "version": hash }));
    assert_eq!(activate(&first[..8]).json(), json!({ "flow": "order", "hash": first, "retired": false }));
    let under_way = start(&served);
    assert_eq!(definition_of(&served, &under_way), json!(first));
    for (hash, code) in [("0000000000", "no-such-flow"), (&first[..3], "no-such-flow")] {
        assert_eq!(activate(hash).code(), code, "{hash}");
    }
    assert_eq!(served.post("/v1/flows/none/activate", &json!({ "version": first })).code(), "no-such-flow");
    assert_eq!(served.post("/v1/flows/none/retire", &json!({})).code(), "no-such-flow");

    let retired = served.post("/v1/flows/order/retire", &json!({}));
    assert_eq!(retired.json(), json!({ "flow": "order", "hash": null, "retired": true }));
    let refused = served.post("/v1/flows/order/runs", &json!({}));
    assert_eq!((refused.status, refused.code().as_str()), (409, "flow-retired"));
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("flowline flows activate order"), "{detail}");
    let listed = served.get("/v1/flows").json()["items"].clone();
    assert_eq!(
        (&listed[0]["flow"], &listed[0]["hash"], &listed[0]["retired"], &listed[0]["latest"]),
        (&json!("order"), &json!(second), &json!(true), &json!(false)),
        "the newest definition stands for a retired flow: {listed}"
    );
    assert_eq!(served.get("/v1/flows/order").json()["retired"], true);
    assert_eq!(served.get("/v1/flows/order/graph").status, 200);
    assert_eq!(definition_of(&served, &under_way), json!(first), "what is under way goes on");

    register(&served, 2);
    assert_eq!(definition_of(&served, &start(&served)), json!(second));
    let audit = served.get("/v1/audit").json()["items"].clone();
    for path in ["/v1/flows/order/activate", "/v1/flows/order/retire"] {
        let lines = audit.as_array().unwrap().iter();
        assert!(lines.clone().any(|line| line["path"] == path && line["status"] == 200), "{path}: {audit}");
    }
}

#[test]
fn an_instance_that_starts_with_an_older_file_does_not_turn_the_flow_back() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("flows")).unwrap();
    let file = folder.path().join("flows/order.yaml");
    let serve = |n: u32| {
        std::fs::write(&file, version(n)).unwrap();
        Served::start(folder.path(), &["--flows", "flows"])
    };
    drop(serve(1));
    let second = serve(2).get("/v1/flows/order").json()["hash"].clone();
    let served = serve(1);
    assert_eq!(served.get("/v1/flows/order").json()["hash"], second);
    assert!(served.began.contains("the store has a newer version of flow order"), "{}", served.began);
    assert!(served.began.contains("flowline flows activate order "), "{}", served.began);
    served.post("/v1/flows/order/retire", &json!({}));
    drop(served);
    let served = serve(2);
    assert_eq!(served.get("/v1/flows/order").json()["retired"], true);
    assert!(served.began.contains("flow order is retired"), "{}", served.began);
}

/// Asks until the flow is as expected: a folder is looked at twice a second.
#[track_caller]
fn becomes(served: &Served, flow: &str, expected: impl Fn(&Value) -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let shown = served.get(&format!("/v1/flows/{flow}")).json();
        if expected(&shown) {
            return;
        }
        assert!(Instant::now() < until, "it stays {shown}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn dev(folder: &Path) -> Served {
    Served::command(folder, &["dev", "--listen", "127.0.0.1:0", "--flows", "flows"]).unwrap()
}

#[test]
fn in_dev_a_saved_file_is_current_and_one_that_goes_away_is_retired() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("flows")).unwrap();
    let path = |name: &str| folder.path().join("flows").join(name);
    let save = |name: &str, n: u32| std::fs::write(path(name), version(n)).unwrap();
    let is = |n: u32| {
        move |shown: &Value| {
            shown["retired"] == false && shown["definition"]["description"] == format!("version {n}")
        }
    };
    save("order.yaml", 1);
    let served = dev(folder.path());
    for n in [1, 2, 1, 2] {
        save("order.yaml", n);
        becomes(&served, "order", is(n));
    }
    // A file that is renamed is no other flow.
    std::fs::rename(path("order.yaml"), path("renamed.yaml")).unwrap();
    save("renamed.yaml", 3);
    becomes(&served, "order", is(3));
    // A second file with the same name is refused, and taken once the first is gone.
    save("second.yaml", 4);
    std::fs::write(path("other.yaml"), "flow: other\nsteps:\n  a: { worker: depot }\n").unwrap();
    becomes(&served, "other", |shown| shown["retired"] == false);
    becomes(&served, "order", is(3));
    std::fs::remove_file(path("renamed.yaml")).unwrap();
    becomes(&served, "order", is(4));
    std::fs::remove_file(path("second.yaml")).unwrap();
    becomes(&served, "order", |shown| shown["retired"] == true);
    save("order.yaml", 1);
    becomes(&served, "order", is(1));
    let said = served.said().join("\n");
    for text in [
        "renamed.yaml and flows/second.yaml both define flow \"order\"",
        "second.yaml is gone: flow order is retired",
    ] {
        assert!(said.contains(text), "{text:?} is missing: {said}");
    }
    assert!(!said.contains("order.yaml is gone: flow order is retired"), "{said}");
}

#[test]
fn two_files_with_one_flow_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("flows")).unwrap();
    for name in ["flows/a.yaml", "flows/b.yaml"] {
        std::fs::write(folder.path().join(name), version(1)).unwrap();
    }
    let refused = Served::command(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--flows", "flows"]);
    let said = refused.err().expect("it does not start");
    assert!(said.contains("flows/a.yaml and flows/b.yaml both define flow"), "{said}");
    assert!(said.contains("rename one of the flows"), "{said}");
}

#[test]
fn a_server_says_which_steps_it_cannot_run_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("flows")).unwrap();
    let flow = "flow: shell\nsteps:\n  say: { command: [echo, hello] }\n  far: { worker: depot }\n";
    std::fs::write(folder.path().join("flows/shell.yaml"), flow).unwrap();
    let served = Served::start(folder.path(), &["--flows", "flows"]);
    let remedy = "start the server with --allow-commands, or stop it and run `flowline work` instead";
    assert!(
        served.began.contains("flows/shell.yaml: step say can't run on this instance"),
        "{}",
        served.began
    );
    assert!(served.began.contains(remedy), "{}", served.began);

    let listed = served.get("/v1/flows").json()["items"][0]["notRunHere"].clone();
    assert_eq!(listed, json!([{ "need": "command", "steps": ["say"], "remedy": remedy }]));
    let again = served.send("POST", "/v1/flows", &[("content-type", "application/yaml")], flow).json();
    assert_eq!(
        (&again["warnings"][0]["code"], &again["warnings"][0]["help"]),
        (&json!("not-run-here"), &json!(remedy))
    );
    let run = served.post("/v1/flows/shell/runs", &json!({})).json();
    let explained = served.get(&format!("/v1/runs/{}/explain", run["runId"].as_str().unwrap())).json();
    let steps = explained["steps"].as_array().unwrap();
    let reason = steps.iter().find(|step| step["step"] == "say").unwrap()["reason"].as_str().unwrap();
    assert!(
        reason.contains(remedy) && reason.contains("this instance doesn't run \"command\" steps"),
        "{reason}"
    );
    drop(served);

    let allowed = Served::start(folder.path(), &["--flows", "flows", "--allow-commands"]);
    assert!(!allowed.began.contains("can't run"), "{}", allowed.began);
    assert!(allowed.get("/v1/flows").json()["items"][0]["notRunHere"].is_null());
}
