//! HTTP steps against a server of this process: what is sent, and what becomes of each answer.

#![cfg(feature = "http")]

mod callback;
mod place;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flowline::core::Status;
use flowline::core::event::EventType;
use flowline::runner::http::{HttpConfig, Secrets};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};

use place::{Answer, Server, call, private};

#[tokio::test]
async fn a_request_says_who_sends_it_and_carries_the_input() {
    let server = Server::new(vec![Answer::json(r#"{"reserved": [1]}"#)]).await;
    let told =
        call(private(), &format!("{{ post: '{}/reserve' }}", server.url()), json!({ "sku": "é" })).await;
    assert_eq!(told.outcome.status, Status::Completed);
    assert_eq!(told.result(), json!({ "reserved": [1] }));
    let [asked] = &server.asked()[..] else { panic!("one request") };
    let run = told.row.run_id.as_str();
    assert_eq!((asked.line.as_str(), asked.body.as_str()), ("POST /reserve HTTP/1.1", r#"{"sku":"é"}"#));
    let port = server.port;
    for (name, value) in [
        ("host", format!("127.0.0.1:{port}")),
        ("content-type", "application/json".to_owned()),
        ("user-agent", format!("flowline/{}", env!("CARGO_PKG_VERSION"))),
        ("idempotency-key", format!("{run}__call")),
        ("flowline-run-id", run.to_owned()),
        ("flowline-step", "call".to_owned()),
        ("flowline-attempt", "1".to_owned()),
        ("content-length", "12".to_owned()),
    ] {
        assert_eq!(asked.headers[name], value, "{name}");
    }
    let trace: Vec<usize> = asked.headers["traceparent"].split('-').map(str::len).collect();
    assert_eq!(trace, [2, 32, 16, 2]);
    assert!(
        !asked.headers.contains_key("webhook-id") && !asked.headers.contains_key("flowline-callback-url")
    );
}

#[tokio::test]
async fn expressions_are_put_where_they_stand() {
    let server = Server::new(vec![Answer::json("1")]).await;
    let step = format!(
        r#"{{ put: "{}/orders/${{input.id}}?by=${{run.tenant}}", headers: {{ x-try: "no ${{step.attempt}}", User-Agent: me }},
             body: {{ id: "${{input.id}}", all: "${{input}}", text: "${{run.flow}}/${{step.name}}" }} }}"#,
        server.url()
    );
    call(private(), &step, json!({ "id": "a/b c" })).await;
    let asked = &server.asked()[0];
    assert_eq!(asked.line, "PUT /orders/a%2Fb%20c?by=default HTTP/1.1");
    assert_eq!((asked.headers["x-try"].as_str(), asked.headers["user-agent"].as_str()), ("no 1", "me"));
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body, json!({ "id": "a/b c", "all": { "id": "a/b c" }, "text": "calls/call" }));
}

#[tokio::test]
async fn a_value_that_cannot_be_sent_fails_the_step_at_once() {
    let server = Server::new(vec![Answer::json("1")]).await;
    let url = server.url();
    for (step, input, code) in [
        (format!("{{ get: '{url}/${{input.id}}' }}"), json!({}), "template"),
        (format!("{{ get: '{url}/${{input.id}}' }}"), json!({ "id": ".." }), "template"),
        (
            format!("{{ get: '{url}', headers: {{ a: '${{input.id}}' }} }}"),
            json!({ "id": "a\r\nb: c" }),
            "template",
        ),
        ("{ get: '${input.id}' }".to_owned(), json!({ "id": "ftp://a.example/" }), "bad_url"),
    ] {
        let told = call(private(), &format!("{step}, retry: 3"), input).await;
        assert_eq!((told.code().as_str(), told.row.retries), (code, 0), "{step}: {}", told.error());
    }
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn the_body_of_a_success_is_the_result() {
    let text = "200 OK\r\ncontent-type: text/plain";
    for (answer, result) in [
        (Answer::json("{\"a\": 1.50}"), json!({ "a": 1.5 })),
        (Answer::new("204 No Content", ""), Value::Null),
        (Answer::json(""), Value::Null),
        (Answer::new(text, "42"), json!("42")),
        (Answer::new("201 Created", "[1]"), json!([1])),
        (Answer::new("200 OK", "plain"), json!("plain")),
        (Answer::new("202 Accepted\r\ncontent-type: application/x+json; charset=utf-8", "true"), json!(true)),
        // Until the connection ends, and in chunks.
        (Answer::Bytes(b"HTTP/1.1 200 OK\r\n\r\n\"to the end\"".to_vec()), json!("to the end")),
        (
            Answer::Bytes(
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[1\r\n2\r\n2]\r\n0\r\n\r\n"
                    .to_vec(),
            ),
            json!([12]),
        ),
        (
            Answer::Bytes(
                b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7".to_vec(),
            ),
            json!(7),
        ),
    ] {
        let server = Server::new(vec![answer.clone()]).await;
        let told = call(private(), &format!("{{ get: '{}' }}", server.url()), Value::Null).await;
        assert_eq!(told.outcome.status, Status::Completed, "{answer:?}");
        assert_eq!(told.result(), result, "{answer:?}");
        assert_eq!(
            (server.asked()[0].body.as_str(), server.asked()[0].line.as_str()),
            ("", "GET / HTTP/1.1")
        );
    }
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_what_will_not_is_not() {
    let answer = |status: u16| Answer::new(&format!("{status} Because"), "{\"why\":\n\"x\"}");
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        let server = Server::new(vec![answer(status), Answer::json("1")]).await;
        let step = format!(
            "{{ get: '{}' }}, retry: {{ attempts: 2, delay: 1ms, only: [http_{status}] }}",
            server.url()
        );
        let told = call(private(), &step, Value::Null).await;
        assert_eq!((told.outcome.status, told.row.retries), (Status::Completed, 1), "{status}");
        assert_eq!(told.data(EventType::StepRetry)["code"], format!("http_{status}"));
        let tries: Vec<String> =
            server.asked().iter().map(|a| a.headers["flowline-attempt"].clone()).collect();
        assert_eq!(tries, ["1", "2"]);
    }
    for status in [400, 401, 403, 404, 409, 410, 422, 451] {
        let server = Server::new(vec![answer(status)]).await;
        let step =
            format!("{{ get: '{}/a?token=hidden' }}, retry: {{ attempts: 3, delay: 1ms }}", server.url());
        let told = call(private(), &step, Value::Null).await;
        assert_eq!((told.code(), told.row.retries), (format!("http_{status}"), 0));
        assert!(
            told.error().starts_with(&format!("{}/a responded with {status} ", server.url())),
            "{}",
            told.error()
        );
        assert!(
            told.error().ends_with("{\"why\": \"x\"}") && !told.error().contains("hidden"),
            "{}",
            told.error()
        );
    }
}

#[tokio::test]
async fn a_server_that_asks_for_patience_gets_it() {
    let busy = Answer::new("503 Busy\r\nretry-after: 2", "");
    let server = Server::new(vec![busy, Answer::json("1")]).await;
    let step = format!("{{ get: '{}' }}, retry: {{ attempts: 2, delay: 1ms }}", server.url());
    let told = call(private(), &step, Value::Null).await;
    assert_eq!(told.outcome.status, Status::Completed);
    let retry = told.events.iter().find(|event| event.kind == EventType::StepRetry).unwrap();
    let at = told.data(EventType::StepRetry)["at"].as_str().and_then(flowline::core::Time::parse).unwrap();
    let (wait, exact) = (at.since(retry.ts).as_millis(), 2_000);
    // The decision is made a moment before the event is dated.
    assert!((exact - 500..=exact + 500).contains(&wait), "{wait} ms");
}

#[tokio::test]
async fn a_redirect_is_named_and_not_followed() {
    let elsewhere = Server::new(vec![Answer::json("1")]).await;
    for status in [301, 302, 303, 307, 308] {
        let head = format!("{status} Moved\r\nlocation: {}/there", elsewhere.url());
        let server = Server::new(vec![Answer::new(&head, "")]).await;
        let told = call(private(), &format!("{{ post: '{}' }}, retry: 3", server.url()), Value::Null).await;
        assert_eq!((told.code().as_str(), told.row.retries), ("redirect", 0));
        assert!(told.error().contains(&format!("{}/there", elsewhere.url())), "{}", told.error());
    }
    assert_eq!(elsewhere.asked().len(), 0);
}

#[tokio::test]
async fn an_answer_that_does_not_come_in_time_is_a_time_out() {
    for partial in ["", "HTTP/1.1 200 OK\r\nx-slow", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n[1"] {
        let server = Server::new(vec![Answer::Hang(partial.as_bytes().to_vec()), Answer::json("1")]).await;
        let step = format!(
            "{{ get: '{}' }}, timeout: 300ms, retry: {{ attempts: 2, delay: 1ms, only: [timeout] }}",
            server.url()
        );
        let told = call(private(), &step, Value::Null).await;
        assert_eq!((told.outcome.status, told.row.retries), (Status::Completed, 1), "{partial:?}");
    }
    // Without a time of its own, and before a callback is awaited, the engine's patience counts.
    for step in ["", ", timeout: 1h"] {
        let callback = !step.is_empty();
        let server = Server::new(vec![Answer::Hang(Vec::new())]).await;
        let (callbacks, patience) = (Some("http://here.example".to_owned()), Duration::from_millis(300));
        let config = HttpConfig { callbacks, patience, ..private() };
        let step = format!("{{ post: '{}', callback: {callback} }}{step}", server.url());
        let told = call(config, &step, Value::Null).await;
        assert_eq!(told.code(), "timeout", "{step}");
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_cut_off() {
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000)).into_bytes();
    let many = "x".repeat(flowline::Limits::default().payload - 1);
    for answer in [
        Answer::Endless(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(), chunk.clone()),
        Answer::Endless(
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_vec(),
            vec![b'x'; 1 << 16],
        ),
        // Within the limit as it came, over it in quotes.
        Answer::new("200 OK", &many),
    ] {
        let server = Server::new(vec![answer]).await;
        let told = call(private(), &format!("{{ get: '{}' }}, retry: 3", server.url()), Value::Null).await;
        assert_eq!((told.code().as_str(), told.row.retries), ("too_large", 0), "{}", told.error());
    }
    // An error is an error, however much it has to say.
    let endless = Answer::Endless(b"HTTP/1.1 400 Bad\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(), chunk);
    let server = Server::new(vec![endless]).await;
    let told = call(private(), &format!("{{ get: '{}' }}", server.url()), Value::Null).await;
    assert_eq!(told.code(), "http_400");
    let stalled = Answer::Hang(b"HTTP/1.1 400 Bad\r\ncontent-length: 99\r\n\r\nfor a start".to_vec());
    let server = Server::new(vec![stalled]).await;
    let told = call(private(), &format!("{{ get: '{}' }}", server.url()), Value::Null).await;
    assert_eq!(told.code(), "http_400");
    assert!(told.error().ends_with(": for a start"), "{}", told.error());
}

#[tokio::test]
async fn an_answer_that_breaks_off_or_is_none_may_be_tried_again() {
    for (broken, code) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n[1", "connection_lost"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", "connection_lost"),
        ("", "connection_lost"),
        ("SSH-2.0-OpenSSH\r\n\r\n", "connection_lost"),
        ("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"cut\":", "bad_response"),
    ] {
        let server = Server::new(vec![Answer::Bytes(broken.as_bytes().to_vec()), Answer::json("1")]).await;
        let step =
            format!("{{ get: '{}' }}, retry: {{ attempts: 2, delay: 1ms, only: [{code}] }}", server.url());
        let told = call(private(), &step, Value::Null).await;
        assert_eq!((told.outcome.status, told.row.retries), (Status::Completed, 1), "{broken:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_may_come_back() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let step = format!("{{ get: '{url}' }}, retry: {{ attempts: 2, delay: 1ms, only: [connect] }}");
    let told = call(private(), &step, Value::Null).await;
    assert_eq!((told.code().as_str(), told.row.retries), ("connect", 1));
    // A name that can never be resolved.
    let told = call(private(), "{ get: 'http://nobody.invalid/' }", Value::Null).await;
    assert_eq!(told.code(), "connect", "{}", told.error());
}

#[tokio::test]
async fn what_is_not_public_is_not_called_unless_allowed() {
    let server = Server::new(vec![Answer::json("1")]).await;
    let step = format!("{{ get: 'http://localhost:{}/' }}, retry: 3", server.port);
    let told = call(HttpConfig::default(), &step, Value::Null).await;
    assert_eq!((told.code().as_str(), told.row.retries), ("address_refused", 0));
    assert!(told.error().contains("http-allow"), "{}", told.error());
    assert_eq!(server.asked().len(), 0);
    let named = HttpConfig { allow: "localhost".parse().unwrap(), ..HttpConfig::default() };
    let told = call(named, &step, Value::Null).await;
    assert_eq!(told.outcome.status, Status::Completed);
    // The address that clouds give credentials out at is none of the private ones.
    let told = call(private(), "{ get: 'http://169.254.169.254/latest/' }", Value::Null).await;
    assert_eq!(told.code(), "address_refused");
}

#[tokio::test]
async fn a_signature_can_be_checked_and_the_message_keeps_its_name() {
    let key = b"a key of the test, 32 bytes long";
    let secret = format!("whsec_{}", STANDARD.encode(key));
    let secrets = Secrets::from_iter([("STOCK".to_owned(), format!("{secret} host=127.0.0.1"))]);
    let server = Server::new(vec![Answer::new("500 Oh", ""), Answer::json("1")]).await;
    let step = format!("{{ post: '{}', secret: STOCK }}, retry: {{ attempts: 2, delay: 1ms }}", server.url());
    let told = call(HttpConfig { secrets, ..private() }, &step, json!({ "total": 19 })).await;
    assert_eq!(told.outcome.status, Status::Completed);
    let asked = server.asked();
    assert_eq!(asked[0].headers["webhook-id"], asked[1].headers["webhook-id"]);
    for asked in &asked {
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
        let (id, at) = (&asked.headers["webhook-id"], &asked.headers["webhook-timestamp"]);
        mac.update(format!("{id}.{at}.{}", asked.body).as_bytes());
        let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        assert_eq!(asked.headers["webhook-signature"], expected);
        assert!(!id.contains('.'));
    }
    let log = format!("{:?}", told.events);
    assert!(!log.contains(&secret) && !log.contains("a key of the test"));
}

#[tokio::test]
async fn attack_5_a_request_to_a_host_that_its_secret_is_not_for_is_not_sent() {
    let server = Server::new(vec![Answer::json("1")]).await;
    let secret = "c2VjcmV0 host=shop.example".to_owned();
    let config = HttpConfig { secrets: Secrets::from_iter([("STOCK".to_owned(), secret)]), ..private() };
    let told = call(config, &format!("{{ post: '{}', secret: STOCK }}", server.url()), Value::Null).await;
    assert_eq!(told.code(), "secret_refused");
    assert!(told.error().contains("add host=127.0.0.1 to FLOWLINE_SECRET_STOCK"), "{}", told.error());
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn a_request_that_cannot_be_signed_is_not_sent() {
    let server = Server::new(vec![Answer::json("1")]).await;
    let secrets = Secrets::from_iter([("STOCK".to_owned(), "no/base64! host=*".to_owned())]);
    for name in ["STOCK", "OTHER"] {
        let config = HttpConfig { secrets: secrets.clone(), ..private() };
        let told =
            call(config, &format!("{{ post: '{}', secret: {name} }}", server.url()), Value::Null).await;
        assert_eq!(told.code(), "no_secret");
        assert!(told.error().contains(&format!("FLOWLINE_SECRET_{name}")), "{}", told.error());
        assert!(!format!("{:?}", told.events).contains("no/base64"));
    }
    assert_eq!(server.asked().len(), 0);
}
