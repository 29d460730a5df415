//! Every route, with every kind of token, on something that the token may see and on something that it may not.
//!
//! What is expected follows from the scope that a route declares, from what it addresses ([`ROUTES`]) and from what the token is
//! bound to. A route without an entry fails the test.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::access::token;
use crate::kit::served::{Reply, Served};

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    /// Open to anybody.
    Open,
    /// Nothing that belongs to somebody.
    Nothing,
    Run,
    Flow,
    /// A flow of the caller's tenant, which need not exist yet.
    NewFlow,
    Queue,
    /// A queue to claim jobs from.
    Claim,
    Lease,
    /// What all flows of the tenant share.
    Shared,
    /// All runs of the tenant.
    AllRuns,
    Lock,
    ApiToken,
    /// A list of rows that belong to flows, or to queues.
    FlowRows,
    QueueRows,
    /// Rows of the flow in the query, which are none if the caller may not see it.
    RowsOfFlow,
    /// A flow that a question is limited to.
    OnlyFlow,
    /// What all flows share, by way of a run.
    SharedByRun,
}

/// A route, what it addresses, its query, and its body. Names in braces are replaced.
type Entry = (&'static str, Object, &'static str, &'static str);

const SEND: &str = r#"{"name": "go"}"#;
const OUTCOME: &str = r#"{"outcomes": [{"lease": "{lease}", "complete": {}}]}"#;
const LOCK: &str = r#"{"lockToken": "00000000000000000000000000000007"}"#;

#[rustfmt::skip]
const ROUTES: &[Entry] = &[
    ("GET /docs", Object::Open, "", ""),
    ("GET /docs/style.css", Object::Open, "", ""),
    ("GET /errors", Object::Open, "", ""),
    ("GET /errors/{code}", Object::Open, "", ""),
    ("GET /livez", Object::Open, "", ""),
    ("GET /readyz", Object::Open, "", ""),
    ("GET /openapi.json", Object::Open, "", ""),
    // The reference in the path is the credential, and a session is made of a token.
    ("POST /v1/callbacks/{reference}", Object::Open, "", "{}"),
    ("POST /v1/session", Object::Open, "", r#"{"token": "x"}"#),
    ("DELETE /v1/session", Object::Open, "", ""),
    ("GET /metrics", Object::QueueRows, "", ""),
    ("GET /v1/audit", Object::Shared, "", ""),
    ("GET /v1/tokens", Object::Shared, "", ""),
    ("POST /v1/tokens", Object::Shared, "", r#"{"subject": "walk", "scopes": ["read"], "expires": "1ms"}"#),
    ("DELETE /v1/tokens/{id}", Object::ApiToken, "", ""),
    ("POST /v1/tokens/{id}/rotate", Object::ApiToken, "", "{}"),
    ("GET /v1/whoami", Object::Nothing, "", ""),
    ("GET /v1/flows", Object::FlowRows, "", ""),
    ("GET /v1/flows", Object::FlowRows, "versions=true", ""),
    ("POST /v1/flows", Object::NewFlow, "", "{definition}"),
    ("POST /v1/flows/validate", Object::Nothing, "", "{definition}"),
    ("GET /v1/flows/{flow}", Object::Flow, "", ""),
    ("POST /v1/flows/{flow}/activate", Object::Flow, "", r#"{"version": "{hash}"}"#),
    ("POST /v1/flows/{flow}/events", Object::Flow, "", r#"{"key": "{key}", "name": "go"}"#),
    ("GET /v1/flows/{flow}/graph", Object::Flow, "", ""),
    ("POST /v1/flows/{flow}/retire", Object::Flow, "", ""),
    ("GET /v1/flows/{flow}/runs", Object::Flow, "", ""),
    ("POST /v1/flows/{flow}/runs", Object::Flow, "", "{}"),
    ("GET /v1/flows/{flow}/stream", Object::Flow, "", ""),
    ("GET /v1/flows/{flow}/versions", Object::Flow, "", ""),
    ("GET /v1/locks", Object::Shared, "", ""),
    ("GET /v1/locks/{name}", Object::Lock, "", ""),
    ("POST /v1/locks/{name}", Object::Lock, "", LOCK),
    ("POST /v1/locks/{name}/extend", Object::Lock, "", LOCK),
    ("POST /v1/locks/{name}/release", Object::Lock, "", LOCK),
    ("GET /v1/workers", Object::QueueRows, "", ""),
    ("GET /v1/queues", Object::QueueRows, "", ""),
    ("GET /v1/queues/{queue}", Object::Queue, "", ""),
    ("GET /v1/queues/{queue}/dead", Object::Queue, "", ""),
    ("POST /v1/queues/{queue}/pause", Object::Queue, "", ""),
    ("POST /v1/queues/{queue}/redrive", Object::Queue, "", r#"{"dryRun": true}"#),
    ("POST /v1/queues/{queue}/resume", Object::Queue, "", ""),
    ("GET /v1/receipts", Object::FlowRows, "", ""),
    ("GET /v1/runs", Object::FlowRows, "", ""),
    ("GET /v1/runs", Object::RowsOfFlow, "flow={flow}", ""),
    ("POST /v1/runs/batch", Object::Flow, "", r#"{"runs": [{"flow": "{flow}"}]}"#),
    ("POST /v1/runs/bulk", Object::OnlyFlow, "", r#"{"action": "pause", "filter": {"flow": "{flow}"}, "dryRun": true}"#),
    ("POST /v1/runs/bulk", Object::FlowRows, "", r#"{"action": "pause", "filter": {}, "dryRun": true}"#),
    ("DELETE /v1/runs/{run}", Object::Run, "", ""),
    ("GET /v1/runs/{run}", Object::Run, "", ""),
    ("POST /v1/runs/{run}/cancel", Object::Run, "", "{}"),
    ("POST /v1/runs/{run}/complete", Object::Run, "", "{}"),
    ("GET /v1/runs/{run}/events", Object::Run, "", ""),
    ("POST /v1/runs/{run}/events", Object::Run, "", SEND),
    ("GET /v1/runs/{run}/explain", Object::Run, "", ""),
    ("POST /v1/runs/{run}/fail", Object::Run, "", r#"{"error": "no"}"#),
    ("POST /v1/runs/{run}/pause", Object::Run, "", ""),
    ("GET /v1/runs/{run}/receipts", Object::Run, "", ""),
    ("GET /v1/runs/{run}/receipts/{event}", Object::Run, "", ""),
    ("GET /v1/runs/{run}/result", Object::Run, "", ""),
    ("POST /v1/runs/{run}/resume", Object::Run, "", ""),
    ("POST /v1/runs/{run}/retry", Object::Run, "", "{}"),
    ("GET /v1/runs/{run}/state", Object::Run, "", ""),
    ("GET /v1/runs/{run}/state", Object::Run, "scope=flow", ""),
    ("GET /v1/runs/{run}/state", Object::SharedByRun, "scope=tenant", ""),
    ("GET /v1/runs/{run}/stream", Object::Run, "", ""),
    ("GET /v1/runs/{run}/verify", Object::Run, "", ""),
    ("GET /v1/state", Object::Shared, "", ""),
    ("GET /v1/state/{scope}", Object::Shared, "", ""),
    ("GET /v1/state/flow:{flow}", Object::Flow, "", ""),
    ("GET /v1/state/run:{run}", Object::Run, "", ""),
    ("GET /v1/state/{scope}/{key}", Object::Shared, "", ""),
    ("PUT /v1/state/{scope}/{key}", Object::Shared, "", r#"{"value": 1}"#),
    ("PUT /v1/state/flow:{flow}/{key}", Object::Flow, "", r#"{"value": 1}"#),
    ("GET /v1/state/flow:{flow}/{key}", Object::Flow, "", ""),
    ("DELETE /v1/state/{scope}/{key}", Object::Shared, "", ""),
    ("DELETE /v1/state/flow:{flow}/{key}", Object::Flow, "", ""),
    ("GET /v1/stats", Object::OnlyFlow, "flow={flow}", ""),
    ("GET /v1/stats", Object::FlowRows, "", ""),
    ("GET /v1/stream", Object::FlowRows, "from=start", ""),
    ("POST /v1/verify", Object::AllRuns, "", ""),
    ("POST /v1/work/append", Object::Lease, "", r#"{"lease": "{lease}", "fromLine": 0, "lines": [{"log": {"message": "x"}}]}"#),
    ("POST /v1/work/claim", Object::Claim, "", r#"{"worker": "walker", "queues": ["{queue}"], "waitMs": 0}"#),
    ("POST /v1/work/complete", Object::Lease, "", OUTCOME),
    ("POST /v1/work/emit", Object::Lease, "", r#"{"lease": "{lease}", "name": "said", "payload": 1}"#),
    ("POST /v1/work/heartbeat", Object::Lease, "", r#"{"leases": ["{lease}"]}"#),
    ("POST /v1/work/release", Object::Lease, "", r#"{"leases": ["{lease}"]}"#),
];

/// A kind of token. Those that are bound are bound to the flow `finner` or the queue `qinner`, and have every scope.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    secret: Option<String>,
    /// Whether it is let in at all.
    good: bool,
    scopes: &'static [&'static str],
    foreign: bool,
    flow: bool,
    queue: bool,
}

impl Kind {
    fn has(&self, needed: &str) -> bool {
        let bound = self.flow || self.queue;
        needed.split(" or ").any(|needed| match needed {
            "admin" => self.scopes.contains(&"admin") && !bound,
            _ => self.scopes.contains(&needed) || self.scopes.contains(&"admin"),
        })
    }

    fn sees(&self, object: Object, side: Side) -> bool {
        let (own, inside) = (!self.foreign, side == Side::In);
        match object {
            Object::Queue | Object::Lease | Object::Claim | Object::QueueRows => {
                own && (inside || !self.queue) && (self.queue || !self.flow)
            }
            _ => own && (inside || !self.flow),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    In,
    Out,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Unauthorized,
    Expired,
    Forbidden,
    Missing,
    /// As if the lease were gone.
    Stale,
    /// It gets through to what it asks for, which may refuse it for its own reasons.
    Through,
    /// It gets through, to what its own tenant has; nothing of ours is in the answer.
    Elsewhere,
    /// It gets rows: those of `finner` or `qinner`, those of `fouter` or `qouter`.
    Rows(bool, bool),
}

fn expected(kind: &Kind, needed: Option<&str>, object: Object, side: Side) -> Expected {
    let bound = kind.flow || kind.queue;
    let Some(needed) = needed else { return Expected::Through };
    match object {
        _ if kind.name == "expired" => Expected::Expired,
        _ if !kind.good => Expected::Unauthorized,
        _ if !kind.has(needed) => Expected::Forbidden,
        Object::Open | Object::Nothing => Expected::Through,
        Object::FlowRows | Object::QueueRows => {
            Expected::Rows(kind.sees(object, Side::In), kind.sees(object, Side::Out))
        }
        Object::RowsOfFlow => {
            let sees = kind.sees(object, side);
            Expected::Rows(sees && side == Side::In, sees && side == Side::Out)
        }
        Object::Shared if bound => Expected::Forbidden,
        Object::SharedByRun if bound && kind.sees(object, side) => Expected::Forbidden,
        Object::AllRuns if kind.flow => Expected::Forbidden,
        Object::Claim if !kind.foreign && (kind.flow || !kind.sees(object, side)) => Expected::Forbidden,
        Object::Shared
        | Object::AllRuns
        | Object::Claim
        | Object::Lock
        | Object::Queue
        | Object::NewFlow
        | Object::OnlyFlow
            if kind.foreign =>
        {
            Expected::Elsewhere
        }
        Object::Shared | Object::AllRuns | Object::Claim | Object::Lock => Expected::Through,
        Object::Lease if !kind.sees(object, side) => Expected::Stale,
        // The definition uses the queue of its side.
        Object::NewFlow if kind.sees(object, side) && !kind.sees(Object::Queue, side) => Expected::Forbidden,
        _ if !kind.sees(object, side) => Expected::Missing,
        _ => Expected::Through,
    }
}

fn check(expected: Expected, asked: &str, reply: &Reply) -> Result<(), String> {
    let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    // A batch says what became of each.
    let one = &body["items"][0]["error"]["status"];
    let status = one.as_u64().map_or(reply.status, |status| status as u16);
    let rows = matches!(expected, Expected::Rows(..));
    // What a request names, its answer may name too.
    let has = |marks: [&str; 2]| {
        marks.iter().any(|mark| reply.body.contains(mark) && (rows || !asked.contains(mark)))
    };
    let (inside, outside) = (has(["finner", "qinner"]), has(["fouter", "qouter"]));
    let through = matches!(status, 200..=299 | 409);
    let holds = match expected {
        Expected::Unauthorized => status == 401 && body["code"] == "unauthorized",
        Expected::Expired => status == 401 && body["code"] == "token-expired",
        Expected::Forbidden => status == 403 && body["code"] == "forbidden",
        Expected::Missing => status == 404,
        Expected::Stale => {
            body["code"] == "stale-lease" || body["leases"][0]["state"] == "lost" || status == 204
        }
        Expected::Through => through,
        Expected::Elsewhere => status == 404 || through && !inside && !outside,
        Expected::Rows(seen, other) => status == 200 && inside == seen && outside == other,
    };
    match holds {
        true => Ok(()),
        false => Err(format!("{expected:?}, not {} {}", reply.status, reply.body)),
    }
}

struct World {
    served: Served,
    admin: String,
    count: AtomicU32,
}

impl World {
    fn ask(&self, secret: Option<&str>, method: &str, path: &str, body: &str) -> Reply {
        let bearer = secret.map(|secret| format!("Bearer {secret}")).unwrap_or_default();
        let mut headers = vec![("content-type", "application/json")];
        if secret.is_some() {
            headers.push(("authorization", bearer.as_str()));
        }
        if path.contains("/stream") {
            return self.follow(&headers, path);
        }
        self.served.send(method, path, &headers, body)
    }

    fn admin(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let reply = self.ask(Some(&self.admin), method, path, &body);
        assert!(reply.status < 300, "{method} {path}: {reply:?}");
        serde_json::from_str(&reply.body).unwrap_or_default()
    }

    /// What a stream begins with: its head, and of the tenant's stream the events up to the first of `finner`, before which there
    /// are some of `fouter`.
    fn follow(&self, headers: &[(&str, &str)], path: &str) -> Reply {
        let mut stream = TcpStream::connect(self.served.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.served.address);
        stream.write_all(head.as_bytes()).unwrap();
        let (mut told, mut buffer) = (String::new(), [0; 4096]);
        loop {
            let headed = told.contains("\r\n\r\n");
            let more = path.starts_with("/v1/stream") && told.starts_with("HTTP/1.1 200");
            if headed && (!more || told.contains("finner")) {
                break;
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(length) => told += &String::from_utf8_lossy(&buffer[..length]),
            }
        }
        let (head, body) = told.split_once("\r\n\r\n").expect("an answer");
        Reply { status: head[9..12].parse().unwrap(), headers: Vec::new(), body: body.to_owned() }
    }

    fn define(&self, side: &str) -> Value {
        json!({
            "machine": format!("f{side}"),
            "events": { "go": null, "end": null },
            "states": {
                "begun": { "on": { "go": { "actions": ["act"] }, "end": { "to": "done" } } },
                "done": { "final": true },
            },
            "actions": { "act": { "worker": format!("q{side}") } },
        })
    }

    /// Everything that a request can name, new where an earlier one may have changed it.
    fn names(&self, side: &str, object: Object) -> Vec<(&'static str, String)> {
        let (flow, queue) = (format!("f{side}"), format!("q{side}"));
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let hash = self.admin("POST", "/v1/flows", &self.define(side))["hash"].as_str().unwrap().to_owned();
        self.admin("POST", &format!("/v1/queues/{queue}/resume"), &json!({}));
        let key = format!("key-{count}");
        let sent = json!({ "key": key, "name": "go", "eventId": "e1" });
        let sent = self.admin("POST", &format!("/v1/flows/{flow}/events"), &sent);
        let lease = match object {
            Object::Lease => {
                let claim = json!({ "worker": format!("w-{queue}"), "queues": [queue], "waitMs": 20_000 });
                let jobs = self.admin("POST", "/v1/work/claim", &claim);
                let lease = jobs["jobs"][0]["lease"].as_str().unwrap_or_else(|| panic!("{jobs}")).to_owned();
                self.admin("POST", "/v1/work/heartbeat", &json!({ "leases": [lease] }));
                lease
            }
            _ => String::new(),
        };
        let id = json!({ "subject": "walk", "scopes": ["read"] });
        let id = self.admin("POST", "/v1/tokens", &id)["id"].as_str().unwrap().to_owned();
        vec![
            ("{run}", sent["runId"].as_str().unwrap().to_owned()),
            ("{definition}", self.define(side).to_string()),
            ("{flow}", flow),
            ("{queue}", queue),
            ("{lease}", lease),
            ("{hash}", hash),
            ("{event}", "e1".to_owned()),
            ("{id}", id),
            ("{name}", "nightly".to_owned()),
            ("{scope}", "shelf".to_owned()),
            ("{key}", key),
            ("{code}", "forbidden".to_owned()),
            ("{reference}", "none".to_owned()),
        ]
    }
}

fn kinds(folder: &std::path::Path) -> Vec<Kind> {
    const ALL: &[&str] = &["read", "start", "work", "operate", "on_behalf", "admin"];
    let kind = |name, secret, good, scopes, foreign, flow, queue| Kind {
        name,
        secret,
        good,
        scopes,
        foreign,
        flow,
        queue,
    };
    let all: Vec<&str> = ALL.iter().flat_map(|scope| ["--scope", scope]).collect();
    let made = |tenant, more: &[&str]| Some(token(folder, tenant, &[&all[..], more].concat()));
    let mut kinds = vec![
        kind("none", None, false, &[], false, false, false),
        kind("unknown", Some(format!("fl_{}", "0".repeat(64))), false, &[], false, false, false),
        kind("another tenant's", made("theirs", &[]), true, ALL, true, false, false),
        kind("bound to a flow", made("default", &["--bind-flow", "finner"]), true, ALL, false, true, false),
        kind("bound to a queue", made("default", &["--bind-queue", "qinner"]), true, ALL, false, false, true),
        kind(
            "bound to both",
            made("default", &["--bind-flow", "finner", "--bind-queue", "qinner"]),
            true,
            ALL,
            false,
            true,
            true,
        ),
    ];
    for scope in ALL.chunks(1) {
        let secret = Some(token(folder, "default", &["--scope", scope[0]]));
        kinds.push(kind(scope[0], secret, true, scope, false, false, false));
    }
    kinds
}

#[test]
fn attack_7_no_route_shows_or_changes_what_a_token_may_not_see() {
    let folder = tempfile::tempdir().unwrap();
    let admin = token(folder.path(), "default", &["--scope", "admin"]);
    let both = ["--scope", "admin", "--bind-flow", "finner", "--bind-queue", "qdead"];
    let both = token(folder.path(), "default", &both);
    let mut kinds = kinds(folder.path());
    let world = World {
        served: Served::start(folder.path(), &["--auth", "tokens", "--max-wrong-tokens", "100000"]),
        admin,
        count: AtomicU32::new(0),
    };
    for (name, expires) in [("expired", json!("1ms")), ("revoked", Value::Null)] {
        let mut new = json!({ "subject": "gone", "scopes": ["admin"] });
        if name == "expired" {
            new["expires"] = expires;
        }
        let made = world.admin("POST", "/v1/tokens", &new);
        if name == "revoked" {
            world.admin("DELETE", &format!("/v1/tokens/{}", made["id"].as_str().unwrap()), &json!({}));
        }
        let secret = Some(made["token"].as_str().unwrap().to_owned());
        kinds.push(Kind {
            name,
            secret,
            good: false,
            scopes: &["admin"],
            foreign: false,
            flow: false,
            queue: false,
        });
    }
    // Something of each kind, on either side, so that lists have it.
    world.admin("POST", "/v1/locks/nightly", &json!({ "lockToken": "0".repeat(31) + "7", "ttlMs": 600_000 }));
    let known = ["inner", "outer"].map(|side| {
        world.names(side, Object::Lease);
        let names = world.names(side, Object::Lease);
        let of = |name| &names.iter().find(|(known, _)| *known == name).unwrap().1;
        for scope in ["shelf", &format!("flow:{}", of("{flow}"))] {
            world.admin("PUT", &format!("/v1/state/{scope}/{}", of("{key}")), &json!({ "value": 1 }));
        }
        names
    });
    let document = world.served.get("/openapi.json").json();
    let mut unseen = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        unseen.extend(
            methods.as_object().unwrap().keys().map(|verb| format!("{} {path}", verb.to_uppercase())),
        );
    }
    let (mut walked, mut wrong) = (0, Vec::new());
    for (route, object, query, body) in ROUTES {
        let (method, path) = route.split_once(' ').unwrap();
        let general = path.replace("flow:{flow}", "{scope}").replace("run:{run}", "{scope}");
        unseen.remove(&format!("{method} {general}"));
        let operation = &document["paths"][&general][method.to_lowercase()];
        assert!(operation.is_object(), "{route} isn't a route");
        let needed = operation["x-scope"].as_str();
        assert_eq!(needed.is_none(), *object == Object::Open, "{route} is open or isn't");
        for kind in &kinds {
            for (side, name) in [(Side::In, "inner"), (Side::Out, "outer")] {
                let expected = expected(kind, needed, *object, side);
                // What one request changes is nothing to the next.
                let fresh = expected == Expected::Stale || expected == Expected::Through && method != "GET";
                let mut names = match fresh {
                    true => world.names(name, *object),
                    false => known[side as usize].clone(),
                };
                if kind.foreign && *object == Object::NewFlow {
                    names.retain(|(name, _)| *name != "{definition}");
                    names.push(("{definition}", world.define("theirs").to_string()));
                }
                let fill = |text: &str| {
                    names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
                };
                let query = if query.is_empty() { String::new() } else { format!("?{}", fill(query)) };
                let address = format!("{}{query}", fill(path));
                let reply = world.ask(kind.secret.as_deref(), method, &address, &fill(body));
                walked += 1;
                if *object == Object::Open {
                    continue;
                }
                if let Err(said) = check(expected, &format!("{address} {}", fill(body)), &reply) {
                    wrong.push(format!("{} on {name}: {method} {address}: {said}", kind.name));
                }
                if expected == Expected::Stale {
                    let lease = &names.iter().find(|(name, _)| *name == "{lease}").unwrap().1;
                    let beat = world.admin("POST", "/v1/work/heartbeat", &json!({ "leases": [lease] }));
                    assert_eq!(beat["leases"][0]["state"], "held", "{} {method} {address}", kind.name);
                }
            }
        }
    }
    assert!(unseen.is_empty(), "routes without an entry: {unseen:?}");
    assert!(wrong.is_empty(), "{} of {walked}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(walked > 2_000, "{walked}");
    // A queue holds jobs of any flow, and what died in it is of its flow all the same.
    let flow = json!({ "flow": "fouter-dead", "steps": { "fall": { "worker": "qdead" } } });
    world.admin("POST", "/v1/flows", &flow);
    world.admin("POST", "/v1/flows/fouter-dead/runs", &json!({}));
    let jobs = json!({ "worker": "w", "queues": ["qdead"], "waitMs": 20_000 });
    let jobs = world.admin("POST", "/v1/work/claim", &jobs);
    let fail = json!({ "lease": jobs["jobs"][0]["lease"], "fail": { "error": "no", "retry": "never" } });
    world.admin("POST", "/v1/work/complete", &json!({ "outcomes": [fail] }));
    let dead = |secret: &str| world.ask(Some(secret), "GET", "/v1/queues/qdead/dead", "");
    assert!(dead(&world.admin).body.contains("fouter-dead"));
    assert_eq!(dead(&both).json()["items"], json!([]));
}
