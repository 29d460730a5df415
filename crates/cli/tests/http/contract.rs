//! Every route as its own description has it: answers fit their schemas.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kit::served::{Reply, Served};

const FLOW: &str = r#"
flow: order
input: { type: object, required: [total], properties: { total: { type: integer } } }
accepts: { approval.given: { type: object } }
steps:
  check: { command: [sh, -c, 'echo "{\"result\": {\"ok\": true}}"'], returns: order.checked }
  ship: { subscribes: [order.checked, approval.given], worker: depot }
"#;
const DOOMED: &str = "flow: doomed\nsteps:\n  fall: { command: [sh, -c, 'exit 4'], queue: cliff }\n";

/// Served elsewhere in these tests: streams and the protocol of workers have tests of their own.
pub const ELSEWHERE: &[&str] = &[
    "/v1/stream",
    "/v1/runs/{run}/stream",
    "/v1/flows/{flow}/stream",
    "/metrics",
    "/v1/callbacks/{reference}",
];

pub struct Contract {
    pub served: Served,
    _folder: tempfile::TempDir,
    document: Value,
    /// What was asked for with success.
    seen: RefCell<BTreeSet<String>>,
}

impl Contract {
    pub fn new() -> Contract {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::start(folder.path(), &["--allow-commands"]);
        served.register(FLOW);
        served.register(DOOMED);
        let document = served.get("/openapi.json").json();
        Contract { served, _folder: folder, document, seen: RefCell::default() }
    }

    /// The template of a path.
    fn template(&self, method: &str, path: &str) -> String {
        let path = path.split('?').next().unwrap();
        let fits = |template: &str| {
            let (a, b): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a == b || a.starts_with('{'))
        };
        let paths = self.document["paths"].as_object().unwrap();
        let has = |template: &&String| !paths[*template][&method.to_lowercase()].is_null();
        let exact = paths.keys().filter(has).find(|template| *template == path);
        exact
            .or_else(|| paths.keys().filter(has).find(|template| fits(template)))
            .cloned()
            .unwrap_or_else(|| panic!("no route {method} {path}"))
    }

    /// The answer, held against the schema that the document has for its status.
    pub fn check(&self, method: &str, path: &str, reply: Reply) -> Reply {
        let template = self.template(method, path);
        let operation = &self.document["paths"][&template][method.to_lowercase()];
        let response = &operation["responses"][reply.status.to_string()];
        assert!(
            !response.is_null(),
            "{method} {path} answers with an undeclared {}: {}",
            reply.status,
            reply.body
        );
        let kind = reply.header("content-type").unwrap_or_default().split(';').next().unwrap().to_owned();
        let schema = &response["content"][&kind]["schema"];
        if schema.is_object() {
            let schema = json!({ "$ref": schema["$ref"], "components": self.document["components"] });
            let validator = jsonschema::validator_for(&schema).unwrap();
            let value = reply.json();
            let wrong: Vec<String> = validator
                .iter_errors(&value)
                .map(|error| format!("{} at {}", error, error.instance_path()))
                .collect();
            assert!(wrong.is_empty(), "{method} {path}: {wrong:?} in {value}");
        }
        if reply.status < 400 {
            self.seen.borrow_mut().insert(format!("{method} {template}"));
        }
        reply
    }

    pub fn get(&self, path: &str) -> Reply {
        self.check("GET", path, self.served.get(path))
    }

    pub fn post(&self, path: &str, body: Value) -> Reply {
        self.check("POST", path, self.served.post(path, &body))
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.check(method, path, self.served.send(method, path, headers, body))
    }

    pub fn start(&self, flow: &str, body: Value) -> String {
        self.post(&format!("/v1/flows/{flow}/runs"), body).json()["runId"].as_str().unwrap().to_owned()
    }

    /// Each operation: method, template, and its description.
    pub fn operations(&self) -> impl Iterator<Item = (String, &str, &Value)> {
        let paths = self.document["paths"].as_object().unwrap();
        paths.iter().flat_map(|(path, methods)| {
            methods
                .as_object()
                .unwrap()
                .iter()
                .map(move |(method, of)| (method.to_uppercase(), path.as_str(), of))
        })
    }
}

#[test]
fn every_route_answers_as_it_declares() {
    let api = Contract::new();
    for path in
        ["/livez", "/readyz", "/openapi.json", "/docs", "/docs/style.css", "/errors", "/errors/invalid"]
    {
        assert!(api.get(path).status < 400, "{path}");
    }
    definitions(&api);
    runs(&api);
    steering(&api);
    deleting(&api);
    queues(&api);
    crate::http::state::routes(&api);
    work(&api);
    administration(&api);
    crate::http::machines::routes(&api);
    let missed: Vec<String> = api
        .operations()
        .filter(|(_, path, _)| !ELSEWHERE.contains(path))
        .map(|(method, path, _)| format!("{method} {path}"))
        .filter(|operation| !api.seen.borrow().contains(operation))
        .collect();
    assert_eq!(missed, Vec::<String>::new());
}

fn definitions(api: &Contract) {
    let toml = "flow = \"tiny\"\n[steps.a]\nworker = \"depot\"\n";
    let made = api.send("POST", "/v1/flows", &[("content-type", "application/toml")], toml);
    assert_eq!((made.status, made.json()["created"].clone()), (201, json!(true)));
    let again = api.send("POST", "/v1/flows", &[("content-type", "application/toml")], toml);
    assert_eq!((again.status, again.json()["created"].clone()), (200, json!(false)));
    let hash = made.json()["hash"].as_str().unwrap().to_owned();
    let wrong = json!({ "flow": "tiny", "steps": { "a": { "worker": "depot", "subscribes": ["nothing"] } } });
    assert_eq!(api.post("/v1/flows", wrong.clone()).code(), "definition");
    assert_eq!(api.post("/v1/flows/validate", wrong).json()["valid"], false);
    assert_eq!(
        api.post("/v1/flows/validate", json!({ "flow": "x", "steps": { "a": { "worker": "q" } } })).json()["valid"],
        true
    );
    assert_eq!(api.get("/v1/flows").json()["items"].as_array().unwrap().len(), 3);
    assert_eq!(api.get("/v1/flows/tiny").json()["definition"]["flow"], "tiny");
    assert_eq!(api.get(&format!("/v1/flows/tiny?version={hash}")).status, 200);
    assert_eq!(api.get("/v1/flows/tiny?version=none").code(), "no-such-flow");
    assert_eq!(api.get("/v1/flows/tiny/versions").json()["items"].as_array().unwrap().len(), 1);
    assert_eq!(api.post("/v1/flows/tiny/retire", json!({})).json()["retired"], true);
    assert_eq!(api.post("/v1/flows/tiny/runs", json!({})).code(), "flow-retired");
    assert_eq!(api.get("/v1/flows/tiny").json()["retired"], true);
    let back = api.post("/v1/flows/tiny/activate", json!({ "version": hash }));
    assert_eq!((back.status, back.json()["hash"].as_str()), (200, Some(hash.as_str())));
    assert_eq!(api.post("/v1/flows/tiny/activate", json!({ "version": "none" })).code(), "no-such-flow");
    assert_eq!(api.get("/v1/flows/order/graph").json()["flow"], "order");
    for format in ["mermaid", "dot"] {
        assert!(api.get(&format!("/v1/flows/order/graph?format={format}")).body.contains("ship"));
    }
}

fn runs(api: &Contract) {
    let made = api.send(
        "POST",
        "/v1/flows/order/runs",
        &[("content-type", "application/json"), ("idempotency-key", "k1")],
        r#"{"input":{"total":1},"labels":{"team":"a"}}"#,
    );
    assert_eq!(made.status, 201);
    let run = made.json()["runId"].as_str().unwrap().to_owned();
    assert_eq!(made.header("location"), Some(format!("/v1/runs/{run}").as_str()));
    let again = api.post("/v1/flows/order/runs", json!({ "input": { "total": 1 }, "idempotencyKey": "k1" }));
    assert_eq!((again.status, again.json()["runId"].as_str().unwrap().to_owned()), (200, run.clone()));
    assert_eq!(
        api.post("/v1/flows/order/runs", json!({ "input": { "total": 2 }, "idempotencyKey": "k1" })).code(),
        "key-conflict"
    );
    let misfit = api.post("/v1/flows/order/runs", json!({ "input": { "total": "x" } }));
    assert_eq!((misfit.status, misfit.code().as_str()), (400, "schema"));
    assert_eq!(misfit.json()["errors"][0]["pointer"], "/input/total");
    for (body, pointer) in [
        (json!({ "delay": "soon" }), "/delay"),
        (json!({ "priority": "most" }), "/priority"),
        (json!({ "labels": { "a": 1 } }), "/labels/a"),
        (json!({ "flow": "other" }), "/flow"),
    ] {
        let reply = api.post("/v1/flows/order/runs", body);
        assert_eq!(
            (reply.code().as_str(), reply.json()["errors"][0]["pointer"].as_str()),
            ("bad-body", Some(pointer))
        );
    }
    let batch = api.post(
        "/v1/runs/batch",
        json!({ "runs": [
        { "flow": "order", "input": { "total": 3 } }, { "flow": "nothing" }, { "flow": "order", "input": {} },
    ] }),
    );
    let items = batch.json()["items"].clone();
    assert!(items[0]["runId"].is_string());
    assert_eq!(
        (&items[1]["error"]["code"], &items[2]["error"]["code"]),
        (&json!("no-such-flow"), &json!("schema"))
    );
    let nameless = json!({ "runs": [{ "flow": "order", "input": { "total": 1 } }, { "flow": "nothing", "idempotencyKey": "" }] });
    let nameless = api.post("/v1/runs/batch", nameless);
    assert_eq!(
        (nameless.code().as_str(), nameless.json()["errors"][0]["pointer"].as_str()),
        ("invalid", Some("/runs/1/idempotencyKey"))
    );
    let many: Vec<Value> = (0..1_001).map(|_| json!({ "flow": "order" })).collect();
    assert_eq!(api.post("/v1/runs/batch", json!({ "runs": many })).code(), "bad-body");
    assert_eq!(
        api.post("/v1/runs/batch", json!({ "runs": many[..1_000] })).json()["items"]
            .as_array()
            .unwrap()
            .len(),
        1_000
    );
    for flag in ["", "yes", "1"] {
        assert_eq!(api.get(&format!("/v1/flows?versions={flag}")).code(), "bad-parameter", "{flag:?}");
    }
    let of_flow = api.get("/v1/flows/order/runs?limit=1").json();
    assert_eq!((&of_flow["items"][0]["flowName"], &of_flow["hasMore"]), (&json!("order"), &json!(true)));
    assert_eq!(api.get("/v1/flows/doomed/runs?status=paused").json()["items"], json!([]));
    assert_eq!(api.get("/v1/flows/unheard-of/runs").code(), "no-such-flow");
    let page = api.get("/v1/runs?flow=order&limit=1").json();
    assert_eq!((page["total"].clone(), page["hasMore"].clone()), (json!(2), json!(true)));
    let next = page["next"].as_str().unwrap();
    assert_eq!(api.get(&format!("/v1/runs?flow=order&limit=1&cursor={next}")).json()["hasMore"], false);
    assert_eq!(
        api.get("/v1/runs?label=team%3Da&since=1h&total=false").json()["items"].as_array().unwrap().len(),
        1
    );
    assert_eq!(api.get("/v1/runs?cursor=made-up").code(), "invalid");
    assert_eq!(api.get(&format!("/v1/runs/{run}")).json()["stepCount"], 2);
    assert_eq!(api.get(&format!("/v1/runs/{run}/result")).status, 202);
    assert_eq!(api.get(&format!("/v1/runs/{run}/state")).json()["values"], json!({}));
    assert!(api.get(&format!("/v1/runs/{run}/explain")).json()["summary"].is_string());
    assert_eq!(api.get(&format!("/v1/runs/{run}/verify")).json()["violations"], json!([]));
    let events = api.get(&format!("/v1/runs/{run}/events?type=flow.start,step.started&limit=1")).json();
    assert_eq!(events["items"][0]["type"], "flow.start");
    assert_eq!(api.get(&format!("/v1/runs/{run}/events?after=1&step=check&attempt=1")).status, 200);
    assert_eq!(api.get("/v1/stats?bucket=0s").code(), "bad-parameter");
}

fn steering(api: &Contract) {
    let run = api.start("order", json!({ "input": { "total": 1 } }));
    let path = |act: &str| format!("/v1/runs/{run}/{act}");
    assert_eq!(api.post(&path("pause"), json!({})).json()["status"], "paused");
    assert_eq!(api.post(&path("pause"), json!({})).json()["changed"], false);
    assert!(api.post(&path("resume"), json!({})).json()["changed"].as_bool().unwrap());
    assert_eq!(api.post(&path("retry"), json!({})).code(), "run-not-ended");
    assert_eq!(api.post(&path("events"), json!({ "name": "nothing" })).code(), "no-such-event");
    assert_eq!(api.post(&path("events"), json!({ "name": "approval.given", "payload": 1 })).code(), "schema");
    let gone = api.start("order", json!({ "input": { "total": 1 } }));
    assert_eq!(api.send("POST", &format!("/v1/runs/{gone}/cancel"), &[], "").json()["status"], "cancelled");
    let late =
        api.post(&format!("/v1/runs/{gone}/events"), json!({ "name": "approval.given", "payload": {} }));
    assert_eq!(late.code(), "run-ended");
    let sent = api.post(&path("events"), json!({ "name": "approval.given", "payload": {}, "eventId": "e1" }));
    assert_eq!(sent.json()["changed"], true);
    let again =
        api.post(&path("events"), json!({ "name": "approval.given", "payload": {}, "eventId": "e1" }));
    assert_eq!(again.json()["changed"], false);
    assert_eq!(api.send("POST", &path("cancel"), &[], "").json()["status"], "cancelled");
    assert_eq!(api.post(&path("complete"), json!({})).code(), "run-ended");
    assert_eq!(api.get(&path("result?wait=1s")).json()["status"], "cancelled");
    assert_eq!(api.post(&path("retry"), json!({ "from": "nowhere" })).code(), "no-such-step");
    let retried = api.post(&path("retry"), json!({ "from": "check" }));
    assert_eq!((retried.status, retried.json()["retryOf"].clone()), (201, json!(run)));
    let keyed = |body: &str| {
        let headers = [("content-type", "application/json"), ("idempotency-key", "again")];
        api.send("POST", &path("retry"), &headers, body)
    };
    let (first, second, other) = (keyed("{}"), keyed("{}"), keyed(r#"{"from": "check"}"#));
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(first.json()["runId"], second.json()["runId"]);
    assert_eq!(other.code(), "key-conflict", "{}", other.body);
    let done = api.start("order", json!({ "input": { "total": 1 } }));
    // More digits than a double holds: payloads pass through as they are.
    let result = r#"{"result":{"big":12345678901234567890123}}"#;
    let reply = api.send(
        "POST",
        &format!("/v1/runs/{done}/complete"),
        &[("content-type", "application/json")],
        result,
    );
    assert_eq!(reply.json()["status"], "completed");
    assert!(api.get(&format!("/v1/runs/{done}/result")).body.contains("12345678901234567890123"));
    assert!(api.get(&format!("/v1/runs/{done}")).body.contains("12345678901234567890123"));
    let failed = api.start("order", json!({ "input": { "total": 1 } }));
    assert_eq!(
        api.post(&format!("/v1/runs/{failed}/fail"), json!({})).json()["errors"][0]["detail"],
        "missing field `error`"
    );
    assert_eq!(
        api.post(&format!("/v1/runs/{failed}/fail"), json!({ "error": "no" })).json()["status"],
        "failed"
    );
    let dry = api.post(
        "/v1/runs/bulk",
        json!({ "action": "cancel", "filter": { "flow": "order", "status": "waiting" }, "dryRun": true }),
    );
    assert!(!dry.json()["items"].as_array().unwrap().is_empty());
    let bulk = api.post(
        "/v1/runs/bulk",
        json!({ "action": "retry", "filter": { "flow": "order", "status": "failed" }, "limit": 5 }),
    );
    assert!(bulk.json()["items"][0]["newRunId"].is_string(), "{}", bulk.body);
    let wrong = api.post("/v1/runs/bulk", json!({ "action": "cancel", "filter": { "status": "gone" } }));
    assert_eq!(wrong.json()["errors"][0]["pointer"], "/filter/status");
}

/// A run that failed at its only step.
fn totals_honour_the_filters(api: &Contract, run: &str) {
    let read = |query: &str| api.get(&format!("/v1/runs/{run}/events?{query}")).json();
    let all = read("limit=100");
    let of_step = all["items"].as_array().unwrap().iter().filter(|event| event["stepName"] == "fall").count();
    assert!(of_step > 1 && all["total"] == all["items"].as_array().unwrap().len(), "{all}");
    for (query, total) in [
        ("attempt=2", 0),
        ("attempt=1", of_step),
        ("attempt=1&limit=1", of_step),
        ("step=fall&attempt=1&after=2", of_step),
        ("type=flow.start&after=1", 1),
    ] {
        assert_eq!(read(query)["total"], total, "{query}");
    }
}

fn deleting(api: &Contract) {
    let run = api.start("doomed", json!({}));
    assert_eq!(api.get(&format!("/v1/runs/{run}/result?wait=30s")).json()["status"], "failed");
    let waiting = api.start("order", json!({ "input": { "total": 1 } }));
    let delete = |run: &str| api.send("DELETE", &format!("/v1/runs/{run}"), &[], "");
    assert_eq!(delete(&waiting).code(), "run-not-ended");
    assert_eq!(delete(&run).status, 204);
    assert_eq!(delete(&run).code(), "no-such-run");
    let audit = api.get("/v1/audit").json()["items"].clone();
    let line = |line: &Value| line["path"] == format!("/v1/runs/{run}") && line["status"] == 204;
    assert!(audit.as_array().unwrap().iter().any(line), "{audit}");

    let more = api.start("doomed", json!({ "labels": { "old": "yes" } }));
    assert_eq!(api.get(&format!("/v1/runs/{more}/result?wait=30s")).json()["status"], "failed");
    api.start("order", json!({ "input": { "total": 1 }, "labels": { "old": "yes" } }));
    let bulk = |dry: bool| {
        api.post(
            "/v1/runs/bulk",
            json!({ "action": "delete", "filter": { "label": "old=yes" }, "dryRun": dry }),
        )
        .json()
    };
    for dry in [true, false] {
        let done = bulk(dry);
        assert_eq!(
            (done["items"].as_array().unwrap().len(), &done["items"][0]["runId"]),
            (1, &json!(more)),
            "{done}"
        );
        assert_eq!(done["total"], 1, "the run that has not ended does not count: {done}");
    }
    let live = json!({ "action": "delete", "filter": { "status": "running" }, "dryRun": true });
    let refused = api.post("/v1/runs/bulk", live);
    assert!(refused.status == 400 && refused.body.contains("only runs that have ended"), "{}", refused.body);
    assert_eq!(api.get(&format!("/v1/runs/{more}")).code(), "no-such-run");
    assert_eq!(bulk(false)["items"], json!([]));
}

fn queues(api: &Contract) {
    let dead = api.post("/v1/flows/doomed/runs?wait=30s", json!({})).json();
    assert_eq!(dead["status"], "failed");
    totals_honour_the_filters(api, dead["runId"].as_str().unwrap());
    api.start("tiny", json!({}));
    let depths = api.get("/v1/queues").json();
    assert!(depths["items"].as_array().unwrap().iter().any(|row| row["queue"] == "depot"), "{depths}");
    assert_eq!(api.get("/v1/queues/depot").json()["items"][0]["need"], "remote");
    assert_eq!(api.get("/v1/queues/nothing").code(), "no-such-queue");
    assert_eq!(api.send("POST", "/v1/queues/depot/pause", &[], "").json()["paused"], true);
    assert_eq!(api.send("POST", "/v1/queues/depot/resume", &[], "").json()["paused"], false);
    let letters = api.get("/v1/queues/cliff/dead").json();
    assert_eq!(letters["items"][0]["runId"], dead["runId"]);
    assert_eq!(api.get("/v1/queues/depot/dead").json()["items"], json!([]));
    assert_eq!(
        api.post("/v1/queues/cliff/redrive", json!({ "dryRun": true })).json()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let driven = api.post("/v1/queues/cliff/redrive", json!({})).json();
    let new = driven["items"][0]["newRunId"].as_str().unwrap();
    assert_eq!(api.get(&format!("/v1/runs/{new}/result?wait=30s")).json()["status"], "failed");
    let left = api.get("/v1/queues/cliff/dead").json();
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
    assert_eq!(left["items"][0]["runId"], new, "the first one is driven again, the second is dead now");
}

fn work(api: &Contract) {
    let flow = json!({ "flow": "parcel", "steps": {
        "pack": { "worker": "docks", "emits": ["labelled"], "timeout": "1h" },
        "mark": { "worker": "office", "subscribes": ["labelled"] },
    } });
    assert_eq!(api.post("/v1/flows", flow).status, 201);
    let run = api.start("parcel", json!({}));
    let ask = |queue: &str| json!({ "worker": "w1", "queues": [queue], "waitMs": 20_000, "withState": true });
    let claimed = api.post("/v1/work/claim", ask("docks")).json();
    let job = &claimed["jobs"][0];
    assert_eq!((&job["runId"], &job["timeoutMs"]), (&json!(run), &json!(3_600_000)), "{claimed}");
    let lease = &job["lease"];
    assert_eq!(api.post("/v1/work/claim", json!({ "worker": "w1", "queues": [] })).code(), "invalid");
    let workers = api.get("/v1/workers").json();
    assert_eq!(
        (&workers["items"][0]["worker"], &workers["hasMore"]),
        (&json!("w1"), &json!(false)),
        "{workers}"
    );
    let beat = api.post("/v1/work/heartbeat", json!({ "leases": [lease, "forged"] })).json();
    assert_eq!((&beat["leases"][0]["state"], &beat["leases"][1]["state"]), (&json!("held"), &json!("lost")));
    let many: Vec<&str> = vec!["forged"; 1_001];
    assert_eq!(api.post("/v1/work/heartbeat", json!({ "leases": many })).code(), "bad-body");
    let lines = json!([{ "log": { "message": "packing" } }, { "state": { "set": "box", "value": 7 } }]);
    assert_eq!(api.post("/v1/work/append", json!({ "lease": lease, "lines": lines })).json()["lines"], 2);
    assert_eq!(
        api.post("/v1/work/append", json!({ "lease": "forged", "lines": lines })).code(),
        "stale-lease"
    );
    let emit = |name: &str| json!({ "lease": lease, "name": name });
    assert_eq!(api.post("/v1/work/emit", emit("labelled")).json()["applied"], true);
    assert_eq!(api.post("/v1/work/emit", emit("unheard.of")).code(), "refused");
    let mark = &api.post("/v1/work/claim", ask("office")).json()["jobs"][0];
    assert_eq!(mark["state"], json!({ "box": 7 }));
    assert_eq!(api.post("/v1/work/release", json!({ "leases": [mark["lease"]] })).status, 204);
    let outcomes = json!([{ "lease": lease, "complete": { "result": 1 } }, { "lease": "forged", "fail": { "error": "gone" } }]);
    let answer = api.post("/v1/work/complete", json!({ "outcomes": outcomes, "claim": ask("docks") })).json();
    assert_eq!(answer["results"][0]["applied"], true, "{answer}");
    let again = json!({ "outcomes": [{ "lease": lease, "complete": { "result": 1 } }] });
    assert_eq!(api.post("/v1/work/complete", again).json()["results"][0]["applied"], false);
    let forged = json!({ "outcomes": [{ "lease": "forged", "complete": {} }] });
    assert_eq!(api.post("/v1/work/complete", forged).code(), "stale-lease");
    let both = json!({ "outcomes": [{ "lease": lease, "complete": {}, "fail": { "error": "x" } }] });
    assert_eq!(api.post("/v1/work/complete", both).json()["errors"][0]["pointer"], "/outcomes/0");
    assert_eq!(api.send("POST", &format!("/v1/runs/{run}/cancel"), &[], "").status, 200);
}

fn administration(api: &Contract) {
    assert_eq!(api.get("/v1/stats?steps=true&bucket=10m").json()["total"]["byStatus"]["failed"], 3);
    let year = api.get("/v1/stats?since=365d&bucket=1m").json();
    assert!(year["buckets"].as_array().unwrap().len() < 10, "only those that hold a run: {year}");
    assert_eq!(api.get("/v1/stats?bucket=0s").code(), "bad-parameter");
    let report = api.send("POST", "/v1/verify", &[], "").json();
    assert_eq!(report["violations"], json!([]));
    let made = api
        .post(
            "/v1/tokens",
            json!({ "subject": "ci", "scopes": ["read"], "roles": ["manager"], "expires": "1h" }),
        )
        .json();
    let useless = json!({ "subject": "ci", "scopes": ["read"], "expires": "0ms" });
    assert_eq!(api.post("/v1/tokens", useless).json()["errors"][0]["pointer"], "/expires");
    assert_eq!(
        api.post("/v1/tokens", json!({ "subject": "ci", "scopes": [] })).json()["errors"][0]["pointer"],
        "/scopes"
    );
    assert_eq!(api.get("/v1/tokens").json()["items"][0]["id"], made["id"]);
    let rotated = format!("/v1/tokens/{}/rotate", made["id"].as_str().unwrap());
    assert_eq!(api.post(&rotated, json!({ "overlap": "soon" })).json()["errors"][0]["pointer"], "/overlap");
    assert_eq!(api.post(&rotated, json!({ "expires": "0s" })).json()["errors"][0]["pointer"], "/expires");
    let replacing = api.send("POST", &rotated, &[], "").json();
    assert_eq!((&replacing["subject"], &replacing["roles"]), (&made["subject"], &made["roles"]));
    assert_eq!(api.get("/v1/tokens").json()["items"][0]["replacedBy"], replacing["id"]);
    assert_eq!(api.post(&rotated, json!({})).code(), "invalid", "it was replaced");
    let revoked = api.send("DELETE", &format!("/v1/tokens/{}", made["id"].as_str().unwrap()), &[], "");
    assert_eq!(revoked.status, 204);
    assert!(!api.get("/v1/audit?limit=3").json()["items"].as_array().unwrap().is_empty());
    assert_eq!(api.get("/v1/whoami").json()["scopes"], json!(["admin"]));
    let own = [("content-type", "application/json"), ("sec-fetch-site", "same-origin")];
    let signed_in = api.send("POST", "/v1/session", &own, r#"{"token": "fl_any"}"#);
    assert!(signed_in.header("set-cookie").unwrap().contains("HttpOnly; SameSite=Strict"));
    assert_eq!(api.send("DELETE", "/v1/session", &own[1..], "").status, 204);
    assert_eq!(api.post("/v1/session", json!({ "token": "fl_any" })).code(), "forbidden", "not from a page");
    locks(api);
}

fn locks(api: &Contract) {
    let taken = api.post("/v1/locks/nightly", json!({ "owner": "me", "ttlMs": 60_000 })).json();
    assert_eq!((&taken["name"], &taken["owner"]), (&json!("nightly"), &json!("me")));
    let left = taken["remainingMs"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&left), "{left}");
    let held = api.post("/v1/locks/nightly", json!({}));
    assert_eq!((held.status, held.code().as_str()), (409, "lock-held"));
    let held = held.json();
    assert_eq!((&held["owner"], &held["until"]), (&json!("me"), &taken["until"]));
    let token = &taken["lockToken"];
    let again = api.post("/v1/locks/nightly", json!({ "owner": "me", "lockToken": token })).json();
    assert_eq!(again["fence"], taken["fence"], "a repeated request is no new grant");
    let extended =
        api.post("/v1/locks/nightly/extend", json!({ "lockToken": token, "ttlMs": 90_000 })).json();
    assert!(extended["until"].as_str() > taken["until"].as_str(), "{extended}");
    let listed = api.get("/v1/locks").json()["items"][0].clone();
    assert_eq!((&listed["until"], &listed["fence"]), (&extended["until"], &taken["fence"]));
    assert_eq!(api.get("/v1/locks/nightly").json()["owner"], "me");
    assert!(!api.get("/v1/locks").body.contains(token.as_str().unwrap()), "the holder's secret is its own");
    let strangers = json!({ "lockToken": "0".repeat(32) });
    assert_eq!(api.post("/v1/locks/nightly/extend", strangers.clone()).code(), "lock-lost");
    assert_eq!(api.post("/v1/locks/nightly/release", strangers).json()["released"], false);
    let mine = json!({ "lockToken": token });
    assert_eq!(api.post("/v1/locks/nightly/release", mine.clone()).json()["released"], true);
    assert_eq!(api.post("/v1/locks/nightly/release", mine).json()["released"], false, "once");
    assert_eq!(api.get("/v1/locks/nightly").code(), "no-such-lock");
    let next = api.post("/v1/locks/nightly", json!({})).json();
    assert!(next["fence"].as_u64() > taken["fence"].as_u64());
    assert_eq!(api.post("/v1/locks/no%2Fway", json!({})).json()["errors"][0]["parameter"], "name");
    assert_eq!(api.post("/v1/locks/flowline%2Fretain", json!({})).code(), "bad-parameter");
    assert_eq!(api.post("/v1/locks/x", json!({ "ttlMs": 10 })).code(), "invalid");
    assert_eq!(api.post("/v1/locks/x", json!({ "owner": "" })).code(), "invalid");
    let bad = api.post("/v1/locks/x", json!({ "lockToken": "xyz" }));
    assert_eq!(bad.json()["errors"][0]["pointer"], "/lockToken");
    let log = api.get("/v1/audit?limit=50").json();
    let lines = log["items"].as_array().unwrap().iter().map(|line| (&line["action"], &line["status"]));
    let of = |action: &str| -> Vec<Value> {
        lines.clone().filter(|line| line.0 == action).map(|line| line.1.clone()).collect()
    };
    assert_eq!(of("Release a lock").len(), 3);
    let acquired = of("Acquire a lock");
    assert_eq!(acquired.iter().filter(|status| **status == 200).count(), 3, "{acquired:?}");
    assert_eq!(of("Extend a lock").len(), 0, "a heartbeat is no act");
}
