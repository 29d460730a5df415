//! What is refused, with which exit code, and what the message says.

use crate::kit::place::Here;

#[test]
fn input_that_is_no_json_or_breaks_the_schema_or_a_limit_is_refused() {
    let here = Here::new();
    here.flowline(&["run", "order.yaml", "--input", "{total"]).refused(2, &["--input", "not JSON", "help"]);
    here.flowline(&["run", "order.yaml", "--input", "{}"]).refused(2, &["total", "required"]);
    assert_eq!(here.json(2, &["start", "order.yaml", "--input", "{}"])["error"]["code"], "schema");
    let deep = "[".repeat(200) + &"]".repeat(200);
    here.flowline(&["run", "order.yaml", "--input", &deep]).refused(2, &["nested deeper"]);
    here.write("big.json", &format!("{:?}", "x".repeat(1 << 20)));
    let big = here.json(2, &["run", "order.yaml", "--input-file", "big.json"]);
    assert_eq!(big["error"]["code"], "limit");
    here.flowline(&["run", "order.yaml", "--input-file", "gone.json"]).refused(2, &["gone.json"]);
    here.flowline(&["run", "order.yaml", "--label", "team"]).refused(2, &["NAME=VALUE"]);
    let (key, input) = ("k".repeat(300), r#"{"total": 1}"#);
    here.flowline(&["run", "order.yaml", "--input", input, "--label", "a b=c"]).refused(2, &["label"]);
    here.flowline(&["run", "order.yaml", "--input", input, "--idempotency-key", &key])
        .refused(2, &["idempotency key"]);
    assert!(!here.path(".flowline").exists(), "what is refused makes no store");
}

#[test]
fn a_definition_that_is_missing_or_wrong_is_refused_with_its_place() {
    let here = Here::new();
    here.flowline(&["run", "gone.yaml"]).refused(2, &["gone.yaml", "help"]);
    here.flowline(&["run", "notes.txt"]).refused(2, &[".yaml"]);
    here.write("bad.yaml", "flow: x\nsteps:\n  a: { command: [ls], subscribes: [nope] }\n");
    here.flowline(&["run", "bad.yaml"]).refused(2, &["bad.yaml:3:", "nope"]);
    let answer = here.json(2, &["run", "bad.yaml"]);
    assert_eq!(answer["error"]["code"], "definition");
    assert!(answer["error"]["diagnostics"].as_array().unwrap().iter().any(|item| item["line"] == 3));
    assert!(!here.path(".flowline").exists(), "a refused definition makes no store");
}

#[test]
fn an_unknown_run_is_refused_with_how_to_find_one() {
    let here = Here::new();
    here.json(0, &["run", "approve.yaml"]);
    for command in [
        &["show", "nope"][..],
        &["events", "nope"],
        &["cancel", "nope"],
        &["retry", "nope"],
        &["show", "a/b"],
    ] {
        here.flowline(command).refused(2, &["flowline runs"]);
        assert_eq!(here.json(2, command)["error"]["code"], "no-such-run");
    }
}

#[test]
fn an_event_that_the_flow_does_not_accept_is_refused() {
    let here = Here::new();
    let run = here.start(&["approve.yaml"]);
    here.flowline(&["send", &run, "approval"]).refused(2, &["approval.given"]);
    here.flowline(&["send", &run, "approval.given", "--payload", "1"]).refused(2, &["schema"]);
}

#[test]
fn a_store_that_is_not_there_is_not_made_by_reading_or_steering() {
    let here = Here::new();
    for command in
        [&["runs"][..], &["show", "r"], &["cancel", "r"], &["queues"], &["retain"], &["start", "order"]]
    {
        here.flowline(command).refused(3, &["there is no store", "help"]);
    }
    assert!(!here.path(".flowline").exists());
}

#[test]
fn a_store_of_another_kind_is_refused_with_what_there_is() {
    let here = Here::new();
    for url in ["mysql://localhost/x", "plain.db", "sqlite:"] {
        here.flowline(&["runs", "--store", url]).refused(2, &["sqlite:PATH", "memory:"]);
    }
}

#[test]
fn a_file_that_is_not_ours_is_left_alone() {
    let here = Here::new();
    here.write("notes.txt", "no database");
    here.flowline(&["run", "approve.yaml", "--store", "sqlite:notes.txt"]).refused(3, &["notes.txt"]);
    assert_eq!(std::fs::read_to_string(here.path("notes.txt")).unwrap(), "no database");
    let answer = here.json(3, &["runs", "--store", "sqlite:notes.txt"]);
    assert_eq!(answer["error"]["code"], "store-incompatible");
}

#[test]
fn a_place_that_cannot_be_written_is_an_environment_error() {
    let here = Here::new();
    here.write("plain", "");
    here.flowline(&["run", "approve.yaml", "--store", "sqlite:plain/x/flowline.db"]).refused(3, &["plain"]);
    here.flowline(&["run", "approve.yaml", "--store", "sqlite:/proc/flowline.db"]).refused(3, &["/proc"]);
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_an_environment_error() {
    use std::os::unix::fs::PermissionsExt;
    let here = Here::new();
    let closed = here.path("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    // The administrator may write anywhere: there is nothing to refuse then.
    if std::fs::write(closed.join("probe"), "").is_ok() {
        return;
    }
    here.flowline(&["run", "approve.yaml", "--store", "sqlite:closed/flowline.db"])
        .refused(3, &["closed", "help"]);
}

#[test]
fn a_mistyped_command_line_is_usage_in_words_and_in_json() {
    let here = Here::new();
    here.flowline(&["runz"]).refused(2, &["runz"]);
    assert_eq!(here.json(2, &["runs", "--limit", "x"])["error"]["code"], "usage");
    here.flowline(&["runs", "--since", "yesterday"]).refused(3, &["there is no store"]);
    here.flowline(&["work", "--slots", "0"]).refused(2, &["slots"]);
    here.flowline(&["runs", "--tenant", "a/b"]).refused(2, &["tenant"]);
}

#[test]
fn a_time_bucket_without_width_is_refused() {
    let here = Here::new();
    here.start(&["slow.yaml"]);
    for width in ["0s", "0ms"] {
        here.flowline(&["stats", "--bucket", width]).refused(2, &["at least 1ms wide"]);
    }
    assert_eq!(here.flowline(&["stats", "--bucket", "1ms"]).exit, 0);
}

#[test]
fn a_command_under_a_lock_in_a_file_keeps_other_writers_out_and_they_are_told_what_to_do() {
    let here = Here::new();
    here.start(&["order.yaml", "--input", r#"{"total": 19}"#]);
    let (begun, done) = (here.path("begun"), here.path("done"));
    let script = format!("touch {}; while ! [ -e {} ]; do sleep 0.05; done", begun.display(), done.display());
    let mut running = here.spawn(&["locks", "run", "nightly", "--", "sh", "-c", &script]);
    while !begun.exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let other = here.flowline(&["locks", "run", "hourly", "--", "true"]);
    other.refused(
        3,
        &["in use", "a SQLite file has one writer at a time", "`flowline serve`", "--server URL"],
    );
    std::fs::write(done, "").unwrap();
    assert!(running.wait().unwrap().success());
    assert_eq!(here.flowline(&["locks", "run", "hourly", "--", "true"]).exit, 0);
}
