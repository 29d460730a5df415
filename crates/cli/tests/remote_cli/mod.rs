//! The command line with `--server` does what it does with `--store`: the same commands on two stores that were filled
//! alike, one opened and one asked for, end with the same exit codes and say the same; and what only a server can go wrong
//! with.

mod every;
mod steering;
mod twins;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::place::{Here, Said};
use crate::kit::served::Served;
use twins::{NOT_HERE, Twins};

#[test]
fn acts_on_runs_are_the_same_at_a_server_as_on_a_store() {
    let mut twins = Twins::new();
    let keyed = ["order.yaml", "--input", r#"{"total": 2}"#, "--idempotency-key", "k1", "--label", "team=b"];
    assert_eq!(twins.start("keyed", &keyed)["existed"], false);
    assert_eq!(twins.start("keyed", &keyed)["existed"], true);
    twins.same(2, &["start", "order", "--input", r#"{"total": 3}"#, "--idempotency-key", "k1"]);
    twins.alike(2, &["start", "order", "--input", "{}"]);
    for words in
        [&["nope"][..], &["no such"], &["gone.yaml"], &["order", "--input", "{"], &["order", "--label", "x"]]
    {
        twins.same(2, &[&["start"], words].concat());
    }
    assert_eq!(
        twins.start("slow", &["slow.yaml", "--delay", "1h", "--priority", "urgent"])["status"],
        "waiting"
    );
    twins.start("approve", &["approve.yaml"]);
    assert_eq!(twins.same(2, &["send", "{approve}", "approval"])["error"]["code"], "not-accepted");
    twins.same(2, &["send", "{approve}", "approval.given", "--payload", "1"]);
    twins.same(2, &["send", "{approve}", "approval.given", "--payload", "{"]);
    twins.alike(0, &["send", "{approve}", "approval.given", "--payload", r#"{"by": "ada"}"#]);
    assert_eq!(twins.same(0, &["send", "{approve}", "approval.given", "--payload", "{}"])["changed"], false);
    for act in ["pause", "pause", "resume", "resume"] {
        twins.same(0, &[act, "{keyed}"]);
    }
    twins.alike(0, &["pause", "{keyed}"]);
    twins.alike(0, &["complete", "{keyed}", "--result", r#"{"n": 1.00000000000000000001}"#]);
    twins.same(0, &["fail", "{slow}", "--error", "burnt \u{1f525}"]);
    assert_eq!(twins.same(2, &["pause", "{keyed}"])["error"]["code"], "run-ended");
    twins.same(2, &["retry", "{approve}"]);
    twins.same(0, &["cancel", "{approve}", "--reason", "twice"]);
    twins.alike(0, &["cancel", "{approve}"]);
    assert_eq!(twins.same(2, &["retry", "{doomed}", "--from", "nope"])["error"]["code"], "input");
    twins.same(0, &["retry", "{doomed}"]);
    twins.same(0, &["retry", "{order}", "--from", "ship"]);
    for act in ["send", "cancel", "retry", "show", "events", "explain"] {
        let more: &[&str] = if act == "send" { &["go"] } else { &[] };
        for id in ["nope", "a/b", ".."] {
            let code = twins.same(2, &[&[act, id], more].concat());
            assert_eq!(code["error"]["code"], "no-such-run");
        }
    }
    for run in ["{keyed}", "{slow}", "{approve}", "{order}", "{doomed}"] {
        twins.same(0, &["show", run]);
        twins.alike(0, &["show", run]);
        twins.same(0, &["explain", run]);
        twins.same(0, &["events", run]);
    }
    let said = twins.say(&["show", "{keyed}", "--json"]);
    assert!(said[1].out.contains("1.00000000000000000001"), "no digit of a payload is lost: {}", said[1].out);
    assert!(!twins.away.path(".flowline").exists(), "a server was asked, so nothing is made here");
}

#[test]
fn machines_are_spoken_to_at_a_server_as_on_a_store() {
    const TICKET: &str = r#"
machine: ticket
events: { answer: , close: { type: object }, reopen: , ask: }
context: { answers: "0" }
states:
  open:
    on:
      answer: { set: { answers: "context.answers + 1" } }
      ask: { to: asked, actions: [tell] }
      close: { to: closed, role: agent, if: "context.answers > 0", set: { by: "user" } }
  asked: { on: { answer: { to: open } } }
  closed: { on: { reopen: { to: open } }, after: { in: 30d, to: gone } }
  gone: { final: true }
actions: { tell: { worker: desk } }
"#;
    let mut twins = Twins::new();
    twins.write("ticket.yaml", TICKET);
    twins.start("ticket", &["ticket.yaml"]);
    for (exit, words) in [
        (2, &["answr"][..]),
        (2, &["close", "--payload", "{}"]),
        (2, &["close", "--payload", "1", "--role", "agent"]),
        (1, &["close", "--payload", "{}", "--role", "agent", "--wait", "10s"]),
        (1, &["reopen", "--wait", "10s"]),
        (0, &["answer", "--key", "k1"]),
        (0, &["answer", "--key", "k1", "--wait", "10s"]),
        (2, &["close", "--payload", "{}", "--role", "agent", "--key", "k1"]),
        (0, &["close", "--payload", "{}", "--role", "agent", "--user", "ada", "--wait", "10s"]),
    ] {
        twins.same(exit, &[&["send", "{ticket}"], words].concat());
    }
    let look = |twins: &Twins| {
        for words in [
            &["show", "{ticket}"][..],
            &["explain", "{ticket}"],
            &["events", "{ticket}"],
            &["receipts"],
            &["receipts", "--run", "{ticket}", "--status", "failed"],
            &["runs", "--flow", "ticket", "--state", "closed"],
            &["stats"],
            &["flows"],
        ] {
            twins.same(0, words);
            twins.alike(0, words);
        }
    };
    look(&twins);
    twins.alike(1, &["send", "{ticket}", "answer", "--wait", "10s"]);
    let by_key = ["send", "--flow", "ticket", "--business-key", "b1", "--wait", "10ms"];
    assert_eq!(twins.same(0, &[&by_key[..], &["answer"]].concat())["receipt"]["status"], "completed");
    assert_eq!(twins.same(0, &[&by_key[..], &["ask"]].concat())["receipt"]["status"], "processing");
    twins.alike(0, &[&by_key[..], &["answer"]].concat());
    twins.same(2, &["send", "--flow", "nope", "--business-key", "b1", "answer"]);
    twins.same(2, &["receipts", "--run", "nope"]);
    twins.same(0, &["receipts", "--all", "--limit", "1"]);
    look(&twins);
}

#[test]
fn what_is_looked_at_is_the_same_at_a_server_as_in_a_store() {
    let mut twins = Twins::new();
    twins.start("approve", &["approve.yaml"]);
    twins.start("slow", &["slow.yaml", "--delay", "1h"]);
    for words in [
        &["runs"][..],
        &["runs", "--all", "--limit", "1"],
        &["runs", "--limit", "2"],
        &["runs", "--status", "failed"],
        &["runs", "--label", "team=a", "--flow", "order", "--since", "1h"],
        &["runs", "--until", "1h"],
        &["runs", "--since", "2000-01-01T00:00:00Z"],
        &["flows"],
        &["flows", "--versions"],
        &["queues"],
        &["stats", "--steps", "--bucket", "365d"],
        &["stats", "--flow", "order", "--since", "1h", "--bucket", "365d"],
        &["verify"],
        &["show", "{approve}"],
        &["show", "{doomed}"],
        &["events", "{order}"],
        &["events", "{order}", "--type", "emit", "--type", "log", "--step", "ship"],
        &["events", "{order}", "--after", "2", "--limit", "2"],
        &["events", "{doomed}", "--attempt", "1"],
        &["events", "{order}", "--follow"],
    ] {
        twins.same(0, words);
        if words != ["runs", "--until", "1h"] {
            twins.alike(0, words);
        }
    }
    for run in ["{approve}", "{slow}", "{order}", "{doomed}"] {
        twins.same(0, &["explain", run]);
        twins.alike(0, &["explain", run]);
    }
    // A server says more: what its own instance can't run, and what to do.
    let explained = twins.same(0, &["explain", "{approve}"]);
    let ask = explained["steps"].as_array().unwrap().iter().find(|step| step["step"] == "ask").unwrap();
    let reason = ask["reason"].as_str().unwrap();
    assert!(reason.contains("--allow-commands") && reason.ends_with(NOT_HERE), "{explained}");
    let flows = twins.same(0, &["flows"]);
    let notes = |flow: &Value| (flow["flow"].clone(), flow["notRunHere"][0]["steps"].clone());
    let notes: Vec<_> = flows["items"].as_array().unwrap().iter().map(notes).collect();
    let expected = [
        ("approve", json!(["act", "ask"])),
        ("doomed", json!(["a"])),
        ("order", json!(["charge", "ship"])),
        ("slow", json!(["a"])),
    ];
    assert_eq!(notes, expected.map(|(flow, steps)| (json!(flow), steps)));
    assert_eq!(twins.same(0, &["runs", "--all", "--limit", "1"])["items"].as_array().unwrap().len(), 4);
    for words in [
        &["runs", "--since", "yesterday"][..],
        &["runs", "--cursor", "nonsense"],
        &["queues", "pause", "a b"],
        &["stats", "--bucket", "x"],
        &["token", "revoke", "0123456789abcdef"],
        &["token", "revoke", "no such"],
        &["token", "create", "--subject", "", "--scope", "read"],
    ] {
        twins.same(2, words);
    }
    for words in [
        &["queues", "pause", "reports"][..],
        &["queues"],
        &["queues", "resume", "reports"],
        &["token", "list"],
        &["token", "create", "--subject", "ci", "--scope", "start", "--scope", "read", "--expires", "1h"],
        &[
            "token",
            "create",
            "--subject",
            "depot",
            "--scope",
            "work",
            "--bind-queue",
            "depot",
            "--role",
            "packer",
        ],
        &["token", "list"],
    ] {
        twins.same(0, words);
    }
    let made = twins.same(0, &["token", "create", "--subject", "gone", "--scope", "read"]);
    let revoked =
        twins.away.json(0, &["token", "revoke", made["id"].as_str().unwrap(), "--server", &twins.url]);
    assert_eq!(revoked, json!({ "id": made["id"], "revoked": true }));
    assert_eq!(
        twins.away.json(0, &["token", "list", "--server", &twins.url])["items"].as_array().unwrap().len(),
        2
    );
}

#[test]
fn locks_are_the_same_at_a_server_as_in_a_store() {
    let twins = Twins::new();
    twins.same(0, &["locks"]);
    let words = ["locks", "acquire", "nightly", "--owner", "me", "--ttl", "1h"];
    let said = twins.say(&[&words[..], &["--json"]].concat());
    let taken = said.map(|said| serde_json::from_str::<Value>(&said.out).unwrap());
    for taken in &taken {
        assert_eq!((&taken["name"], &taken["owner"]), (&json!("nightly"), &json!("me")));
        assert_eq!(taken["lockToken"].as_str().unwrap().len(), 32);
        assert!(taken["fence"].as_u64() > Some(0) && taken["remainingMs"].as_u64() > Some(3_500_000));
    }
    assert_eq!(twins.same(0, &["locks"])["items"][0]["owner"], "me");
    twins.alike(1, &["locks", "acquire", "nightly", "--wait", "60ms"]);
    twins.alike(1, &["locks", "run", "nightly", "--", "true"]);
    for said in twins.say(&["locks", "acquire", "nightly", "--json"]) {
        let error = serde_json::from_str::<Value>(&said.out).unwrap()["error"].clone();
        assert_eq!(error["code"], "lock-held");
        assert!(error["message"].as_str().unwrap().contains("is held by me until"), "{error}");
    }
    let stranger = "0".repeat(32);
    twins.same(1, &["locks", "extend", "nightly", "--lock-token", &stranger]);
    twins.same(1, &["locks", "release", "nightly", "--lock-token", &stranger]);
    twins.same(2, &["locks", "release", "nightly"]);
    twins.same(2, &["locks", "acquire", "a b"]);
    let [mine, theirs] = &taken;
    let ours = mine["lockToken"].as_str().unwrap();
    let extended = twins.own.json(0, &["locks", "extend", "nightly", "--lock-token", ours, "--ttl", "2h"]);
    assert!(extended["until"].as_str() > mine["until"].as_str());
    assert_eq!(twins.own.json(0, &["locks", "release", "nightly", "--lock-token", ours])["released"], true);
    let token = theirs["lockToken"].as_str().unwrap();
    let words = ["locks", "release", "nightly", "--lock-token", token, "--server", &twins.url];
    assert_eq!(twins.away.json(0, &words)["released"], true);
    // The lock is held while the command runs, which knows its fence, and free afterwards.
    let script = "test $FLOWLINE_LOCK_NAME = nightly && test $FLOWLINE_LOCK_FENCE -gt 1 && exit $0";
    twins.same(0, &["locks", "run", "nightly", "--", "sh", "-c", script, "0"]);
    twins.same(1, &["locks", "run", "nightly", "--", "sh", "-c", script, "4"]);
    assert_eq!(twins.same(0, &["locks"])["items"], json!([]));
    twins.same(3, &["locks", "run", "nightly", "--", "./no-such-program"]);
    assert_eq!(twins.same(0, &["locks"])["items"], json!([]));
}

#[test]
fn a_command_whose_lock_is_lost_is_killed() {
    let twins = Twins::new();
    let begun = twins.away.path("begun");
    let script = format!("touch {} && exec sleep 600", begun.display());
    let words = ["locks", "run", "nightly", "--ttl", "1s", "--server", &twins.url, "--", "sh", "-c", &script];
    let running = twins.away.spawn(&words);
    while !begun.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Its server is gone for longer than the lock lasts.
    let Twins { served, .. } = twins;
    drop(served);
    let ended = running.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("this token doesn't hold lock"), "{ended:?}");
}

#[test]
fn a_log_is_followed_at_a_server_until_the_run_ends() {
    let mut twins = Twins::new();
    twins.start("approve", &["approve.yaml"]);
    let run = twins.runs["approve"][1].clone();
    let follow = ["events", &run, "--follow", "--json", "--type", "flow.start", "--type", "flow.cancelled"];
    let mut following = twins.away.spawn(&[&follow[..], &["--server", &twins.url]].concat());
    let mut out = BufReader::new(following.stdout.take().unwrap());
    let mut next = || -> Value {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_default()
    };
    assert_eq!(next()["type"], "flow.start");
    assert_eq!(twins.away.json(0, &["cancel", &run, "--server", &twins.url])["status"], "cancelled");
    assert_eq!(next()["type"], "flow.cancelled");
    assert_eq!(next(), Value::Null, "and nothing after it");
    assert_eq!(following.wait().unwrap().code(), Some(0));
}

#[test]
fn a_token_opens_what_it_is_for_and_nothing_else() {
    let (theirs, away) = (Here::new(), Here::new());
    let make = |scope: &str, tenant: &str| {
        let made =
            theirs.json(0, &["token", "create", "--subject", "me", "--scope", scope, "--tenant", tenant]);
        made["token"].as_str().unwrap().to_owned()
    };
    let old = theirs.json(0, &["token", "create", "--subject", "me", "--scope", "read", "--expires", "1d"]);
    let new = theirs.json(0, &["token", "rotate", old["id"].as_str().unwrap(), "--expires", "2d"]);
    let (all, reads, other) = (make("admin", "default"), make("read", "default"), make("admin", "other"));
    let served = Served::start(theirs.folder.path(), &["--auth", "tokens"]);
    let url = format!("http://{}", served.address);
    let ask = |token: &str, words: &[&str]| {
        let mut command = away.command(&[words, &["--server", &url]].concat());
        Said::of(command.env("FLOWLINE_TOKEN", token).output().unwrap())
    };
    let started = ask(&all, &["start", "approve.yaml"]);
    assert_eq!(started.exit, 0, "{started:?}");
    let run = started.out.trim();
    assert_eq!(ask(&reads, &["show", run]).exit, 0);
    ask(&reads, &["cancel", run]).refused(3, &["scope `operate`", "FLOWLINE_TOKEN or --token"]);
    ask(&reads, &["token", "list"]).refused(3, &["scope `admin`"]);
    ask(&other, &["show", run]).refused(2, &["there is no run", "flowline runs"]);
    ask("made-up", &["runs"]).refused(3, &["unknown, revoked or expired", "--token"]);
    ask("", &["runs"]).refused(3, &["Authorization: Bearer TOKEN", "--token"]);
    ask("a\nb", &["runs"]).refused(2, &["printable ASCII"]);
    ask(&all, &["runs", "--tenant", "other"]).refused(2, &["--tenant", "help"]);
    let json = ask("made-up", &["runs", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json.out).unwrap()["error"]["code"], "unauthorized");
    let newer = ask(&all, &["token", "rotate", new["id"].as_str().unwrap(), "--overlap", "1h"]);
    let secrets = [old["token"].as_str().unwrap(), new["token"].as_str().unwrap(), newer.out.trim()];
    assert!(secrets.iter().all(|secret| ask(secret, &["runs"]).exit == 0), "{newer:?}");
    let short = ask(&all, &["token", "create", "--subject", "me", "--scope", "read", "--expires", "1ms"]);
    ask(short.out.trim(), &["runs"]).refused(3, &["the token expired at", "--token"]);
    away.write("flowline.toml", &format!("server = {url:?}\ntoken = {all:?}\n"));
    assert_eq!(away.json(0, &["cancel", run])["status"], "cancelled", "both can stand in the settings file");
    assert_eq!(away.flowline(&["runs", "--token", &reads]).exit, 0);
    let worker = away.flowline(&["worker", "--queue", "q", "--token", &reads, "--", "true"]);
    worker.refused(3, &["scope `work`", "--token"]);
}

#[test]
fn a_server_that_is_not_there_or_is_none_is_told_from_a_mistake() {
    let here = Here::new();
    let ask = |url: &str| here.flowline(&["runs", "--server", url]);
    ask("localhost:7400").refused(2, &["http://HOST:PORT"]);
    ask("ftp://localhost").refused(2, &["http://HOST:PORT"]);
    ask("http://127.0.0.1:1").refused(3, &["can't reach http://127.0.0.1:1", "check --server"]);
    let code = here.json(3, &["cancel", "r", "--server", "http://127.0.0.1:1"]);
    assert_eq!(code["error"]["code"], "server-unreachable");
    let theirs = Here::new();
    let served = Served::start(theirs.folder.path(), &[]);
    let url = format!("http://{}", served.address);
    ask(&format!("{url}/elsewhere")).refused(3, &["/elsewhere/v1/runs", "without a path"]);
    assert_eq!(ask(&format!("http://127.0.0.1:1,{url}")).exit, 0, "the next one is asked");
    let stranger = stranger();
    ask(&stranger).refused(3, &["sent an unexpected response", "a Flowline server"]);
    assert!(!here.path(".flowline").exists());
}

/// A server of another kind, which answers once.
fn stranger() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello");
    });
    url
}

/// A server that gives this answer to everyone.
fn answers(status: u16, kind: &str, body: Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 8192]);
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    url
}

#[test]
fn a_server_cannot_play_with_the_terminal() {
    let here = Here::new();
    let evil = "\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}[31m\u{9b}8m\r\u{202e}hidden\u{8}";
    let detail =
        json!({ "type": "/errors/refused", "title": evil, "status": 409, "code": "refused", "detail": evil });
    let refuses = answers(409, "application/problem+json", detail);
    let row = json!({
        "runId": "r1", "flowName": evil, "tenant": "default", "status": "failed", "definition": evil, "events": 3, "version": 1,
        "createdAt": "2026-01-01T00:00:00.000Z", "labels": { "x": evil }, "failure": { "error": evil }, "idempotencyKey": evil,
    });
    let flow = json!({ "flow": evil, "name": evil, "flowName": evil, "hash": evil, "registeredAt": "2026-01-01T00:00:00.000Z",
        "queue": evil, "paused": true, "owner": evil, "key": evil, "value": evil, "fence": 1, "until": "2026-01-01T00:00:00.000Z" });
    let lists = [
        answers(200, "application/json", json!({ "items": [row], "total": 1, "hasMore": false })),
        answers(200, "application/json", json!({ "items": [flow], "total": 1, "hasMore": false })),
    ];
    for words in [
        &["runs"][..],
        &["flows"],
        &["queues"],
        &["locks"],
        &["state", "list", "orders"],
        &["show", "r1"],
        &["events", "r1"],
        &["explain", "r1"],
        &["stats"],
        &["cancel", "r1"],
        &["start", "order"],
        &["send", "r1", "go"],
        &["retry", "r1"],
        &["token", "list"],
        &["receipts"],
    ] {
        for url in lists.iter().chain([&refuses]) {
            for color in ["never", "always"] {
                let said = here.flowline(&[words, &["--server", url, "--color", color]].concat());
                for text in [&said.out, &said.err] {
                    let ours =
                        ["31", "32", "33", "36", "1", "2", "0"].map(|style| format!("\u{1b}[{style}m"));
                    let rest = ours.iter().fold(text.clone(), |text, style| text.replace(style.as_str(), ""));
                    let wild = rest
                        .chars()
                        .find(|c| (c.is_control() && *c != '\n' && *c != '\t') || *c == '\u{202e}');
                    assert_eq!(wild, None, "{words:?} {said:?}");
                }
            }
        }
        let said = here.flowline(&[words, &["--server", &refuses, "--color", "always"]].concat());
        assert!(said.err.contains("hidden") && !said.err.contains("\u{1b}[2J"), "{words:?} {said:?}");
    }
}

#[test]
fn the_nearer_of_server_and_store_counts_and_both_flags_are_refused() {
    let (here, theirs) = (Here::new(), Here::new());
    here.start(&["approve.yaml"]);
    let served = Served::start(theirs.folder.path(), &[]);
    let url = format!("http://{}", served.address);
    let total = |words: &[&str], variables: &[(&str, &str)]| -> u64 {
        let mut command = here.command(&[&["runs", "--json"], words].concat());
        let said = Said::of(command.envs(variables.iter().copied()).output().unwrap());
        let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
        answer["total"].as_u64().unwrap_or_else(|| panic!("{said:?}"))
    };
    let (store, server) =
        (("FLOWLINE_STORE", "sqlite:.flowline/flowline.db"), ("FLOWLINE_SERVER", url.as_str()));
    assert_eq!(total(&[], &[store]), 1);
    assert_eq!(total(&[], &[store, server]), 0, "as near, the server");
    assert_eq!(total(&["--server", &url], &[store]), 0);
    assert_eq!(total(&["--store", store.1], &[server]), 1);
    here.flowline(&["runs", "--store", store.1, "--server", &url]).refused(2, &["--store and --server"]);
    here.write("flowline.toml", &format!("server = {url:?}\n"));
    assert_eq!(total(&[], &[]), 0);
    assert_eq!(total(&[], &[store]), 1);
}

#[test]
fn what_only_a_store_can_do_refuses_a_server_with_the_remedy() {
    let here = Here::new();
    let url = ["--server", "http://127.0.0.1:1"];
    for words in [
        &["run", "order.yaml"][..],
        &["work", "--until-idle"],
        &["reconcile"],
        &["retain"],
        &["doctor"],
        &["serve"],
        &["dev"],
        &["bench"],
        &["verify", "--all-tenants"],
    ] {
        here.flowline(&[words, &url].concat()).refused(2, &["--store", "help"]);
    }
    here.flowline(&[&["move", "--from", "sqlite:a", "--to", "sqlite:b"], &url[..]].concat())
        .refused(2, &["--from"]);
    let mut command = here.command(&["run", "order.yaml"]);
    Said::of(command.env("FLOWLINE_SERVER", url[1]).output().unwrap()).refused(2, &["--store"]);
    for words in [&["validate", "order.yaml"][..], &["graph", "order.yaml"], &["schema"], &["config"]] {
        assert_eq!(here.flowline(&[words, &url].concat()).exit, 0, "{words:?} needs neither");
    }
    here.flowline(&["worker", "--queue", "q", "--", "true"]).refused(2, &["--server", "FLOWLINE_SERVER"]);
    assert!(!here.path(".flowline").exists());
}

#[test]
fn the_settings_show_the_server_and_never_the_token() {
    let here = Here::new();
    here.write("flowline.toml", "token = \"fl_secret\"\n");
    let words = ["config", "--server", "http://me:pass@127.0.0.1:1"];
    let shown = here.json(0, &words);
    assert_eq!(shown["server"], json!({ "value": "http://me:***@127.0.0.1:1", "source": "flag" }));
    assert_eq!(shown["token"], json!({ "value": "***", "source": "file flowline.toml" }));
    let said = here.flowline(&words);
    assert!(!said.out.contains("secret") && !said.out.contains("pass@"), "{said:?}");
    assert_eq!(here.json(0, &["config", "--config", "/dev/null"])["token"]["value"], "");
}
