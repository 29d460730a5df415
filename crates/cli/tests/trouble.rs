//! Disks, files, payloads and names that make trouble: a clear message, the right exit code, nothing half-written.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::kit::place::{Here, Said};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use tempfile::TempDir;

const CHATTY: &str = r#"
flow: chatty
steps:
  talk:
    command: [sh, -c, 'i=0; while [ $i -lt 4000 ]; do echo "line $i of a step that has a lot to say about very little"; i=$((i+1)); done']
  after: { subscribes: ["step:talk"], command: [echo, done] }
"#;

/// Rows by table: what a refused command must not have changed.
fn rows(store: &Path) -> BTreeMap<String, i64> {
    let conn = Connection::open_with_flags(store, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut tables = conn.prepare("select name from sqlite_schema where type = 'table'").unwrap();
    let names: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let count = |name: &str| conn.query_row(&format!("select count(*) from {name}"), [], |row| row.get(0));
    names.iter().map(|name| (name.clone(), count(name).unwrap())).collect()
}

fn clean(here: &Here, store: &str) -> Value {
    let report = here.json(0, &["verify", "--store", store]);
    assert_eq!(report["violations"], json!([]), "{report}");
    report
}

fn root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    String::from_utf8(id.stdout).unwrap().trim() == "0"
}

fn mount(arguments: &[&str], folder: &Path) -> bool {
    Command::new("mount").args(arguments).arg(folder).output().is_ok_and(|done| done.status.success())
}

/// A folder that something is mounted on.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A small disk at `disk`; `None` where this user may not mount one.
fn small_disk(here: &Here, bytes: usize) -> Option<Mounted> {
    let folder = here.path("disk");
    std::fs::create_dir(&folder).unwrap();
    if mount(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"], &folder) {
        return Some(Mounted(folder));
    }
    eprintln!(
        "not shown here: mounting a small file system needs root; a bound on file sizes is shown instead"
    );
    None
}

/// Takes what is left of a disk, to the last byte.
fn fill(disk: &Mounted) -> PathBuf {
    let ballast = disk.0.join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    let block = [0u8; 512];
    while std::io::Write::write(&mut file, &block).is_ok_and(|written| written > 0) {}
    ballast
}

const DISK: &str = "sqlite:disk/flowline.db";

#[test]
fn a_full_disk_refuses_a_start_whole_while_reads_go_on() {
    let here = Here::new();
    let Some(disk) = small_disk(&here, 2 << 20) else { return };
    here.json(0, &["run", "approve.yaml", "--store", DISK]);
    let before = rows(&here.path("disk/flowline.db"));
    let ballast = fill(&disk);
    here.flowline(&["start", "approve.yaml", "--store", DISK])
        .refused(3, &["flowline.db", "full", "free some space"]);
    let refused = here.json(3, &["run", "approve.yaml", "--store", DISK]);
    assert_eq!(refused["error"]["code"], "store-cannot-write");
    here.flowline(&["run", "approve.yaml", "--store", "sqlite:disk/new/f.db"])
        .refused(3, &["disk/new", "help"]);
    here.flowline(&["run", "approve.yaml", "--store", "sqlite:disk/new.db"])
        .refused(3, &["disk/new.db", "help"]);
    assert!(!here.path("disk/new.db").exists(), "no half-made store");
    assert_eq!(here.json(0, &["runs", "--store", DISK])["total"], 1);
    std::fs::remove_file(ballast).unwrap();
    let run = here.json(0, &["runs", "--store", DISK])["items"][0]["runId"].as_str().unwrap().to_owned();
    assert_eq!(rows(&here.path("disk/flowline.db")), before, "nothing of what was refused is there");
    here.json(0, &["send", &run, "approval.given", "--payload", "{}", "--store", DISK]);
    here.json(0, &["work", "--until-idle", "--store", DISK]);
    assert_eq!(here.json(0, &["show", &run, "--store", DISK])["status"], "completed");
    assert_eq!(clean(&here, DISK)["runs"], 1);
}

#[test]
fn a_run_that_fills_the_disk_says_so_and_goes_on_when_there_is_space() {
    let here = Here::new();
    let Some(disk) = small_disk(&here, 4 << 20) else { return };
    here.write("chatty.yaml", CHATTY);
    here.json(0, &["run", "approve.yaml", "--store", DISK]);
    // Room for the start of the run, not for what it says.
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![0; 4 << 20]).unwrap_err();
    let taken = std::fs::metadata(&ballast).unwrap().len();
    std::fs::File::options().write(true).open(&ballast).unwrap().set_len(taken - (320 << 10)).unwrap();
    let (child, mut lines) = spawn(&here, &["run", "chatty.yaml", "--store", DISK]);
    until(&mut lines, "free some space");
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(end(child, lines), 0);
    assert_eq!(clean(&here, DISK)["runs"], 2);
    let done = here.json(0, &["runs", "--store", DISK, "--flow", "chatty"]);
    assert_eq!((&done["items"][0]["status"], &done["items"][0]["retries"]), (&"completed".into(), &0.into()));
}

#[test]
fn a_run_on_a_full_disk_is_ended_by_a_signal() {
    let here = Here::new();
    let Some(_disk) = small_disk(&here, 512 << 10) else { return };
    here.write("chatty.yaml", CHATTY);
    let (child, mut lines) = spawn(&here, &["run", "chatty.yaml", "--store", DISK, "--drain", "10ms"]);
    until(&mut lines, "free some space");
    let sent = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert_eq!(end(child, lines), 130);
    assert_eq!(clean(&here, DISK)["runs"], 1);
}

fn spawn(here: &Here, arguments: &[&str]) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut child = here.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap());
    (child, lines)
}

fn until(lines: &mut impl BufRead, text: &str) {
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.contains(text) {
            return;
        }
        line.clear();
    }
    panic!("it ended without {text:?}");
}

fn end(mut child: Child, mut lines: impl BufRead) -> i32 {
    std::io::copy(&mut lines, &mut std::io::sink()).unwrap();
    child.wait().unwrap().code().unwrap_or(-1)
}

/// Runs the binary under a bound on the size of the files that it writes, which needs no privilege.
fn bounded(here: &Here, blocks: usize, arguments: &[&str]) -> Said {
    let script = r#"trap "" XFSZ; ulimit -f "$0"; exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, &blocks.to_string(), env!("CARGO_BIN_EXE_flowline")]).args(arguments);
    Said::of(command.current_dir(here.folder.path()).stdin(Stdio::null()).output().unwrap())
}

#[test]
fn a_write_refused_anywhere_leaves_nothing_half_written() {
    let here = Here::new();
    here.start(&["slow.yaml"]);
    let (mut refused, mut total) = (0, 1);
    // From not a page of the log to more than a start needs: the bound bites at every write between.
    for blocks in (0..320).step_by(16) {
        let said = bounded(&here, blocks, &["start", "approve.yaml", "--json"]);
        match said.exit {
            0 => total += 1,
            _ => {
                let answer: Value =
                    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{blocks}: {said:?}"));
                assert_eq!(
                    (said.exit, &answer["error"]["code"]),
                    (3, &"store-cannot-write".into()),
                    "{blocks}: {said:?}"
                );
                assert!(answer["error"]["message"].as_str().unwrap().contains("flowline.db"), "{answer}");
                refused += 1;
            }
        }
        assert_eq!(clean(&here, "sqlite:.flowline/flowline.db")["runs"], total, "after a bound of {blocks}");
    }
    println!("{refused} starts refused, {total} runs");
    assert!(refused > 0, "the bound never bit");
    assert!(total > 1, "the bound was never wide enough");
    bounded(&here, 8, &["run", "approve.yaml", "--store", "sqlite:new.db"]).refused(3, &["new.db", "help"]);
    assert!(!here.path("new.db").exists(), "no half-made store");
    here.json(0, &["run", "approve.yaml", "--store", "sqlite:new.db"]);
}

#[test]
fn a_read_only_folder_refuses_writes_and_is_left_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let here = Here::new();
    here.json(0, &["run", "approve.yaml", "--store", "sqlite:closed/flowline.db"]);
    let folder = here.path("closed");
    let path = folder.to_str().unwrap().to_owned();
    // Permissions do not bind root; a mount does.
    let _mounted = if root() {
        if !mount(&["--bind", &path], &folder) {
            eprintln!("not shown here: root without the right to mount");
            return;
        }
        let mounted = Mounted(folder.clone());
        assert!(mount(&["-o", "remount,bind,ro"], &folder));
        Some(mounted)
    } else {
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o555)).unwrap();
        None
    };
    assert!(std::fs::write(folder.join("probe"), "").is_err(), "the folder is open after all");
    let before = listing(&folder);
    for store in ["sqlite:closed/flowline.db", "sqlite:closed/new.db", "sqlite:closed/deeper/new.db"] {
        here.flowline(&["run", "approve.yaml", "--store", store]).refused(3, &["closed", "help"]);
        assert_eq!(
            here.json(3, &["run", "approve.yaml", "--store", store])["error"]["code"],
            "store-cannot-write"
        );
    }
    let run = here.json(0, &["runs", "--store", "sqlite:closed/flowline.db"]);
    assert_eq!(run["total"], 1, "it can still be read");
    assert_eq!(here.flowline(&["doctor", "--store", "sqlite:closed/flowline.db"]).exit, 1);
    assert_eq!(listing(&folder), before);
    if !root() {
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// Every file of a folder with its bytes.
fn listing(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_file()).map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn a_file_of_another_program_stays_as_it_is_byte_for_byte() {
    let here = Here::new();
    let folder = here.path("theirs");
    std::fs::create_dir(&folder).unwrap();
    let noise: Vec<u8> = (0..10_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(folder.join("noise"), noise).unwrap();
    std::fs::write(folder.join("header"), b"SQLite format 3\0 and then not").unwrap();
    let other = Connection::open(folder.join("other.db")).unwrap();
    other.execute_batch("create table runs (id integer primary key); insert into runs values (7);").unwrap();
    drop(other);
    here.json(0, &["run", "approve.yaml", "--store", "sqlite:theirs/newer.db"]);
    let newer = Connection::open(folder.join("newer.db")).unwrap();
    newer.execute("update cells set value = 99 where name = 'format'", []).unwrap();
    newer.pragma_update(None, "journal_mode", "delete").unwrap();
    drop(newer);
    std::fs::remove_file(folder.join("newer.db.lock")).unwrap();
    let before = listing(&folder);
    for name in ["noise", "header", "other.db", "newer.db"] {
        let store = format!("sqlite:theirs/{name}");
        for command in [
            &["run", "approve.yaml"][..],
            &["start", "approve.yaml"],
            &["work", "--until-idle"],
            &["runs"],
            &["verify"],
            &["reconcile", "--repair"],
            &["retain"],
            &["cancel", "r"],
        ] {
            let said = here.flowline(&[command, &["--store", &store]].concat());
            said.refused(3, &[name, "name another file"]);
        }
        assert_eq!(here.flowline(&["doctor", "--store", &store]).exit, 1);
        let mut after = listing(&folder);
        // The lock file is Flowline's own: only a file that has Flowline's mark may get one.
        if name == "newer.db" {
            after.remove("newer.db.lock");
        }
        assert_eq!(after, before, "{name} was touched");
    }
}

#[test]
fn a_truncated_store_is_refused_and_never_mistaken() {
    let here = Here::new();
    for _ in 0..3 {
        here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    }
    let whole = std::fs::read(here.path(".flowline/flowline.db")).unwrap();
    let full = whole.len();
    for length in [1, 50, 99, 100, 2_000, 4_096, 10_000, full / 2, full - 20_000, full - 4_096, full - 1] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("cut.db");
        std::fs::write(&path, &whole[..length]).unwrap();
        let store = format!("sqlite:{}", path.display());
        for command in [&["runs"][..], &["verify"], &["run", "approve.yaml"], &["doctor"]] {
            let said = here.flowline(&[command, &["--store", &store]].concat());
            let text = format!("{}{}", said.out, said.err);
            let clear = ["damaged", "malformed", "isn't a SQLite file", "of another program"];
            let told = clear.iter().any(|words| text.contains(words)) && text.contains("cut.db");
            let expected = if command == ["doctor"] { 1 } else { 3 };
            assert!(said.exit == expected && told, "{length} of {full}, {command:?}: {said:?}");
        }
    }
}

#[test]
fn a_log_that_was_cut_off_keeps_what_was_whole() {
    let here = Here::new();
    let (mut child, mut lines) = spawn(&here, &["run", "slow.yaml"]);
    until(&mut lines, "| here");
    child.kill().unwrap();
    child.wait().unwrap();
    here.write("go", "");
    let (file, log) = (here.path(".flowline/flowline.db"), here.path(".flowline/flowline.db-wal"));
    let (file, log) = (std::fs::read(file).unwrap(), std::fs::read(log).unwrap());
    assert!(log.len() > 4_096, "the kill left a log behind");
    let mut seen = BTreeMap::new();
    for cut in 0..=12 {
        let place = Here::new();
        place.write("go", "");
        std::fs::write(place.path("f.db"), &file).unwrap();
        let length = log.len() * cut / 12 - if cut == 12 { 0 } else { cut * 7 };
        std::fs::write(place.path("f.db-wal"), &log[..length]).unwrap();
        let report = clean(&place, "sqlite:f.db");
        let runs = report["runs"].as_u64().unwrap();
        place.json(0, &["work", "--until-idle", "--store", "sqlite:f.db"]);
        assert_eq!(
            place.json(0, &["runs", "--store", "sqlite:f.db", "--status", "completed"])["total"],
            runs
        );
        clean(&place, "sqlite:f.db");
        *seen.entry(runs).or_insert(0) += 1;
    }
    assert!(
        seen.contains_key(&0) && seen.contains_key(&1),
        "the cuts fell on both sides of the start: {seen:?}"
    );
}

#[test]
fn whoever_would_write_beside_an_engine_is_refused_and_told_by_whom() {
    let here = Here::new();
    let waiting = here.json(0, &["run", "approve.yaml"])["runId"].as_str().unwrap().to_owned();
    let (child, mut lines) = spawn(&here, &["run", "slow.yaml"]);
    until(&mut lines, "| here");
    let pid = child.id().to_string();
    for command in [
        &["send", &waiting, "approval.given", "--payload", "{}"][..],
        &["cancel", &waiting],
        &["retain"],
        &["reconcile", "--repair"],
        &["queues", "pause", "default"],
        &["work", "--until-idle"],
    ] {
        here.flowline(command).refused(3, &["is in use", &pid]);
    }
    clean(&here, "sqlite:.flowline/flowline.db");
    here.write("go", "");
    assert_eq!(end(child, lines), 0);
    assert_eq!(here.json(0, &["show", &waiting])["status"], "waiting", "nothing reached it");
}

const MIB: usize = 1 << 20;

#[test]
fn payloads_over_a_mebibyte_are_refused_with_the_limit_named() {
    let here = Here::new();
    let big = format!("\"{}\"", "x".repeat(MIB - 1));
    here.write("big.json", &big);
    here.write("most.json", &format!("\"{}\"", "x".repeat(MIB - 2)));
    here.flowline(&["start", "slow.yaml", "--input-file", "big.json"])
        .refused(2, &["big.json", "1048577", "1048576"]);
    here.start(&["slow.yaml", "--input-file", "most.json"]);
    for (name, line) in [
        ("emit", r#"{"emit":{"name":"e","payload":"#),
        ("now", r#"{"emit_now":{"name":"e","payload":"#),
        ("result", r#"{"result":"#),
    ] {
        let close = if name == "result" { "}" } else { "}}" };
        here.write("line", &format!("{line}{big}{close}\n"));
        here.write("loud.yaml", &format!("flow: loud-{name}\nsteps:\n  a: {{ command: [cat, line], emits: [e] }}\n  b: {{ subscribes: [e], command: [cat] }}\n"));
        let said = here.json(1, &["run", "loud.yaml"]);
        let error = said["error"].as_str().unwrap();
        assert!(error.contains("1048576") && error.contains("1048577"), "{name}: {error}");
        let steps = said["steps"].as_array().unwrap();
        assert_eq!(
            (&steps[0]["status"], &steps[0]["attempts"]),
            (&"failed".into(), &1.into()),
            "{name}: not tried again"
        );
        let shown = here.json(0, &["show", said["runId"].as_str().unwrap()]);
        assert_eq!(shown["emittedEvents"], json!([]), "{name}");
    }
    clean(&here, "sqlite:.flowline/flowline.db");
}

#[test]
fn json_nested_ten_thousand_deep_is_refused_wherever_it_comes_in() {
    let here = Here::new();
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    here.write("deep.json", &deep);
    let run = here.json(0, &["run", "approve.yaml"])["runId"].as_str().unwrap().to_owned();
    here.flowline(&["start", "slow.yaml", "--input-file", "deep.json"])
        .refused(2, &["deep.json", "100 levels"]);
    here.flowline(&["start", "slow.yaml", "--input", &deep]).refused(2, &["--input", "100 levels"]);
    here.flowline(&["send", &run, "approval.given", "--payload", &deep])
        .refused(2, &["--payload", "100 levels"]);
    here.write("deep-flow.json", &format!("{{\"flow\": \"deep\", \"input\": {deep}}}"));
    here.write("deep-flow.yaml", &format!("flow: deep\ninput: {deep}\n"));
    here.write("deep-flow.toml", &format!("flow = 'deep'\ninput = {deep}\n"));
    for file in ["deep-flow.json", "deep-flow.yaml", "deep-flow.toml"] {
        here.flowline(&["run", file]).refused(2, &[file]);
    }
    for (name, line) in [
        ("emit", r#"{"emit":{"name":"e","payload":DEEP}}"#),
        ("result", r#"{"result":DEEP}"#),
        ("state", r#"{"state":{"set":"k","value":DEEP}}"#),
    ] {
        here.write("line", &line.replace("DEEP", &deep));
        here.write("loud.yaml", &format!("flow: loud-{name}\nsteps:\n  a: {{ command: [cat, line], emits: [e] }}\n  b: {{ subscribes: [e], command: [cat] }}\n"));
        let said = here.json(1, &["run", "loud.yaml"]);
        assert!(said["error"].as_str().unwrap().contains("100 levels"), "{name}: {said}");
    }
    assert_eq!(here.json(0, &["runs", "--flow", "slow"])["total"], 0);
    clean(&here, "sqlite:.flowline/flowline.db");
}

const STRANGE: [&str; 9] = [
    "größe",
    "日本語 \u{1f600}",
    "\"quoted\" 'twice' `thrice`",
    "a:b::c",
    "{} {x} ${y} %s",
    "../../etc/passwd",
    "tab\tnewline\nescape\u{1b}[31m",
    "\u{202e}right to left",
    "x' or '1'='1; drop table runs; --",
];

/// Both steps give back what they were given.
const ECHO: &str = r#"
flow: echo
accepts: { said: {} }
steps:
  a: { command: [sh, -c, 'IFS= read -r line; printf ''{"result": %s}\n'' "$line"'] }
  b: { subscribes: [said], command: [sh, -c, 'IFS= read -r line; printf ''{"result": %s}\n'' "$line"'] }
"#;

#[test]
fn strange_labels_keys_and_payloads_come_back_as_they_went_in() {
    let here = Here::new();
    here.write("echo.yaml", ECHO);
    let mut ids = Vec::new();
    for text in STRANGE {
        let payload = json!({ text: text, "nul": "\0" }).to_string();
        let label = format!("strange={text}");
        let run =
            here.start(&["echo.yaml", "--label", &label, "--idempotency-key", text, "--input", &payload]);
        assert_eq!(here.start(&["echo.yaml", "--idempotency-key", text, "--input", &payload]), run);
        here.json(0, &["send", &run, "said", "--payload", &payload]);
        let found = here.json(0, &["runs", "--label", &label]);
        assert_eq!(found["total"], 1, "{text:?}");
        let row = &found["items"][0];
        assert_eq!((&row["labels"]["strange"], &row["idempotencyKey"]), (&text.into(), &text.into()));
        let plain = here.flowline(&["show", &run]);
        assert!(
            plain.exit == 0 && !plain.out.contains('\u{1b}'),
            "what is shown does not steer a terminal: {plain:?}"
        );
        ids.push((run, payload));
    }
    here.json(0, &["work", "--until-idle"]);
    for (run, payload) in ids {
        let shown = here.json(0, &["show", &run]);
        let sent: Value = serde_json::from_str(&payload).unwrap();
        assert_eq!(shown["result"]["a"]["input"], sent, "through a program and back");
        assert_eq!(shown["result"]["b"]["input"]["said"], sent);
    }
    clean(&here, "sqlite:.flowline/flowline.db");
}

#[test]
fn strange_names_of_runs_tenants_labels_events_and_flows_are_refused() {
    let here = Here::new();
    let run = here.json(0, &["run", "approve.yaml"])["runId"].as_str().unwrap().to_owned();
    let before = rows(&here.path(".flowline/flowline.db"));
    let long = "k".repeat(300);
    for text in STRANGE.into_iter().chain(["", &long]) {
        here.flowline(&["start", "approve.yaml", "--tenant", text]).refused(2, &["tenant"]);
        here.flowline(&["start", "approve.yaml", "--label", &format!("{text}=x")]).refused(2, &["label"]);
        here.flowline(&["send", &run, text]).refused(2, &["approval.given"]);
        here.flowline(&["show", "--", text]).refused(2, &["flowline runs"]);
    }
    here.flowline(&["start", "approve.yaml", "--idempotency-key", &long]).refused(2, &["256", "300"]);
    here.flowline(&["start", "approve.yaml", "--idempotency-key", ""]).refused(2, &["256"]);
    here.flowline(&["start", "approve.yaml", "--label", &format!("a={long}")]).refused(2, &["256"]);
    assert_eq!(rows(&here.path(".flowline/flowline.db")), before);
}

#[test]
fn files_with_strange_names_are_files_like_any_other() {
    let here = Here::new();
    let names = ["größe 日本", "it's \"quoted\"", "a{b}c", "what?x=1#y%20", "file:x", "-dash", "tab\there"];
    for name in names {
        let (file, input) = (format!("./{name}.yaml"), format!("./{name}.json"));
        here.write(&file, crate::kit::place::APPROVE);
        here.write(&input, "[1]");
        let store = format!("sqlite:{name}.db");
        let run = here.json(0, &["run", &file, "--input-file", &input, "--store", &store]);
        assert_eq!(run["status"], "waiting", "{name}");
        assert!(here.path(&format!("{name}.db")).is_file(), "{name}");
        assert_eq!(clean(&here, &store)["runs"], 1, "{name}");
    }
    here.json(0, &["run", "approve.yaml", "--store", "sqlite::memory:"]);
    assert!(here.path(":memory:").is_file(), "a file is a file");
    let made: Vec<String> =
        listing(here.folder.path()).into_keys().filter(|name| name.contains(".db")).collect();
    let ours = |made: &String| names.iter().any(|name| made.starts_with(&format!("{name}.db")));
    assert!(made.iter().all(ours), "nothing is made under another name: {made:?}");
}
