//! Lists, logs, checks and what needs no store.

use std::process::Stdio;

use crate::kit::place::{Here, Said};

fn with_runs() -> Here {
    let here = Here::new();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#, "--label", "team=a"]);
    here.json(1, &["run", "doomed.yaml"]);
    here.json(0, &["run", "approve.yaml"]);
    here
}

#[test]
fn runs_are_listed_filtered_and_paged() {
    let here = with_runs();
    let all = here.json(0, &["runs"]);
    assert_eq!((&all["total"], &all["hasMore"]), (&3.into(), &false.into()));
    assert_eq!(all["items"][0]["flowName"], "approve", "newest first");
    assert_eq!(here.json(0, &["runs", "--status", "failed"])["total"], 1);
    assert_eq!(here.json(0, &["runs", "--label", "team=a"])["items"][0]["flowName"], "order");
    assert_eq!(here.json(0, &["runs", "--flow", "order", "--since", "1h"])["total"], 1);
    assert_eq!(here.json(0, &["runs", "--until", "1h"])["total"], 0);
    let page = here.json(0, &["runs", "--limit", "2"]);
    assert_eq!((page["items"].as_array().unwrap().len(), &page["hasMore"]), (2, &true.into()));
    let rest = here.json(0, &["runs", "--limit", "2", "--cursor", page["next"].as_str().unwrap()]);
    assert_eq!(rest["items"][0]["flowName"], "order");
    let every = here.json(0, &["runs", "--limit", "1", "--all"]);
    assert_eq!(every["items"].as_array().unwrap().len(), 3);
    let said = here.flowline(&["runs"]);
    assert!(said.out.starts_with("RUN") && said.err.contains("3 of 3"), "{said:?}");
    assert_eq!(here.json(0, &["runs", "--tenant", "other"])["total"], 0);
}

#[test]
fn flows_are_listed_with_their_versions() {
    let here = with_runs();
    here.write("order.yaml", &crate::kit::place::ORDER.replace("shipping", "shipped"));
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    let flows = here.json(0, &["flows"]);
    let order = flows["items"].as_array().unwrap().iter().find(|flow| flow["flow"] == "order").unwrap();
    assert_eq!((&order["latest"], &order["runs"]["completed"]), (&true.into(), &2.into()));
    assert_eq!(here.json(0, &["flows", "--versions"])["items"].as_array().unwrap().len(), 4);
}

#[test]
fn events_are_filtered_and_written_as_json_lines() {
    let here = with_runs();
    let runs = here.json(0, &["runs", "--flow", "order"]);
    let run = runs["items"][0]["runId"].as_str().unwrap();
    let types = |flags: &[&str]| -> Vec<String> {
        let said = here.flowline(&[&["events", run, "--json"], flags].concat());
        assert_eq!(said.exit, 0, "{said:?}");
        let kind = |line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["type"].as_str().unwrap().to_owned()
        };
        said.out.lines().map(kind).collect()
    };
    let all = types(&[]);
    assert_eq!((all[0].as_str(), all.last().unwrap().as_str()), ("flow.start", "flow.completed"));
    assert_eq!(types(&["--type", "emit"]), ["emit"]);
    assert_eq!(types(&["--step", "ship", "--type", "log", "--attempt", "1"]), ["log"]);
    assert_eq!(types(&["--after", "2", "--limit", "1"]), all[2..3]);
    assert_eq!(types(&["--follow"]), all, "the run has ended: following ends too");
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let here = with_runs();
    let mut child = here.command(&["schema"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let said = Said::of(child.wait_with_output().unwrap());
    assert_eq!((said.exit, said.err.as_str()), (0, ""));
}

#[test]
fn doctor_finds_a_sound_store_sound() {
    let here = with_runs();
    let answer = here.json(0, &["doctor"]);
    assert_eq!(answer["ok"], true);
    let checks: Vec<&str> =
        answer["checks"].as_array().unwrap().iter().map(|check| check["check"].as_str().unwrap()).collect();
    for check in ["file", "writable", "disk", "engine", "clock", "store", "durability", "content", "time"] {
        assert!(checks.contains(&check), "{check} is missing");
    }
}

#[cfg(unix)]
#[test]
fn doctor_warns_about_files_and_folders_that_others_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let here = with_runs();
    let access = |words: &[&str]| {
        let answer = here.json(0, &["doctor"]);
        let found = answer["checks"].as_array().unwrap().iter().find(|check| check["check"] == "access");
        let found = found.unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(found["verdict"], if words.is_empty() { "ok" } else { "warn" }, "{found}");
        for word in words {
            assert!(found["message"].as_str().unwrap().contains(word), "{word:?} is missing in {found}");
        }
    };
    access(&[]);
    for (name, before, after) in [
        (".flowline", 0o700, 0o755),
        (".flowline/flowline.db", 0o600, 0o644),
        (".flowline/flowline.db.lock", 0o600, 0o660),
    ] {
        let set =
            |mode| std::fs::set_permissions(here.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        set(after);
        access(&[&format!("{name} has mode {after:04o}")]);
        set(before);
    }
    access(&[]);
}

#[test]
fn doctor_finds_a_broken_store_bad() {
    let here = Here::new();
    here.write("notes.txt", "no database");
    let said = here.flowline(&["doctor", "--store", "sqlite:notes.txt"]);
    assert_eq!(said.exit, 1, "{said:?}");
    assert!(said.out.contains("bad") && said.out.contains("help:"), "{said:?}");
}

#[test]
fn definitions_are_checked_and_drawn_without_a_store() {
    let here = Here::new();
    here.write("bad.yaml", "flow: x\nsteps:\n  a: { command: [ls], subscribes: [nope] }\n");
    here.write("doubtful.yaml", "flow: y\nsteps:\n  a: { command: [ls], emits: [unused] }\n");
    assert_eq!(here.json(0, &["validate", "order.yaml"]), serde_json::json!([]));
    let found = here.json(2, &["validate", "order.yaml", "bad.yaml", "gone.yaml"]);
    let found = found.as_array().unwrap();
    let bad = found.iter().find(|item| item["code"] == "unknown-event").unwrap();
    assert_eq!((&bad["file"], &bad["line"]), (&"bad.yaml".into(), &3.into()));
    assert!(found.iter().any(|item| item["file"] == "gone.yaml"));
    assert_eq!(here.flowline(&["validate", "doubtful.yaml"]).exit, 0);
    here.write(
        "door.yaml",
        "machine: door\nevents: [shut]\nstates: { open: { on: { shut: shut } }, shut: { final: true } }\n",
    );
    let said = here.flowline(&["validate", "order.yaml", "door.yaml"]);
    assert!(said.out.contains("order.yaml: flow order, "), "{said:?}");
    assert!(said.out.contains("door.yaml: machine door, 2 states, 1 event, 0 actions"), "{said:?}");
    assert!(here.flowline(&["graph", "door.yaml"]).out.starts_with("stateDiagram-v2"));
    assert_eq!(here.flowline(&["validate", "doubtful.yaml", "--strict"]).exit, 2);
    assert!(here.flowline(&["graph", "order.yaml"]).out.starts_with("flowchart"));
    assert!(here.flowline(&["graph", "order.yaml", "--format", "dot"]).out.starts_with("digraph"));
    assert_eq!(here.json(0, &["graph", "order.yaml"])["flow"], "order");
    let schema: serde_json::Value = serde_json::from_str(&here.flowline(&["schema"]).out).unwrap();
    assert!(schema["$defs"]["flow"]["properties"]["steps"].is_object());
    assert!(schema["$defs"]["machine"]["properties"]["states"].is_object());
    assert!(here.flowline(&["completions", "bash"]).out.contains("flowline"));
    assert!(!here.path(".flowline").exists(), "nothing was made");
}

#[test]
fn settings_come_from_flag_environment_file_and_default_in_this_order() {
    let here = Here::new();
    here.write(
        "flowline.toml",
        "tenant = 'file'\nslots = 3\ndrain = '2s'\ninstance-name = 'blue'\n[queues]\nmail = 1\n",
    );
    let said = here.command(&["config", "--json", "--tenant", "flag"]).env("FLOWLINE_SLOTS", "4").output();
    let answer: serde_json::Value = serde_json::from_str(&Said::of(said.unwrap()).out).unwrap();
    let setting = |name: &str| (answer[name]["value"].clone(), answer[name]["source"].clone());
    assert_eq!(setting("tenant"), ("flag".into(), "flag".into()));
    assert_eq!(setting("slots"), (4.into(), "environment FLOWLINE_SLOTS".into()));
    assert_eq!(setting("drain"), ("2s".into(), "file flowline.toml".into()));
    assert_eq!(setting("queues").0["mail"], 1);
    assert_eq!(setting("instance-name"), ("blue".into(), "file flowline.toml".into()));
    assert_eq!(setting("lease"), ("30s".into(), "default".into()));
    here.write("flowline.toml", "stroe = 'memory:'\n");
    here.flowline(&["runs"]).refused(2, &["stroe", "help"]);
}

#[test]
fn a_small_bench_knows_the_bytes_of_a_run() {
    let here = Here::new();
    let answer = here.json(0, &["bench", "--runs", "50", "--in-flight", "4", "--payload", "1000"]);
    let bytes = answer["bytesPerRun"].as_u64().unwrap();
    assert!((1_000..200_000).contains(&bytes), "{bytes}");
    assert_eq!(answer["steps"], 200);
}

#[test]
fn help_of_every_command_has_an_example() {
    let here = Here::new();
    let help = here.flowline(&["--help"]).out;
    let listed = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<&str> = listed
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        for flag in ["-h", "--help"] {
            let said = here.flowline(&[command, flag]);
            assert_eq!(said.exit, 0, "{command}");
            assert!(said.out.contains("Example:\n"), "{command} {flag} has no example");
        }
    }
}

#[test]
fn colours_are_for_terminals_or_on_demand() {
    let here = with_runs();
    assert!(!here.flowline(&["runs"]).out.contains('\x1b'));
    assert!(here.flowline(&["runs", "--color", "always"]).out.contains('\x1b'));
    here.flowline(&["runs", "--color", "pink"]).refused(2, &["pink"]);
}
