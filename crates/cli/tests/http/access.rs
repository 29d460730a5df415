//! Who may do what: tokens, scopes, tenants, and a machine's own door.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::served::{Reply, Served};

const FLOW: &str = "flow: greet\naccepts: { go: {} }\nsteps:\n  wait: { worker: depot, subscribes: [go] }\n";

pub fn flowline(folder: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_flowline"))
        .current_dir(folder)
        .args(arguments)
        .arg("--json")
        .output();
    let output = output.expect("the binary is built");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Makes a token with these scopes, before the server has the store.
pub fn token(folder: &Path, tenant: &str, more: &[&str]) -> String {
    let made =
        flowline(folder, &[&["token", "create", "--tenant", tenant, "--subject", "tester"], more].concat());
    made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

fn as_(served: &Served, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let body = if method == "GET" { String::new() } else { body.to_string() };
    served.send(method, path, &[("authorization", &bearer), ("content-type", "application/json")], &body)
}

fn definition() -> Value {
    json!({ "flow": "greet", "accepts": { "go": {} }, "steps": { "wait": { "worker": "depot", "subscribes": ["go"] } } })
}

#[test]
fn every_route_refuses_a_request_without_a_token_and_a_token_without_its_scope() {
    let folder = tempfile::tempdir().unwrap();
    let all = ["read", "start", "work", "operate", "on_behalf", "admin"];
    let tokens: Vec<(&str, String)> =
        all.iter().map(|scope| (*scope, token(folder.path(), "default", &["--scope", scope]))).collect();
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let document = served.get("/openapi.json").json();
    let mut checked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Some(needed) = operation["x-scope"].as_str() else { continue };
            let path = path.replace(['{', '}'], "");
            let method = method.to_uppercase();
            assert_eq!(served.send(&method, &path, &[], "").code(), "unauthorized", "{method} {path}");
            let made_up = as_(&served, &format!("fl_{}", "0".repeat(64)), &method, &path, &json!({}));
            assert_eq!(made_up.code(), "unauthorized", "{method} {path}");
            let enough = |scope: &str| scope == "admin" || needed.split(" or ").any(|needed| needed == scope);
            for (scope, token) in tokens.iter().filter(|(scope, _)| !enough(scope)) {
                let reply = as_(&served, token, &method, &path, &json!({}));
                assert_eq!(
                    (reply.status, reply.code().as_str()),
                    (403, "forbidden"),
                    "{method} {path} with {scope}"
                );
                let detail = reply.json()["detail"].as_str().unwrap().replace('`', "");
                assert!(detail.contains(needed), "{detail}");
                checked += 1;
            }
        }
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn another_tenants_token_finds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ours = token(folder.path(), "ours", &["--scope", "admin"]);
    let theirs = token(folder.path(), "theirs", &["--scope", "admin"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    assert_eq!(as_(&served, &ours, "POST", "/v1/flows", &definition()).status, 201);
    let run = as_(&served, &ours, "POST", "/v1/flows/greet/runs", &json!({})).json()["runId"]
        .as_str()
        .unwrap()
        .to_owned();
    for path in ["", "/events", "/result", "/state", "/explain", "/verify"] {
        let path = format!("/v1/runs/{run}{path}");
        assert_eq!(as_(&served, &ours, "GET", &path, &json!({})).status / 100, 2, "{path}");
        assert_eq!(as_(&served, &theirs, "GET", &path, &json!({})).code(), "no-such-run", "{path}");
    }
    for (path, body) in [
        ("cancel", json!({})),
        ("pause", json!({})),
        ("resume", json!({})),
        ("retry", json!({})),
        ("complete", json!({})),
        ("fail", json!({ "error": "no" })),
        ("events", json!({ "name": "go" })),
    ] {
        assert_eq!(
            as_(&served, &theirs, "POST", &format!("/v1/runs/{run}/{path}"), &body).code(),
            "no-such-run",
            "{path}"
        );
    }
    for path in ["", "/versions", "/graph", "/stream"].map(|path| format!("/v1/flows/greet{path}")) {
        assert_eq!(as_(&served, &theirs, "GET", &path, &json!({})).code(), "no-such-flow", "{path}");
    }
    assert_eq!(as_(&served, &theirs, "POST", "/v1/flows/greet/runs", &json!({})).code(), "no-such-flow");
    let taken = as_(&served, &ours, "POST", "/v1/locks/nightly", &json!({})).json();
    let mine = json!({ "lockToken": taken["lockToken"] });
    for path in ["/v1/runs", "/v1/flows", "/v1/queues", "/v1/workers", "/v1/locks", "/v1/audit"] {
        let items = as_(&served, &theirs, "GET", path, &json!({})).json()["items"].clone();
        let foreign = items.as_array().unwrap().iter().filter(|item| item["subject"].is_null()).count();
        assert_eq!(foreign, 0, "{path}: {items}");
    }
    assert_eq!(
        as_(&served, &theirs, "GET", &format!("/v1/runs/{run}/stream"), &json!({})).code(),
        "no-such-run"
    );
    assert_eq!(as_(&served, &theirs, "GET", "/v1/locks/nightly", &json!({})).code(), "no-such-lock");
    assert_eq!(as_(&served, &theirs, "POST", "/v1/locks/nightly/extend", &mine).code(), "lock-lost");
    let released = as_(&served, &theirs, "POST", "/v1/locks/nightly/release", &mine).json();
    assert_eq!(released["released"], false, "a lock of the same name is another one");
    assert_eq!(as_(&served, &theirs, "POST", "/v1/locks/nightly", &json!({})).status, 200);
    assert_eq!(as_(&served, &ours, "GET", "/v1/locks/nightly", &json!({})).json()["fence"], taken["fence"]);
    assert_eq!(as_(&served, &theirs, "GET", "/v1/stats", &json!({})).json()["total"]["runs"], 0);
    let tokens = as_(&served, &theirs, "GET", "/v1/tokens", &json!({})).json()["items"].clone();
    assert_eq!(tokens.as_array().unwrap().len(), 1);
    let bulk = json!({ "action": "cancel", "filter": {} });
    assert_eq!(as_(&served, &theirs, "POST", "/v1/runs/bulk", &bulk).json()["items"], json!([]));
    assert_eq!(
        as_(&served, &ours, "GET", &format!("/v1/runs/{run}"), &json!({})).json()["status"],
        "waiting"
    );
}

/// Whatever the path of a route names, by the description that the server gives of itself: so no route is left out.
#[test]
fn no_route_finds_what_another_tenant_has_under_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let ours = token(folder.path(), "ours", &["--scope", "admin"]);
    let theirs = token(folder.path(), "theirs", &["--scope", "admin"]);
    let served = Served::start(folder.path(), &["--auth", "tokens", "--allow-commands"]);
    let bearer = format!("Bearer {ours}");
    let yaml = [("authorization", bearer.as_str()), ("content-type", "application/yaml")];
    assert_eq!(served.send("POST", "/v1/flows", &yaml, crate::http::machines::EXPENSE).status, 201);
    let event = json!({ "key": "k", "input": { "amount": 1 }, "name": "edit", "payload": { "amount": 2 }, "eventId": "e1" });
    let event = as_(&served, &ours, "POST", "/v1/flows/expense/events?wait=30s", &event).json();
    let id = as_(&served, &ours, "GET", "/v1/tokens", &json!({})).json()["items"][0]["id"].clone();
    let names = [
        ("{run}", event["runId"].as_str().unwrap()),
        ("{flow}", "expense"),
        ("{event}", "e1"),
        ("{id}", id.as_str().unwrap()),
    ];
    let document = served.get("/openapi.json").json();
    let (mut hidden, mut shown) = (0, 0);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let named = names.iter().any(|(name, _)| path.contains(name));
            if operation["x-scope"].is_null() || !named {
                continue;
            }
            let method = method.to_uppercase();
            let address = names.iter().fold(path.clone(), |path, (name, value)| path.replace(name, value));
            let body = match path.rsplit('/').next().unwrap() {
                "events" if path.contains("{flow}") => json!({ "key": "k", "name": "edit" }),
                "events" => json!({ "name": "edit" }),
                "fail" => json!({ "error": "no" }),
                "activate" => json!({ "version": "0000000" }),
                _ => json!({}),
            };
            let reply = as_(&served, &theirs, &method, &address, &body);
            assert_eq!(reply.status, 404, "{method} {path}: {reply:?}");
            assert!(
                !reply.body.contains("amount") && !reply.body.contains("ours"),
                "{method} {path}: {reply:?}"
            );
            hidden += 1;
            if method == "GET" && !path.ends_with("/stream") {
                let reply = as_(&served, &ours, &method, &address, &json!({}));
                assert_eq!(reply.status / 100, 2, "{method} {path}: {reply:?}");
                shown += 1;
            }
        }
    }
    assert!(hidden > 20 && shown > 10, "{hidden} {shown}");
    assert_eq!(as_(&served, &theirs, "GET", "/v1/receipts", &json!({})).json()["items"], json!([]));
    // A queue is a name, and everybody has all of them; what waits in one is of its tenant.
    assert_eq!(as_(&served, &ours, "POST", "/v1/flows/expense/events?wait=30s", &submit()).status, 200);
    let shelve = json!({ "key": "k", "name": "shelve" });
    assert_eq!(as_(&served, &ours, "POST", "/v1/flows/expense/events", &shelve).status, 202);
    assert_eq!(as_(&served, &ours, "GET", "/v1/queues/shelf", &json!({})).status, 200);
    assert_eq!(as_(&served, &theirs, "GET", "/v1/queues/shelf", &json!({})).code(), "no-such-queue");
    assert_eq!(as_(&served, &theirs, "POST", "/v1/queues/shelf/pause", &json!({})).status, 200);
    let lanes = as_(&served, &ours, "GET", "/v1/queues/shelf", &json!({})).json();
    assert_eq!(
        (&lanes["items"][0]["paused"], &lanes["items"][0]["ready"]),
        (&json!(false), &json!(1)),
        "{lanes}"
    );
    for path in ["/v1/queues/shelf/dead", "/v1/queues/shelf/redrive"] {
        let method = if path.ends_with("dead") { "GET" } else { "POST" };
        assert_eq!(as_(&served, &theirs, method, path, &json!({})).json()["items"], json!([]), "{path}");
    }
}

fn submit() -> Value {
    json!({ "key": "k", "name": "submit" })
}

#[test]
fn a_token_bound_to_a_flow_sees_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let all = token(folder.path(), "default", &["--scope", "admin"]);
    let bound = token(folder.path(), "default", &["--scope", "admin", "--bind-flow", "other"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    assert_eq!(as_(&served, &all, "POST", "/v1/flows", &definition()).status, 201);
    let run = as_(&served, &all, "POST", "/v1/flows/greet/runs", &json!({})).json()["runId"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(as_(&served, &bound, "POST", "/v1/flows", &definition()).code(), "no-such-flow");
    assert_eq!(as_(&served, &bound, "POST", "/v1/flows/greet/runs", &json!({})).code(), "no-such-flow");
    assert_eq!(as_(&served, &bound, "GET", &format!("/v1/runs/{run}"), &json!({})).code(), "no-such-run");
    assert_eq!(
        as_(&served, &bound, "POST", &format!("/v1/runs/{run}/cancel"), &json!({})).code(),
        "no-such-run"
    );
    assert_eq!(as_(&served, &bound, "GET", "/v1/flows", &json!({})).json()["items"], json!([]));
    assert_eq!(as_(&served, &bound, "GET", "/v1/runs", &json!({})).json()["items"], json!([]));
    // Queues hold jobs of any flow, and what is about all of the tenant is not for it, least of all a way out.
    assert_eq!(as_(&served, &bound, "GET", "/v1/queues", &json!({})).json()["items"], json!([]));
    for act in ["pause", "resume", "redrive"] {
        let reply = as_(&served, &bound, "POST", &format!("/v1/queues/depot/{act}"), &json!({}));
        assert_eq!(reply.code(), "no-such-queue", "{act}");
    }
    let escape = json!({ "subject": "esc", "scopes": ["admin"] });
    assert_eq!(as_(&served, &bound, "POST", "/v1/tokens", &escape).code(), "forbidden");
    assert_eq!(as_(&served, &bound, "GET", "/v1/audit", &json!({})).code(), "forbidden");
    assert_eq!(as_(&served, &bound, "POST", "/v1/verify", &json!({})).code(), "forbidden");
    assert_eq!(as_(&served, &all, "POST", "/v1/queues/depot/pause", &json!({})).status, 200);
}

#[test]
fn a_worker_takes_only_what_its_token_allows() {
    let folder = tempfile::tempdir().unwrap();
    let all = token(folder.path(), "default", &["--scope", "admin"]);
    let theirs = token(folder.path(), "theirs", &["--scope", "work"]);
    let depot = token(folder.path(), "default", &["--scope", "work", "--bind-queue", "depot"]);
    let flow = token(folder.path(), "default", &["--scope", "work", "--bind-flow", "parcel"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let parcel = json!({ "flow": "parcel", "steps": { "pack": { "worker": "depot" } } });
    assert_eq!(as_(&served, &all, "POST", "/v1/flows", &parcel).status, 201);
    assert_eq!(as_(&served, &all, "POST", "/v1/flows/parcel/runs", &json!({})).status, 201);
    let claim = |queues: Value| json!({ "worker": "w1", "queues": queues, "waitMs": 0 });
    let take = |token: &str, queues: Value| as_(&served, token, "POST", "/v1/work/claim", &claim(queues));
    assert_eq!(take(&depot, json!(["depot", "office"])).code(), "forbidden");
    assert_eq!(take(&flow, json!(["depot"])).code(), "forbidden");
    assert_eq!(take(&theirs, json!(["depot"])).json()["jobs"], json!([]));
    let job = take(&depot, json!(["depot"])).json()["jobs"][0].clone();
    let lease = &job["lease"];
    let outcome = json!({ "outcomes": [{ "lease": lease, "complete": {} }] });
    assert_eq!(as_(&served, &theirs, "POST", "/v1/work/complete", &outcome).code(), "stale-lease");
    let beat = as_(&served, &theirs, "POST", "/v1/work/heartbeat", &json!({ "leases": [lease] })).json();
    assert_eq!(beat["leases"][0]["state"], "lost");
    assert_eq!(as_(&served, &theirs, "POST", "/v1/work/release", &json!({ "leases": [lease] })).status, 204);
    let told = as_(&served, &depot, "POST", "/v1/work/complete", &outcome).json();
    assert_eq!(told["results"][0]["applied"], true, "{told}");
}

#[test]
fn a_revoked_token_is_refused_soon_and_an_expired_one_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let admin = token(folder.path(), "default", &["--scope", "admin"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let short = json!({ "subject": "short", "scopes": ["read"], "expires": "1ms" });
    let short = as_(&served, &admin, "POST", "/v1/tokens", &short).json();
    let expired = as_(&served, short["token"].as_str().unwrap(), "GET", "/v1/whoami", &json!({}));
    assert_eq!((expired.status, expired.code().as_str()), (401, "token-expired"));
    assert!(expired.json()["detail"].as_str().unwrap().contains(short["expiresAt"].as_str().unwrap()));
    let made = as_(&served, &admin, "POST", "/v1/tokens", &json!({ "subject": "ci", "scopes": ["read"] }));
    assert_eq!((made.status, made.header("cache-control")), (201, Some("no-store")));
    let made = made.json();
    let (id, secret) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    assert_eq!(as_(&served, secret, "GET", "/v1/whoami", &json!({})).json()["subject"], "ci");
    assert!(!as_(&served, &admin, "GET", "/v1/tokens", &json!({})).body.contains(secret));
    assert_eq!(as_(&served, &admin, "DELETE", &format!("/v1/tokens/{id}"), &json!({})).status, 204);
    assert_eq!(
        as_(&served, &admin, "DELETE", &format!("/v1/tokens/{id}"), &json!({})).code(),
        "no-such-token"
    );
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while as_(&served, secret, "GET", "/v1/whoami", &json!({})).status != 401 {
        assert!(std::time::Instant::now() < until, "it is still let in");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let log = as_(&served, &admin, "GET", "/v1/audit", &json!({})).json();
    let actions: Vec<&str> =
        log["items"].as_array().unwrap().iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["Revoke a token", "Revoke a token", "Create a token", "Create a token"]);
}

#[test]
fn a_rotated_token_and_its_successor_are_both_good_until_the_overlap_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let admin = token(folder.path(), "default", &["--scope", "admin"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let new = json!({ "subject": "ci", "scopes": ["read"], "flows": ["greet"], "expires": "1d" });
    let old = as_(&served, &admin, "POST", "/v1/tokens", &new).json();
    let rotate = |id: &Value, body: Value| {
        as_(&served, &admin, "POST", &format!("/v1/tokens/{}/rotate", id.as_str().unwrap()), &body)
    };
    let who =
        |made: &Value| as_(&served, made["token"].as_str().unwrap(), "GET", "/v1/whoami", &json!({})).json();
    let before = who(&old);
    let first = rotate(&old["id"], json!({ "overlap": "1h" })).json();
    assert_ne!(first["token"], old["token"]);
    assert_eq!((who(&first), who(&old)), (before.clone(), before.clone()));
    let second = rotate(&first["id"], json!({ "overlap": "1ms" })).json();
    assert_eq!(who(&second), before);
    // An instance believes what it knows of a token for two seconds.
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while who(&first)["code"] != "token-expired" {
        assert!(std::time::Instant::now() < until, "it is still let in");
        std::thread::sleep(Duration::from_millis(100));
    }
    // A revoked one doesn't come back, and has no successors.
    let path = format!("/v1/tokens/{}", second["id"].as_str().unwrap());
    assert_eq!(as_(&served, &admin, "DELETE", &path, &json!({})).status, 204);
    assert_eq!(rotate(&second["id"], json!({})).code(), "no-such-token");
    assert_eq!(rotate(&old["id"], json!({})).code(), "invalid");
    let log = as_(&served, &admin, "GET", "/v1/audit", &json!({})).json();
    let entries = log["items"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["asked"]["overlap"] == "1ms").expect("it is recorded");
    assert_eq!(entry["action"], "Replace a token");
}

#[test]
fn the_last_use_of_a_token_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let admin = token(folder.path(), "default", &["--scope", "admin"]);
    let unused = token(folder.path(), "default", &["--scope", "read"]);
    let listed = |served: &Served| {
        as_(served, &admin, "GET", "/v1/tokens", &json!({})).json()["items"].as_array().unwrap().clone()
    };
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while listed(&served)[0]["lastUsedAt"].is_null() {
        assert!(std::time::Instant::now() < until, "no use is shown");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(listed(&served)[1]["lastUsedAt"].is_null(), "nobody used it");
    assert_eq!(as_(&served, &unused, "GET", "/v1/whoami", &json!({})).status, 200);
    // What a server has not written yet, it writes when it stops.
    served.stop();
    let items = flowline(folder.path(), &["token", "list"])["items"].clone();
    assert!(items[0]["lastUsedAt"].is_string() && items[1]["lastUsedAt"].is_string(), "{items}");
}

#[test]
fn guessing_tokens_is_slowed_down_and_right_tokens_from_the_same_address_still_work() {
    let folder = tempfile::tempdir().unwrap();
    let good = token(folder.path(), "default", &["--scope", "read"]);
    let fresh = token(folder.path(), "default", &["--scope", "read"]);
    let served = Served::start(folder.path(), &["--auth", "tokens", "--max-wrong-tokens", "20"]);
    assert_eq!(as_(&served, &good, "GET", "/v1/whoami", &json!({})).status, 200);
    let mut answers = [0, 0];
    for guess in 0..200 {
        let reply = as_(&served, &format!("fl_{guess:064}"), "GET", "/v1/whoami", &json!({}));
        match reply.code().as_str() {
            "unauthorized" => answers[0] += 1,
            "too-many-wrong-tokens" => answers[1] += 1,
            other => panic!("{other}"),
        }
        if reply.status == 429 {
            let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&wait), "{wait}");
        }
    }
    // What comes back in the meantime is little, even if this machine is slow.
    assert!((20..60).contains(&answers[0]) && answers[1] > 100, "{answers:?}");
    for right in [&good, &fresh] {
        assert_eq!(as_(&served, right, "GET", "/v1/whoami", &json!({})).status, 200);
    }
    // The other ways in: a session made up, a wrong token to sign in with. And a request without any is no guess.
    let cookie = [("cookie", "flowline_session=made-up")];
    let page = [("sec-fetch-site", "same-origin"), ("content-type", "application/json")];
    let sign_in =
        |token: &str| served.send("POST", "/v1/session", &page, &json!({ "token": token }).to_string());
    let limited = (0..10).filter(|_| served.send("GET", "/v1/runs", &cookie, "").status == 429).count();
    assert!(limited > 5, "{limited}");
    let limited = (0..10).filter(|_| sign_in("fl_wrong").code() == "too-many-wrong-tokens").count();
    assert!(limited > 5, "{limited}");
    assert_eq!(sign_in(&good).status, 204);
    assert_eq!(served.get("/v1/runs").code(), "unauthorized");
    let metrics = as_(&served, &good, "GET", "/metrics", &json!({})).body;
    let count = |status: &str| {
        let name = "flowline_wrong_tokens_total";
        let line = metrics.lines().find(|line| line.starts_with(name) && line.contains(status)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(count("401") >= 20 && count("429") > 110, "{metrics}");
    let said: Vec<String> = served.said();
    let told = said.iter().filter(|line| line.contains("too many wrong tokens")).count();
    assert_eq!(told, 1, "{said:?}");
}

/// Whoever waits, by a request that is under way: what came until the server ended it.
fn waits(served: &Served, request: String) -> std::thread::JoinHandle<std::io::Result<String>> {
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    std::thread::spawn(move || {
        let mut told = String::new();
        stream.read_to_string(&mut told).map(|_| told)
    })
}

#[test]
fn who_follows_or_waits_for_work_is_let_go_when_the_token_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let admin = token(folder.path(), "default", &["--scope", "admin"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    assert_eq!(as_(&served, &admin, "POST", "/v1/flows", &definition()).status, 201);
    let new = json!({ "subject": "ci", "scopes": ["read", "work", "start"] });
    let made = as_(&served, &admin, "POST", "/v1/tokens", &new).json();
    let secret = made["token"].as_str().unwrap();
    let head = |line: &str| {
        format!("{line} HTTP/1.1\r\nhost: here\r\nconnection: close\r\nauthorization: Bearer {secret}\r\n")
    };
    let run = as_(&served, secret, "POST", "/v1/flows/greet/runs", &json!({})).json()["runId"].clone();
    let run = run.as_str().unwrap();
    let follows =
        ["/v1/stream".to_owned(), "/v1/flows/greet/stream".to_owned(), format!("/v1/runs/{run}/stream")]
            .map(|path| waits(&served, head(&format!("GET {path}")) + "\r\n"));
    let claim = json!({ "worker": "w1", "queues": ["depot"], "waitMs": 25_000 }).to_string();
    let length = claim.len();
    let claim = format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n{claim}");
    let works = waits(&served, head("POST /v1/work/claim") + &claim);
    // Longer than what is known of a token is believed: they are open and stay so.
    std::thread::sleep(Duration::from_secs(5));
    assert!(!works.is_finished() && follows.iter().all(|follow| !follow.is_finished()));
    let id = made["id"].as_str().unwrap();
    assert_eq!(as_(&served, &admin, "DELETE", &format!("/v1/tokens/{id}"), &json!({})).status, 204);
    for follow in follows {
        let told = follow.join().unwrap().expect("the server ends it");
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("text/event-stream"), "{told}");
    }
    let told = works.join().unwrap().expect("the server answers");
    assert!(told.starts_with("HTTP/1.1 401"), "{told}");
}

#[test]
fn no_secret_is_in_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let secret = token(folder.path(), "default", &["--scope", "admin"]);
    let needle = secret.as_bytes();
    let mut files = 0;
    for entry in std::fs::read_dir(folder.path().join(".flowline")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(needle.len()).any(|window| window == needle));
        files += 1;
    }
    assert!(files > 0);
}

#[test]
fn attack_11_an_address_that_others_can_reach_needs_a_token_which_is_made_and_shown_once() {
    let folder = tempfile::tempdir().unwrap();
    let serve = ["serve", "--listen", "0.0.0.0:0"];
    let served = Served::command(folder.path(), &serve).unwrap();
    let made = served.began.split_whitespace().find(|word| word.starts_with("fl_"));
    let made = made.unwrap_or_else(|| panic!("{}", served.began)).to_owned();
    assert_eq!(served.get("/v1/runs").code(), "unauthorized");
    assert_eq!(as_(&served, &made, "GET", "/v1/whoami", &json!({})).json()["scopes"], json!(["admin"]));
    assert!(!served.said().iter().any(|line| line.contains("fl_")));
    // It's neither shown nor made again, not even when it is gone.
    let served = Served::command(folder.path(), &serve).unwrap();
    assert!(!served.began.contains("fl_"), "{}", served.began);
    let id = as_(&served, &made, "GET", "/v1/tokens", &json!({})).json()["items"][0]["id"].clone();
    let path = format!("/v1/tokens/{}", id.as_str().unwrap());
    assert_eq!(as_(&served, &made, "DELETE", &path, &json!({})).status, 204);
    served.stop();
    let said = Served::command(folder.path(), &serve).err().expect("it is refused");
    assert!(said.contains("flowline token create") && said.contains("--auth none"), "{said}");
    let open = Served::command(folder.path(), &[&serve[..], &["--auth", "none"]].concat()).unwrap();
    assert!(open.began.contains("no API token is required"), "{}", open.began);
}

#[test]
fn attack_11_without_tokens_no_web_page_of_elsewhere_gets_in_on_any_address() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        ["serve", "--listen", "0.0.0.0:0", "--auth", "none", "--cors-origins", "https://flows.example"];
    let served = Served::command(folder.path(), &open).unwrap();
    let asks = |host: &str, origin: &str| {
        served.send("GET", "/v1/runs", &[("host", host), ("origin", origin)], "").status
    };
    assert_eq!(served.get("/v1/runs").status, 200);
    assert_eq!(asks("server.example:7400", "http://server.example:7400"), 200);
    assert_eq!(asks("server.example:7400", "https://flows.example"), 200);
    for evil in ["https://evil.example", "http://server.example:7401", "http://localhost", "null"] {
        assert_eq!(asks("server.example:7400", evil), 403, "{evil}");
    }
}

#[test]
fn the_files_for_containers_ask_for_tokens_and_run_no_commands() {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for file in ["deploy/compose.yaml", "deploy/Dockerfile", "deploy/systemd/flowline.service"] {
        let text = std::fs::read_to_string(format!("{here}/{file}")).unwrap();
        let settings: String = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        for open in ["none", "allow-commands"].map(|word| format!("\"{word}")) {
            assert!(!settings.contains(&open), "{file}: {open}");
        }
        assert!(!settings.contains("--auth") && !settings.contains("--allow-commands"), "{file}");
    }
}

#[test]
fn without_tokens_no_web_page_of_elsewhere_gets_in() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    served.register(FLOW);
    assert_eq!(served.get("/v1/runs").status, 200);
    let own = format!("http://{}", served.address);
    assert_eq!(served.send("GET", "/v1/runs", &[("origin", &own)], "").status, 200);
    assert_eq!(served.send("GET", "/v1/runs", &[("origin", "https://evil.example")], "").code(), "forbidden");
    assert_eq!(served.send("GET", "/v1/runs", &[("origin", "null")], "").code(), "forbidden");
    assert_eq!(served.send("GET", "/v1/runs", &[("host", "evil.example:7400")], "").code(), "forbidden");
    assert_eq!(served.get("/v1/runs").header("access-control-allow-origin"), None);
}

#[test]
fn web_pages_of_the_origins_in_the_settings_get_in_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let page = "https://flows.example";
    let served = Served::start(folder.path(), &["--cors-origins", "https://flows.example"]);
    let reply = served.send("GET", "/v1/runs", &[("origin", page)], "");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(page)));
    assert_eq!(reply.header("vary"), Some("origin"));
    let lost = served.send("GET", "/nowhere", &[("origin", page)], "");
    assert_eq!((lost.status, lost.header("access-control-allow-origin")), (404, Some(page)));
    let asks = |origin| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        served.send("OPTIONS", "/v1/flows/greet/runs", &headers, "")
    };
    let asked = asks(page);
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (204, Some(page)));
    assert!(asked.header("access-control-allow-methods").unwrap().contains("POST"));
    assert!(asked.header("access-control-allow-headers").unwrap().contains("authorization"));
    let refused = asks("https://evil.example");
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (405, None));
    let evil = served.send("GET", "/v1/runs", &[("origin", "https://evil.example")], "");
    assert_eq!((evil.code().as_str(), evil.header("access-control-allow-origin")), ("forbidden", None));
    let wrong = Served::command(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--cors-origins", "*"]);
    assert!(wrong.err().expect("it is refused").contains("isn't an origin"));
}

#[test]
fn without_tokens_a_tenant_is_named_by_a_header() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    served.register(FLOW);
    assert_eq!(served.get("/v1/flows").json()["items"].as_array().unwrap().len(), 1);
    let other = served.send("GET", "/v1/flows", &[("flowline-tenant", "other")], "").json();
    assert_eq!(other["items"], json!([]));
    assert_eq!(served.send("GET", "/v1/flows", &[("flowline-tenant", "../x")], "").code(), "bad-parameter");
}

#[test]
fn commands_run_only_where_they_are_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let flow = "flow: shell\nsteps:\n  say: { command: [sh, -c, 'echo {\\\"result\\\":1}'] }\n"
        .replace("\\\"", "\"");
    let served = Served::start(folder.path(), &[]);
    served.register(&flow);
    let run = served.post("/v1/flows/shell/runs?wait=500ms", &json!({})).json();
    assert_eq!(run["status"], "running");
    let explained = served.get(&format!("/v1/runs/{}/explain", run["runId"].as_str().unwrap())).json();
    assert!(
        explained["steps"][0]["reason"].as_str().unwrap().contains("no worker has claimed it"),
        "{explained}"
    );
    drop(served);
    let allowed = Served::start(folder.path(), &["--allow-commands"]);
    let ended = allowed.get(&format!("/v1/runs/{}/result?wait=30s", run["runId"].as_str().unwrap())).json();
    assert_eq!(ended["status"], "completed");
}
