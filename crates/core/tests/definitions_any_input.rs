//! Whatever a definition file holds, reading it ends with a definition or with errors that have a place.

// Tests read the files that they are about; the crate itself never does.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use flowline_core::Definition;
use flowline_core::definition::{
    Backoff, Cleanup, Ends, Format, HttpRequest, Machine, Missed, OnFailure, Priority, Receiver, Retry,
    Runner, SendEvent, StartRun, StateDefinition, StepDefinition, Subscribes, TimerDefinition, Transition,
    When, dot, mermaid, read,
};
use flowline_core::limits;
use proptest::prelude::*;

const FORMATS: [Format; 3] = [Format::Yaml, Format::Toml, Format::Json];

const SEEDS: [(&str, Format); 7] = [
    (include_str!("definitions/good/order.yaml"), Format::Yaml),
    (include_str!("definitions/good/order.toml"), Format::Toml),
    (include_str!("definitions/good/order.json"), Format::Json),
    (include_str!("definitions/good/expense.yaml"), Format::Yaml),
    (include_str!("definitions/good/expense.toml"), Format::Toml),
    (include_str!("definitions/good/expense.json"), Format::Json),
    (include_str!("definitions/broken/29-aliases-explode.yaml"), Format::Yaml),
];

/// Reads, shows what is wrong in every way there is, and reads what was understood once more.
fn exercise(text: &str, format: Format) {
    match read("any", text, format) {
        Ok(taken) => {
            let again = read("again", &taken.definition.canonical(), Format::Json)
                .unwrap_or_else(|d| panic!("{d}\n{text}"));
            assert_eq!(taken.definition, again.definition);
            let _ = (mermaid(&taken.definition), dot(&taken.definition), taken.warnings.render(true));
        }
        Err(diagnostics) => {
            assert!(diagnostics.has_errors());
            assert!(diagnostics.items.iter().all(|item| diagnostics.position(item).is_some()));
            let _ = (diagnostics.to_string(), diagnostics.render(false), diagnostics.to_json());
        }
    }
}

/// Pieces that parsers find hard, beside whatever proptest thinks of.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("\u{feff}".to_owned()),
        Just("\0".to_owned()),
        Just("\r\n".to_owned()),
        Just("---\n".to_owned()),
        Just("&a *a".to_owned()),
        Just("<<: *a\n".to_owned()),
        Just("!!str ".to_owned()),
        Just("? [x]\n".to_owned()),
        Just("|\n  x".to_owned()),
        Just("'''".to_owned()),
        Just("\"\"\"".to_owned()),
        Just("[[steps]]\n".to_owned()),
        Just("{[({[(".to_owned()),
        Just("steps:".to_owned()),
        Just("subscribes: [[], {any: [step:, ]}]".to_owned()),
        Just("1e999".to_owned()),
        Just("\u{202e}\u{1f600}".to_owned()),
        Just("\t".to_owned()),
        ".{0,6}",
        "[\\[\\]{}:,\"'\\\\ \n\t#&*!|>%@`-]{0,8}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}", pieces in prop::collection::vec(piece(), 0..12)) {
        for format in FORMATS {
            exercise(&text, format);
            exercise(&pieces.concat(), format);
        }
    }

    #[test]
    fn a_mutated_file_never_panics(
        seed in 0..SEEDS.len(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, piece()), 1..4),
    ) {
        let (text, format) = SEEDS[seed];
        let mut chars: Vec<char> = text.chars().collect();
        for (at, drop, insert) in cuts {
            let at = at.index(chars.len() + 1);
            let end = (at + drop).min(chars.len());
            chars.splice(at..end, insert.chars());
        }
        let text: String = chars.into_iter().collect();
        exercise(&text, format);
        for other in FORMATS {
            exercise(&text, other);
        }
    }

    #[test]
    fn canonical_json_of_any_definition_reads_back_equal(definition in definition()) {
        prop_assume!(definition.validate().is_ok());
        let again = read("canonical.json", &definition.canonical(), Format::Json);
        prop_assert_eq!(again.map(|read| read.definition), Ok(definition));
    }

    #[test]
    fn canonical_json_of_any_machine_reads_back_equal(definition in machine()) {
        prop_assume!(definition.validate().is_ok());
        let again = read("canonical.json", &definition.canonical(), Format::Json);
        prop_assert_eq!(again.map(|read| read.definition), Ok(definition));
    }
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![1u64..5_000, 1u64..10_000_000_000].prop_map(Duration::from_millis)
}

fn runner() -> impl Strategy<Value = Runner> {
    let text = "\\PC{1,8}";
    prop_oneof![
        prop::collection::vec(text, 1..4).prop_map(Runner::Command),
        "[a-z][a-z.-]{0,8}".prop_map(Runner::Worker),
        Just(Runner::Worker("default".to_owned())),
        "[a-z][a-z.-]{0,8}".prop_map(Runner::Function),
        ("[a-z]{1,5}", body()).prop_map(|(flow, input)| Runner::Start(StartRun { flow, input })),
        (receiver(), "[a-z]{1,5}", body()).prop_map(|(to, event, payload)| Runner::Send(SendEvent {
            to,
            event,
            payload
        })),
        (
            prop::collection::btree_map("x[a-z-]{1,5}", "[ -#%-~]{0,6}(\\$\\{input\\})?", 0..3),
            prop::option::of(any::<f64>()),
            0usize..5,
            prop::option::of("[A-Z_]{1,5}"),
            any::<bool>()
        )
            .prop_map(|(headers, body, method, secret, callback)| {
                let method = ["GET", "POST", "PUT", "PATCH", "DELETE"][method].to_owned();
                let body = body.filter(|_| method != "GET");
                let body = body.map(|n| serde_json::json!({ "n": n, "list": [null, true, "x\u{0}"] }));
                let url = "https://example.com/a?b=${input}".to_owned();
                Runner::Http(HttpRequest { method, url, headers, body, secret, callback })
            }),
    ]
}

fn body() -> impl Strategy<Value = Option<serde_json::Value>> {
    let body = prop::option::of(any::<f64>());
    body.prop_map(|n| n.map(|n| serde_json::json!({ "n": n, "list": [null, "${input}", "x\u{0}"] })))
}

fn receiver() -> impl Strategy<Value = Receiver> {
    prop_oneof![
        "[a-z]{1,5}(\\$\\{input\\})?".prop_map(|run| Receiver::Run { run }),
        ("[a-z]{1,5}", "[a-z]{1,5}", body()).prop_map(|(machine, key, input)| Receiver::Machine {
            machine,
            key,
            input
        }),
    ]
}

fn retry() -> impl Strategy<Value = Retry> {
    let backoff = prop_oneof![Just(Backoff::Fixed), Just(Backoff::Linear), Just(Backoff::Exponential)];
    (
        1..=limits::ATTEMPTS,
        backoff,
        duration(),
        duration(),
        any::<bool>(),
        prop::collection::vec("a\\PC{0,3}", 0..2),
    )
        .prop_map(|(attempts, backoff, delay, max_delay, jitter, only)| Retry {
            attempts,
            backoff,
            delay,
            max_delay,
            jitter,
            only,
            except: vec!["b".to_owned()],
        })
}

type Rest = (Runner, Option<Retry>, Option<Duration>, (bool, Option<usize>, Option<usize>), Vec<usize>, bool);

/// A flow whose steps wait only for earlier ones, so that most are valid.
fn definition() -> impl Strategy<Value = Definition> {
    let rest = (
        runner(),
        prop::option::of(retry()),
        prop::option::of(duration()),
        (any::<bool>(), prop::option::of(0usize..4), prop::option::of(0usize..3)),
        prop::collection::vec(any::<usize>(), 0..4),
        any::<bool>(),
    );
    let state =
        prop_oneof![Just(Cleanup::Never), Just(Cleanup::OnComplete), duration().prop_map(Cleanup::Ttl)];
    (prop::collection::vec(rest, 1..6), state, prop::option::of("\\PC{0,20}"), prop::option::of(duration()))
        .prop_map(|(steps, state, description, timeout)| {
            let mut definition = Definition::new("any-flow");
            (definition.state, definition.description, definition.timeout) = (state, description, timeout);
            definition.accepts = BTreeMap::from([
                ("from.outside".to_owned(), None),
                ("with.schema".to_owned(), Some(serde_json::json!({ "maximum": 0.1, "minimum": 1e-7 }))),
            ]);
            definition.steps = steps.into_iter().enumerate().map(|(i, rest)| step(i, rest)).collect();
            definition
        })
}

fn step(
    index: usize,
    (runner, retry, timeout, (lenient, priority, queue), waits, any_of): Rest,
) -> StepDefinition {
    let mut step = StepDefinition::new(&format!("step-{index}"), runner);
    if let (Some(queue), false) = (queue, matches!(step.runner, Runner::Worker(_))) {
        step.queue = ["default", "bank", "a.b-c"][queue].to_owned();
    }
    step.retry = retry.unwrap_or_default();
    step.timeout = timeout;
    step.on_failure = if lenient { OnFailure::Continue } else { OnFailure::Fail };
    step.priority = priority.map(|p| Priority::ALL[p]);
    step.emits.insert(
        format!("emitted.{index}"),
        lenient.then(|| serde_json::json!({ "type": ["object", "null"] })),
    );
    step.returns = any_of.then(|| format!("returned.{index}"));
    step.condition = any_of.then(|| "input.x > 0".to_owned());
    let parts: Vec<Subscribes> = waits
        .iter()
        .map(|wait| match wait % 4 {
            0 => Subscribes::Event("from.outside".to_owned()),
            1 if index > 0 => Subscribes::Event(format!("emitted.{}", wait % index)),
            2 if index > 0 => Subscribes::Step(format!("step-{}", wait % index)),
            3 => Subscribes::Any(vec![
                Subscribes::Event("with.schema".to_owned()),
                Subscribes::All(vec![Subscribes::Event("from.outside".to_owned())]),
            ]),
            _ => Subscribes::Event("with.schema".to_owned()),
        })
        .collect();
    step.subscribes = match parts.len() {
        0 => None,
        1 if any_of => parts.into_iter().next(),
        _ if any_of => Some(Subscribes::Any(parts)),
        _ => Some(Subscribes::All(parts)),
    };
    step
}

#[test]
fn hostile_nesting_and_size_are_refused() {
    let deep = |open: &str, close: &str| open.repeat(50_000) + &close.repeat(50_000);
    for text in [
        deep("[", "]"),
        deep("{\"a\":", "}"),
        deep("- ", ""),
        format!("a = {}", deep("[", "]")),
        format!("{} = 1", vec!["a"; 200_000].join(".")),
        format!("[{}]", vec!["a"; 200_000].join(".")),
        format!("a = {{ {} = 1 }}", vec!["a"; 200_000].join(".")),
        format!("\"\".{} = 1", vec!["a"; 200_000].join(".")),
    ] {
        for format in FORMATS {
            exercise(&text, format);
        }
    }
    let big = "x".repeat(limits::DEFINITION_BYTES + 1);
    for format in FORMATS {
        assert_eq!(read("big", &big, format).unwrap_err().items[0].code, "too-large");
    }
}

#[test]
fn hostile_expressions_and_schemas_are_refused() {
    let nested = |open: &str, close: &str, n: usize| open.repeat(n) + "1" + &close.repeat(n);
    let expressions = [
        "(".repeat(100_000),
        "!".repeat(2_000) + "true",
        "-".repeat(2_000) + "1",
        vec!["1"; 1_000].join("+"),
        vec!["true"; 500].join("||"),
        vec!["a"; 1_000].join("."),
        vec!["true?1"; 16].join(":") + ":1",
        nested("(", ")", 8),
        nested("(", ")", 9),
        nested("{1:", "}", 8),
        nested("[1].all(x, ", ")", 8),
        nested("(true ? [", "][0] : false ? 1 : 2)", 4),
        nested("!(1 + 2 * -f(", "))", 4),
        "\"".repeat(1_001),
        "\u{202e}\0".repeat(100),
    ];
    for text in expressions {
        let mut definition = Definition::new("f");
        definition.steps.push(StepDefinition {
            condition: Some(text),
            ..StepDefinition::new("a", Runner::Function("f".into()))
        });
        let _ = definition.validate();
    }
    for schema in [
        serde_json::json!({ "$ref": "#" }),
        serde_json::json!({ "pattern": "(" }),
        serde_json::json!({ "pattern": "(a{1000}){1000}" }),
        serde_json::json!({ "$id": "::" }),
        serde_json::json!({ "$schema": "https://example.com/none" }),
        serde_json::json!(7),
    ] {
        let mut definition = Definition::new("f");
        definition.input = Some(schema);
        definition.steps.push(StepDefinition::new("a", Runner::Function("f".into())));
        let _ = definition.validate();
    }
}

/// Ten thousand steps in the shapes that tempt a checker into quadratic work: a chain, a fan out and in, one event of
/// many emitters and subscribers, and mistakes everywhere. Quadratic work would take minutes here.
#[test]
fn ten_thousand_steps_are_read_and_checked() {
    let n = limits::STEPS;
    let step = |name: usize| StepDefinition::new(&format!("s{name}"), Runner::Function("f".to_owned()));
    let event = |name: String| Subscribes::Event(name);
    let mut chain = Definition::new("chain");
    let mut fan = Definition::new("fan");
    let mut crowd = Definition::new("crowd");
    let mut wrong = Definition::new("wrong");
    for i in 0..n {
        let mut link = StepDefinition {
            returns: Some(format!("e{i}")),
            condition: Some(format!("input.x > {}", i % 50)),
            ..step(i)
        };
        link.subscribes = i.checked_sub(1).map(|before| event(format!("e{before}")));
        chain.steps.push(link);
        let mut leg =
            StepDefinition { returns: Some(format!("e{i}")), on_failure: OnFailure::Continue, ..step(i) };
        leg.subscribes = match i {
            0 => None,
            i if i == n - 1 => Some(Subscribes::All((1..n - 1).map(|i| event(format!("e{i}"))).collect())),
            _ => Some(event("e0".to_owned())),
        };
        fan.steps.push(leg);
        let member = StepDefinition { subscribes: (i >= n / 2).then(|| event("shared".into())), ..step(i) };
        let returns = (i < n / 2).then(|| "shared".to_owned());
        crowd.steps.push(StepDefinition { returns, ..member });
        let next = format!("r{}", (i + 1) % 2 + i / 2 * 2);
        let lost = Subscribes::All(vec![event(next), event(format!("missing{i}"))]);
        wrong.steps.push(StepDefinition {
            returns: Some(format!("r{i}")),
            subscribes: Some(lost),
            ..step(i)
        });
    }
    let codes =
        [(chain, None), (fan, Some("too-wide")), (crowd, Some("too-wide")), (wrong, Some("unknown-event"))];
    for (definition, code) in codes {
        let read = read("large.json", &definition.canonical(), Format::Json);
        let found: Vec<&str> = read.err().iter().flat_map(|d| d.items.iter().map(|item| item.code)).collect();
        assert!(
            code.map_or(found.is_empty(), |code| found.contains(&code)),
            "{}: {found:?}",
            definition.flow
        );
    }
}

#[test]
fn a_large_yaml_file_is_read_quickly() {
    let mut text = String::from("flow: large\nsteps:\n");
    for i in 0..5_000 {
        let _ = write!(text, "  s{i}:\n    command: [./run.sh, \"{i}\"]\n    emits: [e{i}]\n");
        if i > 0 {
            let _ = writeln!(text, "    subscribes: [e{}]", i - 1);
        }
    }
    let read = read("large.yaml", &text, Format::Yaml).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(read.definition.steps.len(), 5_000);
}

type Moves = Vec<(usize, usize, bool, Option<Duration>, Missed)>;

fn missed() -> impl Strategy<Value = Missed> {
    prop_oneof![Just(Missed::Fire), Just(Missed::Skip), Just(Missed::Restart)]
}

/// A machine whose states lie in a ring, so that all are reached, with moves across.
fn machine() -> impl Strategy<Value = Definition> {
    let moves = prop::collection::vec(
        (any::<usize>(), any::<usize>(), any::<bool>(), prop::option::of(duration()), missed()),
        0..5,
    );
    let action = (runner(), any::<bool>(), prop::option::of(any::<usize>()));
    let ends = prop_oneof![Just(Ends::Completed), Just(Ends::Failed)];
    (
        prop::collection::vec(moves, 1..5),
        prop::collection::vec(action, 1..4),
        ends,
        prop::option::of("\\PC{0,9}"),
    )
        .prop_map(|(states, actions, ends, description)| {
            let mut definition = Definition::new("any-machine");
            definition.accepts.insert("go".to_owned(), None);
            definition.accepts.insert("stop".to_owned(), Some(serde_json::json!({ "minimum": 0.1 })));
            let count = states.len();
            for (index, (runner, flag, on_error)) in actions.into_iter().enumerate() {
                let mut action = StepDefinition::new(&format!("action-{index}"), runner);
                action.on_error = on_error.map(|state| format!("state-{}", state % count));
                action.after = (0..index).map(|before| format!("action-{before}")).collect();
                action.condition = flag.then(|| "role == 'boss'".to_owned());
                definition.steps.push(action);
            }
            let mut machine = Machine { initial: "state-0".to_owned(), ..Machine::default() };
            machine.context = [("a.b-c".to_owned(), "input.x".to_owned())].into();
            for (index, moves) in states.into_iter().enumerate() {
                machine.states.push(state(index, count, definition.steps.len(), moves));
            }
            let end = StateDefinition { name: "end".to_owned(), ends, description, ..Default::default() };
            machine.states.push(end);
            definition.machine = Some(machine);
            definition
        })
}

fn state(index: usize, count: usize, actions: usize, moves: Moves) -> StateDefinition {
    let mut state = StateDefinition { name: format!("state-{index}"), ..StateDefinition::default() };
    for (to, action, flag, delay, missed) in moves {
        let then = Transition {
            to: flag.then(|| format!("state-{}", to % count)),
            condition: flag.then(|| "context.n > 1".to_owned()),
            roles: Vec::new(),
            set: [("n".to_owned(), "input.n".to_owned())].into(),
            actions: vec![format!("action-{}", action % actions)],
        };
        match delay {
            Some(delay) => {
                let when = if flag { When::In(delay) } else { When::At("context.due".to_owned()) };
                state.after.push(TimerDefinition { when, missed, then });
            }
            None => {
                let roles = if flag { vec!["a".to_owned(), "\"b\" c".to_owned()] } else { Vec::new() };
                state.on.entry("stop".to_owned()).or_default().push(Transition { roles, ..then.clone() });
                state.entry.extend(then.actions.clone());
                state.exit.extend(then.actions);
            }
        }
    }
    let next = if index + 1 < count { format!("state-{}", index + 1) } else { "end".to_owned() };
    let next = Transition { to: Some(next), ..Transition::default() };
    state.on.entry("go".to_owned()).or_default().push(next);
    state
}

/// Machines in the shapes that tempt a checker into quadratic work: a chain of states, actions that all wait for all
/// before them, and wrong names everywhere.
#[test]
fn the_largest_machines_are_read_and_checked() {
    let n = limits::STATES;
    let to = |name: String| vec![Transition { to: Some(name), ..Transition::default() }];
    let build = |wrong: bool| {
        let mut definition = Definition::new("large");
        definition.accepts.insert("go".to_owned(), None);
        let mut machine = Machine { initial: "s0".to_owned(), ..Machine::default() };
        for i in 0..n {
            let next = if wrong { format!("missing{i}") } else { format!("s{}", (i + 1) % n) };
            let on = BTreeMap::from([("go".to_owned(), to(next))]);
            let entry = vec![format!("a{i}")];
            machine.states.push(StateDefinition { name: format!("s{i}"), on, entry, ..Default::default() });
        }
        definition.machine = Some(machine);
        for i in 0..limits::ACTIONS {
            let action = StepDefinition::new(&format!("a{i}"), Runner::Function("f".to_owned()));
            let after = (i.saturating_sub(100)..i).map(|before| format!("a{before}")).collect();
            definition.steps.push(StepDefinition { after, ..action });
        }
        definition
    };
    let good = build(false);
    assert_eq!(
        read("large.json", &good.canonical(), Format::Json).map(|read| read.definition),
        Ok(good.clone())
    );
    assert_eq!(build(true).validate().unwrap_err().items[0].code, "unknown-state");
    let mut larger = good;
    larger.steps.push(StepDefinition::new("one-more", Runner::Function("f".to_owned())));
    larger.machine.as_mut().unwrap().states[0].after = vec![
        TimerDefinition {
            when: When::In(Duration::from_secs(1)),
            missed: Missed::Fire,
            then: Transition { to: Some("s1".to_owned()), ..Transition::default() },
        };
        limits::TIMERS + 1
    ];
    larger.machine.as_mut().unwrap().states.push(StateDefinition::default());
    let codes: Vec<&str> = larger.validate().unwrap_err().items.iter().map(|item| item.code).collect();
    for code in ["too-many-steps", "too-many-states", "too-many-timers"] {
        assert!(codes.contains(&code), "{codes:?}");
    }
}

/// What the file format has no words for cannot be stored, so it is refused.
#[test]
fn what_only_code_can_say_of_a_machine_is_refused() {
    let good = || {
        let mut definition = Definition::new("m");
        definition.accepts.insert("go".to_owned(), None);
        let next =
            Transition { to: Some("end".to_owned()), actions: vec!["a".to_owned()], ..Transition::default() };
        let timer = TimerDefinition {
            when: When::In(Duration::from_secs(1)),
            missed: Missed::Fire,
            then: next.clone(),
        };
        let start = StateDefinition {
            name: "start".to_owned(),
            on: [("go".to_owned(), vec![next])].into(),
            after: vec![timer],
            ..StateDefinition::default()
        };
        let end =
            StateDefinition { name: "end".to_owned(), ends: Ends::Completed, ..StateDefinition::default() };
        definition.machine =
            Some(Machine { initial: "start".to_owned(), states: vec![start, end], ..Machine::default() });
        definition.steps.push(StepDefinition::new("a", Runner::Function("f".to_owned())));
        definition
    };
    assert_eq!(good().validate().map(|warnings| warnings.items), Ok(Vec::new()));
    type Change = fn(&mut Definition);
    let wrong: [(&str, Change); 9] = [
        ("wrong-kind", |d| d.fail_fast = true),
        ("wrong-kind", |d| d.steps[0].returns = Some("x".to_owned())),
        ("wrong-kind", |d| d.steps[0].subscribes = Some(Subscribes::Event("x".to_owned()))),
        ("wrong-kind", |d| {
            d.machine = None;
            d.steps[0].after.push("a".to_owned());
        }),
        ("bad-role", |d| start(d).after[0].then.roles.push("x".to_owned())),
        ("bad-duration", |d| start(d).after[0].when = When::In(Duration::from_micros(1_500))),
        ("empty-list", |d| _ = start(d).on.insert("go".to_owned(), Vec::new())),
        ("duplicate-state", |d| start(d).name = "end".to_owned()),
        ("duplicate-step", |d| d.steps.push(d.steps[0].clone())),
    ];
    for (code, change) in wrong {
        let mut definition = good();
        change(&mut definition);
        let found: Vec<&str> =
            definition.validate().unwrap_err().items.iter().map(|item| item.code).collect();
        assert!(found.contains(&code), "{code}: {found:?}");
    }
}

fn start(definition: &mut Definition) -> &mut StateDefinition {
    &mut definition.machine.as_mut().unwrap().states[0]
}
