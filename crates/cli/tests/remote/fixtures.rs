//! The protocol as docs/worker-fixtures writes it down, played against a real server: whoever writes a worker in another
//! language can play the same files.
//!
//! A file is a conversation: exchanges in order, each a request and what its answer must have. `$NAME` in a request is a
//! text that was heard before, `$NAME` in an answer is one to remember; `<any>` stands for anything, `<none>` for a
//! field that must be missing, and an answer may have fields beside those listed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::kit::crowd::Server;
use crate::kit::place::Here;

#[test]
fn the_server_answers_as_the_fixtures_say() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/worker-fixtures");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let fixture: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        play(&file.file_name().unwrap().to_string_lossy(), &fixture, "sqlite:flowline.db");
    }
}

/// What is known of a report is read from the run's log, which every store keeps in its own way.
#[test]
fn a_recorded_report_is_answered_as_recorded_on_every_store() {
    let server = |variable: &str| {
        std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`")
        })
    };
    let text = include_str!("../../../../docs/worker-fixtures/08-reports-that-come-again.json");
    let fixture: Value = serde_json::from_str(text).unwrap();
    let postgres = server("FLOWLINE_TEST_POSTGRES_URL");
    let joint = if postgres.contains('?') { '&' } else { '?' };
    let own = format!("reports_{}", std::process::id());
    for store in [
        format!("{}?prefix={own}", server("FLOWLINE_TEST_REDIS_URL")),
        format!("{}?prefix={own}", server("FLOWLINE_TEST_REDIS_CLUSTER_URL")),
        format!("{postgres}{joint}schema={own}"),
    ] {
        play(&store, &fixture, &store);
    }
}

fn play(name: &str, fixture: &Value, store: &str) {
    let here = Here::new();
    let lease = fixture["lease"].as_str().unwrap_or("30s");
    let server = Server::start(&here, 0, store, &["--lease", lease, "--drain", "1s"]);
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    for (number, exchange) in fixture["exchanges"].as_array().unwrap().iter().enumerate() {
        let place =
            format!("{name}: exchange {} ({})", number + 1, exchange["about"].as_str().unwrap_or_default());
        let request = &exchange["request"];
        let path = filled(&request["path"], &known).as_str().unwrap().to_owned();
        let verb = request["method"].as_str().unwrap_or("POST");
        let body = request.get("body").map_or(String::new(), |body| filled(body, &known).to_string());
        let (status, answer) = server.send(verb, &path, "application/json", &body);
        let expected = &exchange["answer"];
        assert_eq!(Value::from(status), expected["status"], "{place}: {answer}");
        if let Some(body) = expected.get("body") {
            fits(body, &answer, &mut known).unwrap_or_else(|why| panic!("{place}: {why}\n{answer:#}"));
        }
    }
}

/// A request with what is known in the place of `$NAME`.
fn filled(value: &Value, known: &BTreeMap<String, Value>) -> Value {
    match value {
        Value::String(text) if text.starts_with('$') => known[text].clone(),
        Value::String(text) => {
            let mut text = text.clone();
            for (name, value) in known {
                text = text.replace(&format!("{{{name}}}"), value.as_str().unwrap_or_default());
            }
            text.into()
        }
        Value::Array(items) => items.iter().map(|item| filled(item, known)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, field)| (name.clone(), filled(field, known))).collect()
        }
        other => other.clone(),
    }
}

/// Whether an answer is as expected; what it is to be remembered for is remembered.
fn fits(expected: &Value, found: &Value, known: &mut BTreeMap<String, Value>) -> Result<(), String> {
    match (expected, found) {
        (Value::String(text), _) if text == "<any>" => Ok(()),
        (Value::String(name), _) if name.starts_with('$') => match known.get(name) {
            Some(value) if value == found => Ok(()),
            Some(value) => Err(format!("{name} was {value} and is {found}")),
            None => {
                known.insert(name.clone(), found.clone());
                Ok(())
            }
        },
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            items.iter().zip(others).try_for_each(|(item, other)| fits(item, other, known))
        }
        (Value::Object(fields), Value::Object(others)) => {
            fields.iter().try_for_each(|(name, field)| match (others.get(name), field == "<none>") {
                (Some(other), false) => fits(field, other, known),
                (None, true) => Ok(()),
                (Some(other), true) => Err(format!("{name:?} is {other}, and there should be none")),
                (None, false) => Err(format!("{name:?} is missing")),
            })
        }
        _ if expected == found => Ok(()),
        _ => Err(format!("{expected} was expected, not {found}")),
    }
}
