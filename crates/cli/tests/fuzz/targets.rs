//! One function for each parser that outsiders reach. Each takes any bytes and must return: no panic, no endless work. A
//! coverage-guided fuzzer can call the same functions.

use flowline::LeaseRef;
use flowline::core::budget::Budget;
use flowline::core::definition::{Format, HttpRequest, read};
use flowline::core::expr::{Expr, GivenValues};
use flowline::core::limits::Limits;
use flowline::core::request::{Given, RequestTemplate};
use flowline::core::{Json, Plan, Tenant};
use flowline::store::clock::Clock;
use flowline::store::memory::MemoryStore;
use flowline::store::query::RunQuery;
use flowline::store::receipt::ReceiptPlace;
use flowline::store::{FeedFilter, RunStore};
use flowline_api as api;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// A target: its name, what it does with bytes, and bytes to begin with.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: &'static [&'static str],
}

pub const TARGETS: [Target; 7] = [
    Target { name: "definitions", run: definitions, seeds: DEFINITIONS },
    Target { name: "json", run: any_json, seeds: JSON },
    Target { name: "templates", run: templates, seeds: TEMPLATES },
    Target { name: "cel", run: cel, seeds: CEL },
    Target { name: "cursors", run: cursors, seeds: CURSORS },
    Target { name: "leases", run: leases, seeds: LEASES },
    Target { name: "bodies", run: bodies, seeds: BODIES },
];

const DEFINITIONS: &[&str] = &[
    include_str!("../../../core/tests/definitions/good/order.yaml"),
    include_str!("../../../core/tests/definitions/good/order.toml"),
    include_str!("../../../core/tests/definitions/good/order.json"),
    include_str!("../../../core/tests/definitions/good/expense.yaml"),
    include_str!("../../../core/tests/definitions/broken/29-aliases-explode.yaml"),
    "flow: f\ninput: {anyOf: [{$ref: '#'}, {pattern: '^(a+)+$'}]}\nsteps:\n  a: {command: [x], if: 'input.l.all(a, a > 1)'}\n",
];
const JSON: &[&str] = &[
    r#"{"a": [1, -2.5e3, true, null, "\u00e9\ud83d\ude00"], "b": {"c": {}}}"#,
    r#"{"a": 1, "\u0061": 2}"#,
    "[[[[[[[[[[]]]]]]]]]]",
    "123456789012345678901234567890.5",
];
const TEMPLATES: &[&str] = &[
    "https://a.example/o/${input.id}?q=${input.q}&n=${step.attempt}",
    "${input.l.map(x, x * 2)}",
    "$${not} ${'}'} ${\"{\"}",
];
const CEL: &[&str] = &[
    "input.l.all(a, input.l.all(b, a + b >= 0))",
    "input.s + input.s + input.s",
    "input.m.k.startsWith('x') ? size(input.l) : input.n / 0",
    "has(input.m.k) && 'k' in input.m && input.l[1] == 2 || !(input.n > 3.5)",
    "input.l.map(x, {'a': x}).filter(y, y.a > 1).exists_one(z, z.a == 2)",
    "timestamp('2026-01-31T12:00:00Z') + duration('1h') > timestamp(input.s)",
];
const CURSORS: &[&str] = &["1.2.3", "0", "", "18446744073709551616.0.run", "-1.-1", "a.b.c.d"];
const LEASES: &[&str] = &[
    "MiBiMDY5NmNmOWIwMTAyNzAyMTYxYTk5NzkxZTBlMzJmYSAwMWExZWVmOS1iMTUzLTc0NjUtODAzZS0wMmYwZGNiNGRlYzAgMCAx",
    "c1 default run 0 1 00000000000000000000000000000007 1800000000000",
    "c2 default run 4294967296 1 07 -1 00112233445566778899aabbccddeeff",
];
const BODIES: &[&str] = &[
    r#"{"input": {"a": 1}, "labels": {"k": "v"}, "delay": "1h", "priority": "high"}"#,
    r#"{"action": "cancel", "filter": {"flow": "f", "label": ["a=b"], "since": "24h"}, "limit": 10}"#,
    r#"{"worker": "w", "queues": ["q"], "waitMs": 0, "max": 3}"#,
    r#"{"outcomes": [{"lease": "x", "complete": {"result": 1, "emits": [{"name": "e", "payload": 1}]}}]}"#,
    r#"{"lease": "x", "fromLine": 0, "lines": [{"log": {"message": "m"}}, {"state": {"set": "k", "value": 1}}]}"#,
    r#"{"subject": "s", "scopes": ["read", "admin"], "roles": [], "flows": ["f"], "expires": "90d"}"#,
    r#"{"name": "go", "payload": 1, "eventId": "e"}"#,
];

fn definitions(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for format in [Format::Yaml, Format::Toml, Format::Json] {
        match read("any", &text, format) {
            Ok(taken) => {
                let again = read("again", &taken.definition.canonical(), Format::Json);
                assert!(again.is_ok_and(|again| again.definition == taken.definition), "{text}");
                let _ = Plan::build(taken.definition);
            }
            Err(wrong) => assert!(wrong.has_errors() && !wrong.render(false).is_empty(), "{text}"),
        }
    }
}

fn any_json(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(json) = Json::parse(&text) {
        let again = Json::parse(json.get());
        assert!(again.is_ok_and(|again| again.value() == json.value()), "{text}");
    }
}

fn values() -> Json {
    Json::from(json!({ "l": [1, 2, 3], "s": "text", "m": { "k": "x" }, "n": 7, "id": "a/b" }))
}

fn templates(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut request = HttpRequest::new("POST", &text);
    request.headers.insert("x-any".to_owned(), text.clone().into_owned());
    request.body = Some(json!({ "any": text }));
    if let Ok(template) = RequestTemplate::compile(&request) {
        let (run, step) = (json!({ "id": "r" }), json!({ "attempt": 1 }));
        let given = Given { input: &values(), run, step, limits: Limits::default() };
        let _ = template.render(&given, &Budget::default());
    }
}

fn cel(bytes: &[u8]) {
    if let Ok(expr) = Expr::parse(&String::from_utf8_lossy(bytes)) {
        let scope = GivenValues { input: Some(values()), ..GivenValues::default() };
        let (once, twice) = (expr.evaluate(&scope), expr.evaluate(&scope));
        assert_eq!(once.is_ok(), twice.is_ok(), "every instance comes to the same");
    }
}

fn cursors(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = ReceiptPlace::parse(&text);
    let store = MemoryStore::new(Clock::system());
    let ask = async {
        let query = RunQuery { cursor: Some(text.clone().into_owned()), ..RunQuery::of(Tenant::default()) };
        let _ = store.runs(query).await;
        let _ = store.feed(FeedFilter::default(), &text, 10).await;
    };
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(ask);
}

fn leases(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(lease) = text.parse::<LeaseRef>() {
        let again = lease.to_string().parse::<LeaseRef>();
        assert!(again.is_ok_and(|again| again == lease), "{text}");
    }
}

fn bodies(bytes: &[u8]) {
    fn body<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
        if let Ok(body) = serde_json::from_slice::<T>(bytes) {
            let text = serde_json::to_string(&body).expect("what was read can be written");
            assert!(serde_json::from_str::<T>(&text).is_ok(), "{text}");
        }
    }
    body::<api::runs::RunStart>(bytes);
    body::<api::runs::BatchStart>(bytes);
    body::<api::runs::BulkRequest>(bytes);
    body::<api::runs::RetryRun>(bytes);
    body::<api::events::EventSend>(bytes);
    body::<api::events::StartOrSend>(bytes);
    body::<api::events::Callback>(bytes);
    body::<api::access::NewToken>(bytes);
    body::<api::work::ClaimRequest>(bytes);
    body::<api::work::HeartbeatRequest>(bytes);
    body::<api::work::AppendRequest>(bytes);
    body::<api::work::CompleteRequest>(bytes);
    body::<api::locks::AcquireLockRequest>(bytes);
}
