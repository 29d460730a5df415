//! What routes refuse gets the problem that it should, and what has not changed is not sent again.

use serde_json::json;

use crate::http::contract::{Contract, ELSEWHERE};
use crate::kit::served::Served;

#[test]
fn every_route_refuses_what_it_does_not_take() {
    let api = Contract::new();
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let mut with_body = 0;
    for (method, path, operation) in api.operations() {
        let address = path.replace(['{', '}'], "");
        let wrong = api.served.send("PATCH", &address, &[], "");
        assert_eq!((wrong.status, wrong.code().as_str()), (405, "method-not-allowed"), "{path}");
        assert!(wrong.header("allow").unwrap().contains(&method), "{path}");
        if !path.starts_with("/v1/") {
            continue;
        }
        let json = [("content-type", "application/json")];
        let body = if operation["requestBody"].is_object() { "{}" } else { "" };
        let unknown = api.send(&method, &format!("{address}?nonsense=1"), &json, body);
        assert_eq!(unknown.code(), "bad-parameter", "{method} {path}");
        if !operation["requestBody"].is_object() {
            continue;
        }
        with_body += 1;
        for (headers, body, code) in [
            (&json[..], "{", "bad-body"),
            (&json[..], deep.as_str(), "bad-body"),
            (&json[..], "[1]", "bad-body"),
            // Could be carried, and never read.
            (&json[..], r#"{"input":{"note":"\ud83d"}}"#, "bad-body"),
            (&json[..], r#"{"input":1e400}"#, "bad-body"),
            (&[("content-type", "text/plain")][..], "{}", "unsupported-media-type"),
            (&[][..], "{}", "unsupported-media-type"),
        ] {
            // A definition that is no object is a definition with errors.
            let reply = api.send(&method, &address, headers, body);
            let expected = if address == "/v1/flows" && code == "bad-body" { "definition" } else { code };
            if address == "/v1/flows/validate" && code == "bad-body" {
                assert_eq!(reply.json()["valid"], false, "{body:.20}");
                continue;
            }
            assert_eq!(reply.code(), expected, "{method} {path} {body:.20}");
        }
        // What nobody asked for is named by its place; an object of anything may be a definition, which has diagnostics instead.
        if !address.starts_with("/v1/flows/validate") && address != "/v1/flows" {
            let reply = api.send(&method, &address, &json, r#"{"no~such/field":1}"#);
            let place = reply.json()["errors"][0]["pointer"].clone();
            assert_eq!(
                (reply.code().as_str(), place),
                ("bad-body", json!("/no~0such~1field")),
                "{method} {path}"
            );
        }
        let large = format!(
            "{method} {address} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 104857600\r\n\r\n{{",
            api.served.address
        );
        let reply = api.check(&method, &address, api.served.raw(large.as_bytes()));
        assert_eq!((reply.status, reply.code().as_str()), (413, "too-large"), "{method} {path}");
    }
    assert!(with_body > 10, "{with_body}");
}

#[test]
fn what_is_not_there_is_a_404_whatever_it_is_called() {
    let api = Contract::new();
    let names = [
        "none",
        "%2e%2e%2f%2e%2e%2fetc",
        "%00",
        "%E2%80%AEtxt",
        "%7B%7D",
        "a%3Ab",
        "%ff",
        &"x".repeat(2_000),
    ];
    for (method, path, operation) in
        api.operations().filter(|(_, path, _)| path.starts_with("/v1/") && path.contains('{'))
    {
        // A queue or a scope of state without anything in it is empty, not missing.
        let takes_any_name = ["/v1/queues", "/v1/state"].iter().any(|begin| path.starts_with(begin))
            || path.starts_with("/v1/locks") && method == "POST";
        if takes_any_name || ELSEWHERE.contains(&path) {
            continue;
        }
        for name in names {
            let address = path
                .split('/')
                .map(|part| if part.starts_with('{') { name } else { part })
                .collect::<Vec<_>>()
                .join("/");
            let body = match operation["requestBody"].is_object() {
                true if path == "/v1/flows/{flow}/events" => r#"{"key":"k","name":"x"}"#,
                true if path.ends_with("/events") => r#"{"name":"x"}"#,
                true if path.ends_with("/fail") => r#"{"error":"x"}"#,
                true if path.ends_with("/activate") => r#"{"version":"0000000"}"#,
                true => "{}",
                false => "",
            };
            let reply = api.served.send(&method, &address, &[("content-type", "application/json")], body);
            let bad_name = reply.status == 400 && name == "%ff";
            assert!(reply.status == 404 || bad_name, "{method} {address}: {reply:?}");
            reply.code();
        }
    }
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    served
        .register("flow: greet\naccepts: { go: {} }\nsteps:\n  wait: { worker: depot, subscribes: [go] }\n");
    let run = served.post("/v1/flows/greet/runs", &json!({})).json()["runId"].as_str().unwrap().to_owned();
    let shown = format!("/v1/runs/{run}");
    let tag = |path: &str| served.get(path).header("etag").unwrap_or_else(|| panic!("{path}")).to_owned();
    for path in ["/openapi.json", "/v1/flows/greet", &shown] {
        let again = served.send("GET", path, &[("if-none-match", &tag(path))], "");
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{path}");
        assert_eq!(again.header("etag"), Some(tag(path).as_str()));
        assert_eq!(served.send("GET", path, &[("if-none-match", "\"other\"")], "").status, 200, "{path}");
    }
    let before = tag(&shown);
    assert_eq!(served.post(&format!("{shown}/events"), &json!({ "name": "go", "payload": {} })).status, 200);
    let after = served.send("GET", &shown, &[("if-none-match", &before)], "");
    assert_eq!((after.status, after.json()["status"].as_str()), (200, Some("running")));
}

#[test]
fn no_cache_keeps_what_the_api_answers_and_no_browser_takes_it_for_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    served.register("flow: greet\nsteps:\n  wait: { worker: depot }\n");
    let run = served.post("/v1/flows/greet/runs", &json!({})).json()["runId"].as_str().unwrap().to_owned();
    let document = served.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|_| !path.ends_with("/stream")) {
            let path = path.replace("{run}", &run).replace("{flow}", "greet").replace(['{', '}'], "");
            let reply = served.send(&method.to_uppercase(), &path, &[], "");
            assert_eq!(reply.header("cache-control"), Some("no-store"), "{method} {path}");
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{method} {path}");
            assert_eq!(reply.header("strict-transport-security"), None, "{method} {path}");
        }
    }
    for path in ["/nowhere", "/v1/runs/none", "/ui/none.js"] {
        let reply = served.get(path);
        assert_eq!((reply.status, reply.header("cache-control")), (404, Some("no-store")), "{path}");
    }
    // What has nobody's data in it may be kept.
    let console = served.get("/ui/");
    assert_eq!((console.status, console.header("cache-control")), (200, Some("no-cache")));
    assert_eq!(console.header("x-content-type-options"), Some("nosniff"));
}
