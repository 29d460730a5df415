//! Machines over the API: events taken in and waited for, why they are turned down, and what became of them.

use serde_json::{Value, json};

use crate::http::contract::Contract;
use crate::kit::served::{Reply, Served};

/// `notify` runs here; `archive` waits for a worker that a test plays.
pub const EXPENSE: &str = r#"
machine: expense
events: { submit: , approve: { type: object, properties: { note: { type: string } } }, reject: , edit: , shelve: }
context: { amount: "input.amount" }
states:
  draft:
    on:
      submit: { to: review, if: "context.amount > 0", actions: [notify] }
      edit: { set: { amount: "payload.amount" } }
  review:
    on:
      approve: { to: approved, role: [manager], set: { by: "user" } }
      reject: { to: draft, role: [manager, director] }
      shelve: { actions: [archive] }
    after: { in: 48h, to: escalated }
  escalated: { on: { approve: { to: approved, role: director } } }
  approved: { final: true }
actions:
  notify: { command: ["true"] }
  archive: { worker: shelf }
"#;

/// An action that fails and is passed over, and one whose failure leads elsewhere.
const BROKEN: &str = r#"
machine: broken
events: { go: , stop: }
states:
  new: { on: { go: { to: gone, actions: [trip] } } }
  gone: { on: { stop: { to: done, actions: [fall] } } }
  hurt: { final: true }
  done: { final: true }
actions:
  trip: { command: [sh, -c, "exit 4"], on_failure: continue }
  fall: { command: [sh, -c, "echo no ground >&2; exit 4"], on_error: hurt }
"#;

impl Contract {
    fn run_of(&self, machine: &str, input: Value) -> String {
        self.start(machine, json!({ "input": input }))
    }

    fn event(&self, run: &str, more: &str, body: Value) -> Reply {
        self.post(&format!("/v1/runs/{run}/events{more}"), body)
    }
}

fn id(reply: &Reply) -> String {
    reply.json()["eventId"].as_str().unwrap_or_else(|| panic!("{reply:?}")).to_owned()
}

/// Takes the part of the contract test that is about the routes of machines.
pub fn routes(api: &Contract) {
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 5 }));
    let sent = api.event(&run, "", json!({ "name": "submit", "userId": "ada" }));
    assert_eq!((sent.status, sent.json()["changed"].clone()), (202, json!(true)), "{}", sent.body);
    let receipt = format!("/v1/runs/{run}/receipts/{}", id(&sent));
    assert_eq!(sent.header("location"), Some(receipt.as_str()));
    let receipt = api.get(&format!("{receipt}?wait=30s")).json();
    assert_eq!((&receipt["status"], &receipt["userId"]), (&json!("completed"), &json!("ada")), "{receipt}");
    let key = json!({ "key": "2026-1", "input": { "amount": 1 }, "name": "submit" });
    let opened = api.post("/v1/flows/expense/events?wait=30s", key);
    assert_eq!(opened.json()["receipt"]["result"]["currentState"], "review", "{}", opened.body);
    assert_eq!(api.get(&format!("/v1/runs/{run}/receipts")).json()["items"].as_array().unwrap().len(), 1);
    let page = api.get("/v1/receipts?status=completed&limit=1").json();
    assert_eq!((page["items"].as_array().unwrap().len(), &page["hasMore"]), (1, &json!(true)), "{page}");
    let next = page["next"].as_str().unwrap();
    assert_eq!(api.get(&format!("/v1/receipts?cursor={next}")).json()["hasMore"], false);
    assert_eq!(api.get("/v1/receipts?cursor=made-up").code(), "invalid");
    assert_eq!(api.get(&format!("/v1/runs/{run}/receipts/none")).code(), "no-such-receipt");
}

#[test]
fn an_event_is_taken_at_once_and_its_result_is_waited_for() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 5 }));
    let body = json!({ "name": "submit", "payload": { "note": 1 }, "userId": "ada", "roles": ["clerk"] });
    let sent = api.event(&run, "?wait=30s", body);
    assert_eq!(sent.status, 200, "{}", sent.body);
    let receipt = &sent.json()["receipt"];
    assert_eq!(
        receipt["result"],
        json!({ "previousState": "draft", "currentState": "review", "actionsExecuted": ["notify"] })
    );
    assert_eq!((&receipt["tries"], &receipt["roles"]), (&json!(1), &json!(["clerk"])));
    for time in ["receivedAt", "startedAt", "completedAt", "worker"] {
        assert!(receipt[time].is_string(), "{time} is missing: {receipt}");
    }
    let shown = api.get(&format!("/v1/runs/{run}")).json();
    assert_eq!((&shown["state"], &shown["context"]), (&json!("review"), &json!({ "amount": 5 })), "{shown}");
    assert_eq!(shown["timers"][0]["to"], "escalated");
    assert_eq!(
        shown["accepts"],
        json!([
            { "event": "approve", "roles": ["manager"] },
            { "event": "reject", "roles": ["manager", "director"] },
            { "event": "shelve" },
        ])
    );
    let why = api.get(&format!("/v1/runs/{run}/explain")).json();
    let summary = why["summary"].as_str().unwrap();
    let begins = "in review; accepts approve (manager), reject (manager, director), shelve; timer at ";
    assert!(summary.starts_with(begins), "{summary}");
    assert_eq!(why["accepts"], json!(["approve", "reject", "shelve"]));
    let listed = api.get("/v1/runs?flow=expense&state=review").json();
    assert_eq!((&listed["items"][0]["runId"], &listed["total"]), (&json!(run), &json!(1)), "{listed}");
    assert_eq!(api.get("/v1/runs?flow=expense&state=draft").json()["total"], 0);
    assert_eq!(api.get("/v1/runs?state=review").code(), "invalid");
    assert_eq!(api.get("/v1/stats").json()["flows"]["expense"]["byState"], json!({ "review": 1 }));
    let kinds = api.get("/v1/flows").json();
    let kind = |flow: &str| {
        let mut items = kinds["items"].as_array().unwrap().iter();
        items.find(|item| item["flow"] == flow).unwrap()["kind"].clone()
    };
    assert_eq!((kind("expense"), kind("order")), (json!("machine"), json!("flow")));
    assert_eq!(api.get("/v1/flows/expense").json()["definition"]["machine"], "expense");
    assert!(api.get("/v1/flows/expense/graph?format=mermaid").body.contains("review"));
    let approved = api.event(
        &run,
        "?wait=30s",
        json!({ "name": "approve", "payload": {}, "userId": "bo", "roles": ["manager"] }),
    );
    assert_eq!(approved.json()["receipt"]["status"], "completed", "{}", approved.body);
    assert_eq!(
        approved.json()["status"],
        "completed",
        "as the run is now, not as it was when the event came in"
    );
    let result = api.get(&format!("/v1/runs/{run}/result?wait=30s")).json();
    assert_eq!(result["result"], json!({ "amount": 5, "by": "bo" }));
}

#[test]
fn what_could_never_be_taken_is_refused_at_once() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 5 }));
    let unknown = api.event(&run, "", json!({ "name": "aprove" }));
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "no-such-event"));
    let stranger = api.event(&run, "", json!({ "name": "approve", "payload": {}, "roles": ["clerk"] }));
    assert_eq!((stranger.status, stranger.code().as_str()), (403, "role"), "no state takes it from a clerk");
    let misfit = json!({ "name": "approve", "payload": { "note": 1 }, "roles": ["manager"] });
    let misfit = api.event(&run, "", misfit);
    assert_eq!((misfit.status, misfit.code().as_str()), (400, "schema"));
    assert_eq!(misfit.json()["errors"][0]["pointer"], "/payload/note");
    assert_eq!(
        api.get(&format!("/v1/runs/{run}/receipts")).json()["items"],
        json!([]),
        "nothing was taken in"
    );
    let none = json!({ "key": "k", "name": "aprove" });
    assert_eq!(api.post("/v1/flows/expense/events", none).code(), "no-such-event");
    assert_eq!(api.get("/v1/runs?flow=expense").json()["total"], 1, "and nothing was started for it");
    assert_eq!(
        api.post("/v1/flows/nothing/events", json!({ "key": "k", "name": "x" })).code(),
        "no-such-flow"
    );
    assert_eq!(api.send("POST", &format!("/v1/runs/{run}/cancel"), &[], "").status, 200);
    let late = api.event(&run, "", json!({ "name": "submit" }));
    assert_eq!((late.status, late.code().as_str()), (409, "run-ended"));
}

/// Nothing in it ever begins an attempt.
#[test]
fn a_machine_without_actions_started_with_its_run_and_row_and_last_event_agree() {
    let api = Contract::new();
    api.served.register(
        "machine: door\nevents: { open: }\nstates:\n  closed: { on: { open: ajar } }\n  ajar: { final: true }\n",
    );
    let run = api.run_of("door", json!({}));
    let row = || api.get(&format!("/v1/runs/{run}")).json();
    assert_eq!(row()["startedAt"], row()["createdAt"], "{}", row());
    assert_eq!(api.event(&run, "?wait=30s", json!({ "name": "open" })).status, 200);
    let row = row();
    assert_eq!((&row["status"], &row["startedAt"]), (&json!("completed"), &row["createdAt"]), "{row}");
    let events = api.get(&format!("/v1/runs/{run}/events")).json();
    let last = &events["items"].as_array().unwrap().last().unwrap()["data"];
    assert_eq!((&last["duration"], &last["stepCount"]), (&row["duration"], &row["stepCount"]), "{row}");
    assert!(row["duration"].is_u64() && row["stepCount"].is_u64(), "{row}");
}

#[test]
fn what_does_not_fit_when_its_turn_comes_is_told_to_whoever_waits() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 0 }));
    let early = json!({ "name": "approve", "payload": {}, "roles": ["manager"] });
    let rejected = api.event(&run, "?wait=30s", early.clone());
    assert_eq!((rejected.status, rejected.code().as_str()), (409, "event-rejected"), "{}", rejected.body);
    assert_eq!(rejected.json()["accepts"], json!(["edit", "submit"]));
    let receipt = api.get(&format!("/v1/runs/{run}/receipts/{}", id(&rejected))).json();
    assert_eq!((&receipt["status"], &receipt["code"]), (&json!("failed"), &json!("wrong_state")));
    assert_eq!(api.event(&run, "", early).status, 202, "whoever does not wait looks at the receipt");
    let guard = api.event(&run, "?wait=30s", json!({ "name": "submit" }));
    assert_eq!(guard.code(), "event-rejected");
    assert!(guard.json()["detail"].as_str().unwrap().contains("condition"), "{}", guard.body);
    api.event(&run, "?wait=30s", json!({ "name": "edit", "payload": { "amount": 7 } }));
    assert_eq!(api.event(&run, "?wait=30s", json!({ "name": "submit" })).status, 200);
    let director = json!({ "name": "approve", "payload": {}, "roles": ["director"] });
    let role = api.event(&run, "?wait=30s", director);
    assert_eq!((role.status, role.code().as_str()), (403, "role"), "a director approves what is escalated");
    assert_eq!(role.json()["accepts"], json!(["approve", "reject", "shelve"]));
}

#[test]
fn an_event_whose_actions_are_at_work_is_told_with_their_lease() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 5 }));
    api.event(&run, "?wait=30s", json!({ "name": "submit" }));
    let shelved = api.event(&run, "?wait=1ms", json!({ "name": "shelve" }));
    assert_eq!((shelved.status, shelved.json()["receipt"]["status"].clone()), (202, json!("processing")));
    let ask = json!({ "worker": "w1", "queues": ["shelf"], "waitMs": 20_000 });
    let claimed = api.post("/v1/work/claim", ask).json();
    let reject = json!({ "name": "reject", "roles": ["manager"] });
    let waiting = api.event(&run, "", reject);
    let path = |event: &str| format!("/v1/runs/{run}/receipts/{event}");
    let receipt = api.get(&path(&id(&shelved))).json();
    assert!(receipt["worker"].as_str().unwrap().starts_with("w1@"), "{receipt}");
    assert_eq!(receipt["tries"], 1);
    assert!(receipt["lockedUntil"].is_string(), "{receipt}");
    assert_eq!(api.get(&path(&id(&waiting))).json()["status"], "pending");
    assert_eq!(api.get("/v1/receipts?status=processing").json()["items"][0]["eventId"], receipt["eventId"]);
    let why = api.get(&format!("/v1/runs/{run}/explain")).json();
    let summary = why["summary"].as_str().unwrap();
    assert!(
        summary.contains("shelve is being handled, running archive; 1 in the inbox; action archive running"),
        "{summary}"
    );
    assert_eq!(why["machine"]["turn"]["eventId"], receipt["eventId"]);
    let who = receipt["worker"].as_str().unwrap();
    let held =
        |of: &str| api.get(&format!("/v1/receipts?status=processing&worker={of}")).json()["items"].clone();
    assert_eq!((&held(who)[0]["eventId"], held("w2")), (&receipt["eventId"], json!([])), "by who holds it");
    let done = json!({ "outcomes": [{ "lease": claimed["jobs"][0]["lease"], "complete": {} }] });
    assert_eq!(api.post("/v1/work/complete", done).json()["results"][0]["applied"], true);
    assert_eq!(
        api.get(&format!("{}?wait=30s", path(&id(&waiting)))).json()["result"]["currentState"],
        "draft"
    );
    assert_eq!(api.get(&path(&id(&shelved))).json()["result"]["actionsExecuted"], json!(["archive"]));
    assert_eq!(
        api.get(&format!("/v1/receipts?worker={who}")).json()["items"],
        json!([]),
        "it wrote nothing itself"
    );
}

#[test]
fn an_event_whose_action_failed_has_moved_the_machine() {
    let api = Contract::new();
    api.served.register(BROKEN);
    let run = api.run_of("broken", json!({}));
    let receipt = |name: &str| {
        let sent = api.event(&run, "?wait=30s", json!({ "name": name }));
        assert_eq!(sent.status, 200, "{}", sent.body);
        sent.json()["receipt"].clone()
    };
    let gone = receipt("go");
    assert_eq!((&gone["status"], &gone["result"]["actionsFailed"]), (&json!("completed"), &json!(["trip"])));
    let stopped = receipt("stop");
    assert_eq!(
        (&stopped["status"], &stopped["code"]),
        (&json!("failed"), &json!("action_failed")),
        "{stopped}"
    );
    assert!(stopped["error"].as_str().unwrap().contains("no ground"), "{stopped}");
    assert_eq!(stopped["result"]["currentState"], "done", "where the event led; the failure led on");
    assert_eq!(api.get(&format!("/v1/runs/{run}/result?wait=30s")).json()["status"], "completed");
    assert_eq!(api.get(&format!("/v1/runs/{run}")).json()["state"], "hurt");
}

#[test]
fn a_key_stands_for_one_event_of_the_tenant() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 1 }));
    let other = api.run_of("expense", json!({ "amount": 2 }));
    let edit =
        |amount: u32| json!({ "name": "edit", "payload": { "amount": amount }, "idempotencyKey": "k1" });
    let first = api.event(&run, "?wait=30s", edit(3));
    let again = api.event(&run, "?wait=30s", edit(3));
    assert_eq!((id(&first), again.json()["changed"].clone()), (id(&again), json!(false)), "{}", again.body);
    for reply in [api.event(&run, "", edit(4)), api.event(&other, "", edit(3))] {
        assert_eq!((reply.status, reply.code().as_str()), (409, "key-conflict"));
    }
    let json = ("content-type", "application/json");
    let path = format!("/v1/runs/{run}/events");
    let by_header = api.send(
        "POST",
        &path,
        &[json, ("idempotency-key", "k1")],
        r#"{"name":"edit","payload":{"amount":3}}"#,
    );
    assert_eq!(id(&by_header), id(&first));
    let both = api.send("POST", &path, &[json, ("idempotency-key", "k2")], &edit(3).to_string());
    assert_eq!(both.json()["errors"][0]["pointer"], "/idempotencyKey");
    let mistyped = |name: &str| json!({ "name": name, "payload": { "amount": 3 }, "idempotencyKey": "k4" });
    assert_eq!(api.event(&run, "", mistyped("edti")).code(), "no-such-event");
    assert_eq!(
        api.event(&other, "", mistyped("edit")).status,
        202,
        "a key does not stand for what was refused"
    );
    let own = json!({ "name": "edit", "payload": { "amount": 9 }, "eventId": "mine" });
    assert_eq!(api.event(&run, "", own.clone()).json()["eventId"], "mine");
    assert_eq!(api.event(&run, "", own).json()["changed"], false);
    let mixed = json!({ "name": "edit", "eventId": "mine", "idempotencyKey": "k3" });
    assert_eq!(api.event(&run, "", mixed).json()["errors"][0]["pointer"], "/eventId");
    assert_eq!(api.get(&format!("/v1/runs/{run}/receipts")).json()["items"].as_array().unwrap().len(), 2);
}

#[test]
fn a_run_is_started_by_its_first_event_and_found_by_the_next() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let send = |name: &str, roles: Value| {
        let body = json!({ "key": "2026-117", "input": { "amount": 90 }, "name": name, "payload": {}, "roles": roles });
        api.post("/v1/flows/expense/events?wait=30s", body)
    };
    let first = send("submit", json!([]));
    let second = send("approve", json!(["manager"]));
    assert_eq!((first.status, second.status), (200, 200), "{} {}", first.body, second.body);
    assert_eq!(first.json()["runId"], second.json()["runId"]);
    assert_eq!(send("submit", json!([])).code(), "run-ended");
    // A signal into a flow goes the same way.
    let flow = json!({ "key": "o1", "input": { "total": 1 }, "name": "approval.given", "payload": {} });
    let signal = api.post("/v1/flows/order/events", flow);
    assert_eq!((signal.status, signal.json()["receipt"].clone()), (200, Value::Null), "{}", signal.body);
}

#[test]
fn an_inbox_takes_so_many_events_and_then_says_when_to_come_again() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 5 }));
    api.event(&run, "?wait=30s", json!({ "name": "submit" }));
    // The first has the turn: nobody does its action.
    let full =
        (0..300).map(|_| api.event(&run, "", json!({ "name": "shelve" }))).find(|reply| reply.status != 202);
    let full = full.expect("an inbox has an end");
    assert_eq!(
        (full.status, full.code().as_str(), full.header("retry-after")),
        (429, "inbox-full", Some("1"))
    );
}

#[test]
fn events_of_machines_are_streamed_and_counted() {
    let api = Contract::new();
    api.served.register(EXPENSE);
    let run = api.run_of("expense", json!({ "amount": 5 }));
    api.event(&run, "?wait=30s", json!({ "name": "submit" }));
    api.event(&run, "?wait=30s", json!({ "name": "submit" }));
    api.event(&run, "?wait=30s", json!({ "name": "approve", "payload": {}, "roles": ["manager"] }));
    let path =
        format!("/v1/runs/{run}/stream?type=event.received,event.rejected,state.changed,timer.cancelled");
    let streamed = api.served.get(&path).body;
    let types: Vec<&str> = streamed.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let expected = [
        "state.changed",
        "event.received",
        "state.changed",
        "event.received",
        "event.rejected",
        "event.received",
        "timer.cancelled",
        "state.changed",
    ];
    assert_eq!(
        types.iter().filter(|kind| **kind != "end").copied().collect::<Vec<_>>(),
        expected,
        "{streamed}"
    );
    let metrics = api.served.get("/metrics").body;
    for (name, count) in [("received", 3), ("applied", 2), ("rejected", 1)] {
        let line = metrics.lines().find(|line| line.starts_with(&format!("flowline_events_{name}_total")));
        assert!(line.is_some_and(|line| line.ends_with(&format!(" {count}"))), "{name}: {line:?}");
    }
}

/// Who sends an event is what the token says, whatever the body does.
#[test]
fn a_token_says_who_sends_an_event() {
    let folder = tempfile::tempdir().unwrap();
    let token = |roles: &[&str], more: &[&str]| {
        let roles = roles.iter().flat_map(|role| ["--role", role]);
        let words = [
            "token",
            "create",
            "--json",
            "--subject",
            "ada",
            "--scope",
            "start",
            "--scope",
            "read",
            "--scope",
            "operate",
        ];
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_flowline"))
            .current_dir(folder.path())
            .args(words.into_iter().chain(roles).chain(more.iter().copied()))
            .output()
            .unwrap();
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        format!("Bearer {}", made["token"].as_str().unwrap())
    };
    let (clerk, boss) = (token(&[], &[]), token(&["manager"], &[]));
    let (bound, elsewhere) =
        (token(&["manager"], &["--bind-flow", "other"]), token(&["manager"], &["--tenant", "t2"]));
    let served = Served::start(folder.path(), &["--auth", "tokens", "--allow-commands"]);
    let ask = |token: &str, method: &str, path: &str, body: &str, kind: &str| {
        served.send(method, path, &[("authorization", token), ("content-type", kind)], body)
    };
    let post = |token: &str, path: &str, body: Value| {
        ask(token, "POST", path, &body.to_string(), "application/json")
    };
    assert_eq!(ask(&clerk, "POST", "/v1/flows", EXPENSE, "application/yaml").status, 201);
    let started = post(
        &clerk,
        "/v1/flows/expense/events?wait=30s",
        json!({ "key": "k", "input": { "amount": 1 }, "name": "submit" }),
    );
    assert_eq!(started.json()["receipt"]["userId"], "ada", "{}", started.body);
    let run = started.json()["runId"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/events?wait=30s");
    let forged = post(&clerk, &path, json!({ "name": "approve", "payload": {}, "roles": ["manager"] }));
    assert_eq!(
        (forged.code().as_str(), forged.json()["errors"][0]["pointer"].as_str()),
        ("bad-body", Some("/roles"))
    );
    let forged = post(&clerk, &path, json!({ "name": "approve", "payload": {}, "userId": "bo" }));
    assert_eq!(forged.json()["errors"][0]["pointer"], "/userId");
    assert_eq!(post(&clerk, &path, json!({ "name": "approve", "payload": {} })).code(), "role");
    for stranger in [&bound, &elsewhere] {
        assert_eq!(post(stranger, &path, json!({ "name": "approve", "payload": {} })).code(), "no-such-run");
        assert_eq!(ask(stranger, "GET", &format!("/v1/runs/{run}/receipts"), "", "").code(), "no-such-run");
        assert_eq!(ask(stranger, "GET", "/v1/receipts", "", "").json()["items"], json!([]));
    }
    let approved = post(&boss, &path, json!({ "name": "approve", "payload": {} }));
    assert_eq!(approved.json()["receipt"]["roles"], json!(["manager"]), "{}", approved.body);
}

/// A token with scope `on_behalf` names the user whom it acts for, and gives no role that it lacks itself.
#[test]
fn a_token_that_acts_for_users_is_recorded_beside_them_and_gives_no_role_that_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let token = |subject: &str, words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_flowline"))
            .current_dir(folder.path())
            .args(["token", "create", "--json", "--subject", subject])
            .args(words)
            .output()
            .unwrap();
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        made["token"].as_str().unwrap().to_owned()
    };
    let portal = token(
        "portal",
        &["--scope", "start", "--scope", "read", "--scope", "on_behalf", "--role", "manager"],
    );
    let admin = token("root", &["--scope", "admin", "--role", "manager"]);
    let served = Served::start(folder.path(), &["--auth", "tokens", "--allow-commands"]);
    let ask = |token: &str, method: &str, path: &str, body: &str, kind: &str| {
        let bearer = format!("Bearer {token}");
        served.send(method, path, &[("authorization", &bearer), ("content-type", kind)], body)
    };
    let post = |token: &str, path: &str, body: Value| {
        ask(token, "POST", path, &body.to_string(), "application/json")
    };
    assert_eq!(ask(&admin, "POST", "/v1/flows", EXPENSE, "application/yaml").status, 201);
    let submit = json!({ "key": "k", "input": { "amount": 1 }, "name": "submit", "userId": "ada" });
    let started = post(&portal, "/v1/flows/expense/events?wait=30s", submit);
    let receipt = &started.json()["receipt"];
    assert_eq!(
        (&receipt["userId"], &receipt["sentBy"]),
        (&json!("ada"), &json!("portal")),
        "{}",
        started.body
    );
    let run = started.json()["runId"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{run}/events");
    let approve = |more: Value| {
        let mut body = json!({ "name": "approve", "payload": {} });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let lent = post(&portal, &path, approve(json!({ "userId": "bo", "roles": ["director"] })));
    assert_eq!((lent.status, lent.code().as_str()), (403, "forbidden"), "{}", lent.body);
    let nobody = post(&portal, &path, approve(json!({ "roles": ["manager"] })));
    assert_eq!(nobody.json()["errors"][0]["pointer"], "/roles");
    let plain = post(&portal, &path, approve(json!({ "userId": "ada" })));
    assert_eq!(plain.code(), "role", "the token's roles are not those of the user: {}", plain.body);
    let forged = post(&admin, &path, approve(json!({ "userId": "bo" })));
    assert_eq!(forged.code(), "bad-body", "`admin` does not include it");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_flowline"))
        .current_dir(folder.path())
        .env("FLOWLINE_TOKEN", &portal)
        .args([
            "send",
            &run,
            "approve",
            "--payload",
            "{}",
            "--user",
            "bo",
            "--role",
            "manager",
            "--wait",
            "30s",
            "--json",
        ])
        .args(["--server", &format!("http://{}", served.address)])
        .output()
        .unwrap();
    let sent: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(
        (&sent["receipt"]["userId"], &sent["receipt"]["roles"]),
        (&json!("bo"), &json!(["manager"])),
        "{sent}"
    );
    let log = ask(&portal, "GET", &format!("/v1/runs/{run}/events?type=event.received"), "", "").json();
    let last = log["items"].as_array().unwrap().last().unwrap()["data"].clone();
    assert_eq!((&last["userId"], &last["sentBy"]), (&json!("bo"), &json!("portal")), "{log}");
    let audit = ask(&admin, "GET", "/v1/audit?limit=100", "", "").json();
    let lines = audit["items"].as_array().unwrap();
    let acted = |user: &str, status: u64| {
        let same = |line: &&Value| line["onBehalfOf"] == user && line["status"] == status;
        lines.iter().filter(same).filter(|line| line["subject"] == "portal").count()
    };
    assert_eq!((acted("ada", 200), acted("ada", 403), acted("bo", 403)), (1, 1, 1), "{audit}");
    assert_eq!(acted("bo", 202) + acted("bo", 200), 1, "{audit}");
}
