//! The evaluator compared with the `cel` crate, which defines the language: same values, same errors, word for word.
//!
//! Maps are kept to one key wherever their order could show: that crate goes over them in no order.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use cel::objects::{Key, Map};
use cel::{Context, Env};
use proptest::prelude::*;
use serde_json::json;

use super::*;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

fn to_cel(value: Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(truth) => cel::Value::Bool(truth),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => cel::Value::Int(int),
            (None, Some(uint)) => cel::Value::UInt(uint),
            (None, None) => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::String(Arc::new(text)),
        Value::Array(items) => cel::Value::List(Arc::new(items.into_iter().map(to_cel).collect())),
        Value::Object(map) => cel::Value::Map(Map {
            map: Arc::new(map.into_iter().map(|(k, v)| (Key::String(Arc::new(k)), to_cel(v))).collect()),
        }),
    }
}

/// What the crate makes of an expression.
fn theirs(expr: &Expr, variables: &[(&'static str, Value)]) -> Result<Value, String> {
    let mut context = Context::with_env(ENV.clone());
    for (name, value) in variables {
        context.add_variable_from_value(*name, to_cel(value.clone()));
    }
    let value = expr.program.execute(&context).map_err(|error| error.to_string())?;
    value.json().map_err(|error| error.to_string())
}

fn ours(expr: &Expr, variables: &[(&'static str, Value)]) -> Result<Value, EvaluationError> {
    let of = variables.iter().map(|(name, value)| (*name, CelPayload::of(Json::from(value.clone()))));
    expr.evaluate_in(&Variables::of(of), &Budget::default())
}

/// Compares the two; messages up to where ours cuts a value.
fn compare(text: &str, variables: &[(&'static str, Value)]) {
    let Ok(expr) = Expr::parse(text) else { return };
    match (ours(&expr, variables), theirs(&expr, variables)) {
        (Err(ours), Err(theirs)) => {
            let ours = ours.to_string();
            let shown = ours.split('…').next().unwrap_or_default();
            match shown.len() == ours.len() {
                true if ours.contains("Map {") => assert_eq!(letters(&ours), letters(&theirs), "{text}"),
                true => assert_eq!(ours, theirs, "{text}"),
                false if ours.contains("Map {") => {}
                false => assert!(theirs.starts_with(shown), "{text}\n{ours}\n{theirs}"),
            }
        }
        (ours, theirs) => assert_eq!(ours.map_err(|e| e.to_string()), theirs, "{text}"),
    }
}

/// A message that shows a map, whose keys the crate shows in no order.
fn letters(message: &str) -> Vec<char> {
    let mut letters: Vec<char> = message.chars().collect();
    letters.sort_unstable();
    letters
}

fn given() -> Vec<(&'static str, Value)> {
    let input = json!({
        "n": 7, "zero": 0, "neg": -3, "big": i64::MAX, "least": i64::MIN, "huge": u64::MAX, "f": 1.5, "whole": 2.0,
        "s": "héllo", "t": "lo", "digits": "42", "empty": "", "yes": true, "no": false, "none": null,
        "l": [1, 2, 3], "nested": [[1], [1, 2], []], "mixed": [1, "a", null, 2.5, true, {"k": 1}], "nothing": [],
        "items": [{"qty": 1}, {"qty": 2}, {"other": 3}], "m": {"k": "v"}, "deep": {"a": {"b": {"c": 1}}},
        "blank": {},
    });
    vec![("input", input)]
}

const ATOMS: &[&str] = &[
    "input.n",
    "input.zero",
    "input.neg",
    "input.big",
    "input.least",
    "input.huge",
    "input.f",
    "input.whole",
    "input.s",
    "input.t",
    "input.digits",
    "input.empty",
    "input.yes",
    "input.no",
    "input.none",
    "input.l",
    "input.nested",
    "input.mixed",
    "input.nothing",
    "input.items",
    "input.m",
    "input.deep.a.b.c",
    "input.blank",
    "input.lost",
    "input.m.k",
    "input.n.x",
    "input.l.x",
    ".input.n",
    "1",
    "0",
    "-1",
    "2u",
    "0u",
    "1.5",
    "2.0",
    "-0.5",
    "'a'",
    "''",
    "'lo'",
    "'42'",
    "'1.5'",
    "'true'",
    "b'ab'",
    "b'\\xff'",
    "true",
    "false",
    "null",
    "[]",
    "[1, 2]",
    "[[1], 2]",
    "{}",
    "{'k': 1}",
    "{1: 'x'}",
    "{1u: 'y'}",
    "{true: 0}",
    "{'k': {'j': [1]}}",
    "int",
    "string",
    "nope",
    "nope.x",
    "optional.none()",
    "optional.of(1)",
    "optional.of({'k': 2})",
    "optional.of([5])",
    "x",
    "y",
    "x.k",
    "9223372036854775807",
    "int.x",
    "P{a: 1}",
];

const BINARY: &[&str] =
    &["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in", "+", "==", "&&", "||"];

const CALLS: &[&str] = &[
    "size",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "bool",
    "dyn",
    "type",
    "optional.of",
    "optional.ofNonZeroValue",
    "optional.none",
    "nosuch",
    "contains",
    "timestamp",
    "duration",
    "matches",
];

const METHODS: &[&str] = &[
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "hasValue",
    "value",
    "or",
    "orValue",
    "nosuch",
    "matches",
    "optMap",
];

const LOOPS: &[&str] = &["all", "exists", "exists_one", "existsOne", "map", "filter"];

fn expression() -> impl Strategy<Value = String> {
    let atom = proptest::sample::select(ATOMS).prop_map(str::to_owned);
    atom.prop_recursive(5, 24, 3, |inner| {
        let pair = (inner.clone(), inner.clone());
        let name = proptest::sample::select(&["x", "y"][..]);
        prop_oneof![
            4 => (pair.clone(), proptest::sample::select(BINARY)).prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            2 => (pair.clone(), proptest::sample::select(BINARY)).prop_map(|((a, b), op)| format!("{a} {op} {b}")),
            1 => (inner.clone(), pair.clone()).prop_map(|(a, (b, c))| format!("({a} ? {b} : {c})")),
            1 => inner.clone().prop_map(|a| format!("!{a}")),
            1 => inner.clone().prop_map(|a| format!("-({a})")),
            1 => pair.clone().prop_map(|(a, b)| format!("{a}[{b}]")),
            1 => inner.clone().prop_map(|a| format!("{a}.k")),
            1 => inner.clone().prop_map(|a| format!("has({a}.k)")),
            1 => pair.clone().prop_map(|(a, b)| format!("[{a}, {b}]")),
            1 => pair.clone().prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            2 => (inner.clone(), proptest::sample::select(CALLS)).prop_map(|(a, f)| format!("{f}({a})")),
            2 => (pair.clone(), proptest::sample::select(METHODS)).prop_map(|((a, b), f)| format!("{a}.{f}({b})")),
            1 => (inner.clone(), proptest::sample::select(METHODS)).prop_map(|(a, f)| format!("{a}.{f}()")),
            4 => (pair.clone(), name.clone(), proptest::sample::select(LOOPS))
                .prop_map(|((a, b), name, f)| format!("{a}.{f}({name}, {b})")),
            1 => ((inner.clone(), pair), name).prop_map(|((a, (b, c)), name)| format!("{a}.map({name}, {b}, {c})")),
        ]
    })
}

/// More than CI needs: `PROPTEST_CASES=200000 cargo test -p flowline-core differential`.
fn cases() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    config.cases = config.cases.max(600);
    config
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn generated_expressions_have_the_values_and_errors_of_the_cel_crate(text in expression()) {
        compare(&text, &given());
    }

    /// Whatever the expression and however small the budget: no panic, and no step beyond it.
    #[test]
    fn no_expression_goes_beyond_its_budget(text in expression(), steps in 0u64..400) {
        if let Ok(expr) = Expr::parse(&text) {
            let budget = Budget::of_steps(steps);
            let variables = given();
            let of = variables.iter().map(|(name, value)| (*name, CelPayload::of(Json::from(value.clone()))));
            let variables = Variables::of(of);
            let mut meter = budget.meter();
            let stopped = matches!(expr.run(&variables, &mut meter), Err(error) if error.is_too_costly());
            prop_assert!(meter.taken() <= steps);
            prop_assert!(!stopped || meter.taken() == steps);
        }
    }
}

#[test]
fn every_atom_under_every_operator_is_as_in_the_cel_crate() {
    let variables = given();
    for a in ATOMS {
        for b in ["1", "'k'", "[1, 2]", "true"] {
            for op in BINARY {
                compare(&format!("{a} {op} {b}"), &variables);
            }
            compare(&format!("{a}[{b}]"), &variables);
            compare(&format!("{a} ? {b} : 1"), &variables);
            for method in METHODS {
                compare(&format!("{a}.{method}({b})"), &variables);
            }
            for each in LOOPS {
                compare(&format!("{a}.{each}(x, {b})"), &variables);
                compare(&format!("{a}.{each}(x, x == {b})"), &variables);
            }
        }
        for call in CALLS {
            compare(&format!("{call}({a})"), &variables);
            compare(&format!("{call}({a}, {a})"), &variables);
        }
        for method in METHODS {
            compare(&format!("{a}.{method}()"), &variables);
        }
        compare(&format!("-{a}"), &variables);
        compare(&format!("!{a}"), &variables);
        compare(&format!("has({a}.k)"), &variables);
        compare(&format!("[1, 2].exists(x, x == {a} || nope)"), &variables);
        compare(&format!("[1, 2].all(x, x == {a} && nope)"), &variables);
    }
}

#[test]
fn what_is_easily_got_wrong_is_as_in_the_cel_crate() {
    for text in [
        "{'a': 1, 'a': 2}",
        "{1: 1, 1u: 2}",
        "{1.5: 1}",
        "{null: 1}",
        "{[1]: 2}",
        "{'a': 1}.a.b",
        "[1, 2][1.0]",
        "[1, 2][1.5]",
        "[1][-1]",
        "[1][5]",
        "[1][5.0]",
        "[1][-1.0]",
        "{1: 'x'}[1.0]",
        "{1: 'x'}[2]",
        "{'a': 1}[null]",
        "input.l.map(x, input.l.map(x, x))",
        "input.l.map(x, input.l.map(y, x + y))",
        "[1].map(input, input + 1)",
        "[1].map(input, .input.n)",
        "[1].map(int, int)",
        "type(1) == int",
        "type(int)",
        "type(null)",
        "double('NaN')",
        "double('NaN') == double('NaN')",
        "double('NaN') < 1.0",
        "double('inf')",
        "1.0 / 0.0",
        "1 / 0",
        "1 % 0",
        "5u / 0u",
        "1u - 2u",
        "-(-9223372036854775807 - 1)",
        "(-9223372036854775807 - 1) / -1",
        "int('x')",
        "uint('-1')",
        "int(9223372036854775807.0)",
        "bool('T')",
        "string(b'\\xff')",
        "string(1e300)",
        "string(0.1)",
        "b'ab' + b'c'",
        "b'ab'",
        "[1] + {'k': 2}",
        "[1] + 2",
        "'a' + 1",
        "1 + 1.0",
        "1 + 'a'",
        "[1] == [1.0]",
        "{1: 2} == {1u: 2.0}",
        "1 in [1.0]",
        "1.0 in {1: 2}",
        "null in {'a': 1}",
        "'a' in 'abc'",
        "1 < 'a'",
        "true < false",
        "null < null",
        "optional.of(1) == optional.of(1.0)",
        "optional.none().orValue(3)",
        "optional.none().value()",
        "optional.of({'k': 1}).k",
        "optional.of({'k': 1}).j",
        "optional.of({'k': 1}).k.l",
        "optional.of([1])[0]",
        "optional.of([1])[4]",
        "optional.of(1).k",
        "has(optional.of({'k': 1}).k)",
        "has(optional.none().k)",
        "has(optional.of(1).k)",
        "optional.ofNonZeroValue('')",
        "[optional.of(1)].map(optional, optional.of(2).value())",
        "1 || true",
        "true || 1",
        "false || 1",
        "1 && false",
        "(1 ? 2 : 3) || true",
        "nope || true",
        "nope && false",
        "nope || false",
        "nope || lost",
        "true ? 1 : nope",
        "1 ? 2 : 3",
        "[true, 1].all(x, x)",
        "[1, false].all(x, x)",
        "[false, 1].exists(x, x)",
        "[1, true].exists(x, x)",
        "[1, 2].exists_one(x, x)",
        "1.all(x, true)",
        "'abc'.map(x, x)",
        "null.exists(x, x)",
        "[].all(x, nope)",
        "[1].filter(x, 1)",
        "size('héllo')",
        "size(1)",
        "size()",
        "'a'.size(1)",
        "[1, 2].map(x, x > 1, x * 2)",
        "google.protobuf.Timestamp",
        "input.s.contains('l').k",
        "has(input.m.k)",
        "has(input.lost.k)",
        "has(input.l.k)",
        "has(int.k)",
        "dyn(1) == 1u",
        "timestamp('2020-01-01T00:00:00Z')",
    ] {
        compare(text, &given());
    }
}

/// Texts of the repository that may be expressions: what stands after `if:`, `output:` and the like, and in `${…}`.
#[allow(clippy::disallowed_methods)] // a test may read files
fn found_in(folder: &Path, found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            found_in(&path, found);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            for line in text.lines() {
                let line = line.trim_start_matches([' ', '-', '{', '"']);
                if let Some((_, value)) = line.split_once(": ") {
                    let value = value.split(" # ").next().unwrap_or_default().trim();
                    found.extend([value, value.trim_matches(['"', '\'', '}', ' '])].map(str::to_owned));
                }
                let pieces = crate::template::split(line).unwrap_or_default();
                found.extend(pieces.into_iter().filter_map(|piece| match piece {
                    crate::template::Piece::Expression(text) => Some(text.to_owned()),
                    crate::template::Piece::Text(_) => None,
                }));
            }
        }
    }
}

#[test]
fn expressions_of_the_repository_have_the_values_and_errors_of_the_cel_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in ["examples", "docs", "crates/core/tests", "crates/cli/tests", "crates/sim/tests"] {
        found_in(&root.join(folder), &mut found);
    }
    found.sort();
    found.dedup();
    let object = json!({
        "id": "o-1", "total": 1900, "amount": 1900, "country": "PT", "items": [{"qty": 1}], "approved": true, "count": 2,
        "order": {"id": 7, "total": 12.5}, "name": "Ada", "at": "2030-01-31T12:00:00Z",
    });
    let scopes: Vec<Vec<(&'static str, Value)>> = [object, json!({}), json!(null), json!(5)]
        .into_iter()
        .map(|value| {
            let names = [
                "input", "events", "results", "context", "payload", "event", "user", "role", "roles", "run",
                "step",
            ];
            names.into_iter().map(|name| (name, value.clone())).collect()
        })
        .collect();
    let mut parsed = 0;
    for text in &found {
        parsed += usize::from(Expr::parse(text).is_ok());
        scopes.iter().for_each(|scope| compare(text, scope));
    }
    assert!(parsed > 200, "{parsed} expressions of {} texts", found.len());
}

#[test]
fn nested_all_over_55_items_is_refused_as_too_costly() {
    let text = "input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, a + b + c + d >= 0))))";
    let input = json!({ "l": (0..55).collect::<Vec<_>>() });
    let error = ours(&Expr::parse(text).unwrap(), &[("input", input)]).unwrap_err();
    assert_eq!((error.to_string(), error.is_too_costly()), (TooCostly::Steps.to_string(), true));
}

#[test]
fn a_string_that_grows_is_refused_as_too_costly() {
    let input = json!({ "s": "x".repeat(1 << 20) });
    let sum = vec!["input.s"; 200].join(" + ");
    let error = ours(&Expr::parse(&sum).unwrap(), &[("input", input.clone())]).unwrap_err();
    assert_eq!(error, TooCostly::Bytes.into());
    // Once doubled and once copied it is within what one may make.
    assert!(ours(&Expr::parse("input.s + input.s").unwrap(), &[("input", input)]).is_ok());
}

#[test]
fn values_that_share_their_parts_cannot_be_written_out_without_end() {
    let doubled = "[input].map(a, [a, a])".to_owned() + &".map(a, [a, a])".repeat(40);
    let error = ours(&Expr::parse(&doubled).unwrap(), &[("input", json!("x"))]).unwrap_err();
    assert!(error.is_too_costly(), "{error}");
    let compared = format!("{doubled} == {doubled}");
    let error = ours(&Expr::parse(&compared).unwrap(), &[("input", json!("x"))]).unwrap_err();
    assert!(error.is_too_costly(), "{error}");
}

#[test]
fn a_payload_of_the_default_size_can_be_copied_whole() {
    let numbers = json!(vec![1; (1 << 19) - 1]);
    assert!(numbers.to_string().len() <= 1 << 20);
    assert_eq!(ours(&Expr::parse("input").unwrap(), &[("input", numbers.clone())]), Ok(numbers));
}

#[test]
fn an_expression_that_is_stopped_is_not_taken_for_one_that_errs() {
    let long = "input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, true))))";
    let input = json!({ "l": (0..55).collect::<Vec<_>>() });
    for text in
        [format!("{long} || true"), format!("true && ({long} || 1)"), format!("[1].exists(x, {long})")]
    {
        let error = ours(&Expr::parse(&text).unwrap(), &[("input", input.clone())]).unwrap_err();
        assert!(error.is_too_costly(), "{text}: {error}");
    }
}

#[test]
fn what_parses_is_evaluated_on_a_small_stack() {
    let sums = vec!["1"; 1_000].join("+");
    let nots = "!".repeat(EXPRESSION_BYTES - 4) + "true";
    let selects = "input".to_owned() + &".a".repeat(1_000);
    for text in [sums, nots, selects] {
        std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || Expr::parse(&text).map(|expr| ours(&expr, &given())).is_ok())
            .unwrap()
            .join()
            .unwrap();
    }
}
