//! Requests that a careful client would never send.

use serde_json::json;

use crate::kit::served::Served;

#[test]
fn a_request_without_a_host_or_with_two_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let ask = |hosts: &str| {
        served.raw(format!("GET /v1/flows HTTP/1.1\r\nconnection: close\r\n{hosts}\r\n").as_bytes())
    };
    assert_eq!(ask("host: localhost\r\n").status, 200);
    for hosts in ["", "host: localhost\r\nhost: localhost\r\n", "host: localhost\r\nHost: evil.example\r\n"] {
        let reply = ask(hosts);
        assert_eq!((reply.status, reply.code()), (400, "bad-request".to_owned()), "{hosts:?} {reply:?}");
    }
}

#[test]
fn a_key_that_is_given_twice_is_refused_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let flow = "flow: wait\naccepts: { go: }\nsteps:\n  a: { subscribes: [go], worker: depot }\n";
    assert_eq!(served.send("POST", "/v1/flows", &[("content-type", "application/yaml")], flow).status, 201);
    let json = [("content-type", "application/json")];
    for body in [
        r#"{"input": {"amount": 1, "amount": 1000}}"#,
        r#"{"input": [{"a": {"b": 1, "\u0062": 2}}]}"#,
        r#"{"input": 1, "input": 2}"#,
    ] {
        let reply = served.send("POST", "/v1/flows/wait/runs", &json, body);
        assert_eq!((reply.status, reply.code()), (400, "bad-body".to_owned()), "{body} {reply:?}");
    }
    assert_eq!(served.get("/v1/runs").json()["total"], 0);
    assert_eq!(served.post("/v1/flows/wait/runs", &json!({ "input": { "a": { "a": 1 } } })).status, 201);
}

/// Base64 as in URLs.
fn encoded(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut said = String::new();
    for bytes in text.as_bytes().chunks(3) {
        let number =
            bytes.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
        for at in 0..=bytes.len() {
            said.push(char::from(DIGITS[(number >> (18 - 6 * at)) as usize & 63]));
        }
    }
    said
}

#[test]
fn a_made_up_callback_reference_learns_nothing_of_runs() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let flow = "flow: wait\naccepts: { go: }\nsteps:\n  a: { subscribes: [go], worker: depot }\n";
    assert_eq!(served.send("POST", "/v1/flows", &[("content-type", "application/yaml")], flow).status, 201);
    let run = |_| {
        served.post("/v1/flows/wait/runs", &json!({ "input": 1 })).json()["runId"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (live, ended) = (run(()), run(()));
    assert_eq!(served.post(&format!("/v1/runs/{ended}/cancel"), &json!({})).status, 200);
    let mut answers = Vec::new();
    for run in [live.as_str(), &ended, "no-such-run"] {
        for (format, seal) in [("c1", ""), ("c2", " 00112233445566778899aabbccddeeff")] {
            let text = format!("{format} default {run} 0 1 {:032x} 1800000000000{seal}", 7);
            let reply = served.post(&format!("/v1/callbacks/{}", encoded(&text)), &json!({ "result": 1 }));
            answers.push((reply.status, reply.body));
        }
    }
    assert_eq!(answers[0].0, 409, "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

#[test]
fn a_lease_is_nothing_to_a_token_that_is_not_bound_to_its_queue() {
    let folder = tempfile::tempdir().unwrap();
    let token = |more: &[&str]| crate::http::access::token(folder.path(), "default", more);
    let admin = token(&["--scope", "admin"]);
    let bound = token(&["--scope", "work", "--bind-queue", "other"]);
    let to_flow = token(&["--scope", "work", "--bind-flow", "parcel"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let ask = |token: &str, path: &str, body: &serde_json::Value| {
        let bearer = format!("Bearer {token}");
        served.send(
            "POST",
            path,
            &[("authorization", &bearer), ("content-type", "application/json")],
            &body.to_string(),
        )
    };
    let flow = json!({ "flow": "parcel", "steps": { "pack": { "worker": "depot", "emits": ["packed"] } } });
    assert_eq!(ask(&admin, "/v1/flows", &flow).status, 201);
    let run = ask(&admin, "/v1/flows/parcel/runs", &json!({ "input": 1 })).json()["runId"]
        .as_str()
        .unwrap()
        .to_owned();
    let claimed =
        ask(&admin, "/v1/work/claim", &json!({ "worker": "w", "queues": ["depot"], "waitMs": 5000 })).json();
    let lease = &claimed["jobs"][0]["lease"];
    for token in [&bound, &to_flow] {
        let beat = ask(token, "/v1/work/heartbeat", &json!({ "leases": [lease] }));
        assert_eq!(beat.json()["leases"][0]["state"], "lost", "{beat:?}");
        let line = json!({ "lease": lease, "fromLine": 0, "lines": [{ "log": { "message": "x" } }] });
        assert_eq!(ask(token, "/v1/work/append", &line).code(), "stale-lease");
        let emit = json!({ "lease": lease, "name": "packed", "payload": 1 });
        assert_eq!(ask(token, "/v1/work/emit", &emit).code(), "stale-lease");
        let outcome = json!({ "outcomes": [{ "lease": lease, "complete": { "result": 1 } }] });
        assert_eq!(ask(token, "/v1/work/complete", &outcome).code(), "stale-lease");
        assert_eq!(ask(token, "/v1/work/release", &json!({ "leases": [lease] })).status, 204);
    }
    let log = |_| {
        let bearer = format!("Bearer {admin}");
        let log =
            served.send("GET", &format!("/v1/runs/{run}/events"), &[("authorization", &bearer)], "").body;
        (log.contains("step.started"), log.contains("step.retry"))
    };
    assert_eq!(log(()), (false, false), "nothing was begun and nothing given back");
    assert_eq!(
        ask(&admin, "/v1/work/heartbeat", &json!({ "leases": [lease] })).json()["leases"][0]["state"],
        "held"
    );
    assert_eq!(log(()), (true, false));
}

#[test]
fn a_bound_token_sees_neither_the_workers_of_other_queues_nor_state_that_all_flows_share() {
    let folder = tempfile::tempdir().unwrap();
    let token = |more: &[&str]| crate::http::access::token(folder.path(), "default", more);
    let admin = token(&["--scope", "admin"]);
    let read = token(&["--scope", "read"]);
    let to_queue = token(&["--scope", "read", "--bind-queue", "q1"]);
    let to_flow = token(&["--scope", "read", "--bind-flow", "f1"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let ask = |token: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        served.send(method, path, &[("authorization", &bearer), ("content-type", "application/json")], body)
    };
    for (worker, queues) in [("w1", json!(["q1"])), ("w2", json!(["q2"])), ("w3", json!(["q1", "q2"]))] {
        let claim = json!({ "worker": worker, "queues": queues, "waitMs": 0 }).to_string();
        assert_eq!(ask(&admin, "POST", "/v1/work/claim", &claim).status, 200);
    }
    let seen = |token: &str| {
        let workers = ask(token, "GET", "/v1/workers", "").json();
        let workers = workers["items"].as_array().unwrap().iter();
        let workers =
            workers.map(|worker| format!("{} {}", worker["worker"], worker["queues"]).replace('"', ""));
        workers.collect::<Vec<_>>()
    };
    assert_eq!(seen(&read), ["w1 [q1]", "w2 [q2]", "w3 [q1,q2]"]);
    assert_eq!(seen(&to_queue), ["w1 [q1]", "w3 [q1]"]);
    assert!(seen(&to_flow).is_empty());
    for scope in ["tenant", "orders"] {
        assert_eq!(ask(&admin, "PUT", &format!("/v1/state/{scope}/k"), r#"{"value": 1}"#).status, 200);
        for path in [format!("/v1/state/{scope}/k"), format!("/v1/state/{scope}"), "/v1/state".to_owned()] {
            assert_eq!(ask(&read, "GET", &path, "").status, 200, "{path}");
            for token in [&to_queue, &to_flow] {
                assert_eq!(ask(token, "GET", &path, "").code(), "forbidden", "{path}");
            }
        }
    }
}
