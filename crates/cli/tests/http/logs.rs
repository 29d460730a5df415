//! The log of a server: lines for machines, with what they are about and without payloads.

use serde_json::{Value, json};

use crate::kit::served::Served;

const FLOW: &str = r#"
flow: order
steps:
  check: { command: [sh, -c, 'echo "{\\"result\\": \\"hushed\\"}"'], returns: order.checked }
  pack: { subscribes: [order.checked], command: [sh, -c, 'exit 0'] }
"#;

#[test]
fn every_line_is_json_and_tells_what_happened_to_which_run_without_its_payload() {
    let folder = tempfile::tempdir().unwrap();
    let served =
        Served::start(folder.path(), &["--allow-commands", "--log", "debug", "--log-format", "json"]);
    served.register(FLOW);
    let run = served.post("/v1/flows/order/runs?wait=60s", &json!({ "input": "secret" })).json();
    assert_eq!(run["status"], "completed", "{run}");
    let said = served.said();
    let lines: Vec<Value> = said
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}")))
        .collect();
    let of =
        |message: &str| -> Vec<&Value> { lines.iter().filter(|line| line["message"] == message).collect() };
    for message in ["committed", "triggered", "run ended"] {
        assert!(!of(message).is_empty(), "no {message:?} in {said:#?}");
        for line in of(message) {
            assert_eq!((&line["runId"], &line["flowName"]), (&run["runId"], &json!("order")), "{line}");
            assert!(line["instanceId"].as_str().is_some_and(|name| !name.is_empty()), "{line}");
        }
    }
    let steps: Vec<&Value> = of("triggered").iter().map(|line| &line["stepName"]).collect();
    assert_eq!(steps, ["check", "pack"]);
    assert_eq!(of("run ended")[0]["status"], "completed");
    let start =
        of("request").into_iter().find(|line| line["route"] == "/v1/flows/{flow}/runs").expect("a request");
    assert_eq!((&start["method"], &start["status"]), (&json!("POST"), &json!(200)));
    assert_eq!(of("instance stopped").len(), 1);
    assert!(!said.iter().any(|line| line.contains("hushed") || line.contains("secret")), "{said:#?}");
}

#[test]
fn what_happens_with_every_step_is_not_told_unless_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--allow-commands"]);
    served.register(FLOW);
    served.post("/v1/flows/order/runs?wait=60s", &json!({}));
    let said = served.said();
    let told = |line: &&String| line.contains("instance started") || line.contains("instance stopped");
    assert_eq!(said.iter().filter(told).count(), 2, "{said:#?}");
    assert!(!said.iter().any(|line| line.contains("runId")), "{said:#?}");
}

#[test]
fn a_token_is_in_no_line_of_the_log_and_is_not_taken_from_the_address() {
    let folder = tempfile::tempdir().unwrap();
    let token = crate::http::access::token(folder.path(), "default", &["--scope", "admin"]);
    let served =
        Served::start(folder.path(), &["--auth", "tokens", "--log", "trace", "--log-format", "json"]);
    let (good, bad) = (format!("Bearer {token}"), format!("Bearer {token}x"));
    assert_eq!(served.send("GET", "/v1/whoami", &[("authorization", &good)], "").status, 200);
    assert_eq!(served.send("GET", "/v1/whoami", &[("authorization", &bad)], "").status, 401);
    for name in ["token", "access_token", "authorization"] {
        let address = format!("/v1/whoami?{name}={token}");
        assert_eq!(served.get(&address).code(), "unauthorized");
        assert_eq!(served.send("GET", &address, &[("authorization", &good)], "").code(), "bad-parameter");
    }
    let said = served.said();
    assert!(said.iter().any(|line| line.contains("/v1/whoami")), "the requests are told: {said:#?}");
    let secret = token.trim_start_matches("fl_");
    assert!(!said.iter().any(|line| line.contains(secret)), "{said:#?}");
}

#[test]
fn why_a_server_does_not_start_is_said_at_every_level() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said =
        Served::command(folder.path(), &["serve", "--listen", &address, "--log", "error"]).err().unwrap();
    let line: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "ERROR");
    assert!(line["message"].as_str().unwrap().contains(&format!("can't listen on {address}")), "{said}");
    assert!(line["help"].as_str().unwrap().contains("--listen"), "{said}");
}
