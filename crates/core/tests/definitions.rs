//! Definition files as users write them: what is refused and how that reads, and what is taken.

// Tests read the files that they are about; the crate itself never does.
#![allow(clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flowline_core::Definition;
use flowline_core::definition::{
    Diagnostics, Format, Read, Runner, StepDefinition, Subscribes, dot, file_schema, graph, mermaid, read,
};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/definitions").join(folder);
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn read_file(path: &Path) -> Result<Read, Diagnostics> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    read(name, &text, Format::of_path(name).unwrap())
}

fn snapshot(folder: &str, path: &Path, rendered: &str) {
    let name = path.file_name().unwrap().to_str().unwrap();
    insta::with_settings!({
        snapshot_path => format!("definitions/snapshots/{folder}"),
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(name, rendered);
    });
}

#[test]
fn every_broken_file_is_refused_with_place_and_remedy() {
    let files = files("broken");
    assert!(files.len() >= 30);
    for path in files {
        let diagnostics = read_file(&path).expect_err(&path.display().to_string());
        assert!(diagnostics.has_errors());
        snapshot("broken", &path, &diagnostics.render(false));
        for item in &diagnostics.items {
            assert!(diagnostics.position(item).is_some(), "{item:?} has no place");
        }
        for row in diagnostics.to_json().as_array().unwrap() {
            assert!(row["line"].is_number() && row["column"].is_number() && row["code"].is_string(), "{row}");
        }
    }
}

/// The codes that the reader and the checks give, as their source names them.
fn codes(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            codes(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for call in ["error(", "warning(", "syntax("] {
            let arguments = text.split(call).skip(1);
            let first = arguments.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split_once('"'));
            let is_code = |text: &&str| text.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            found.extend(first.map(|(text, _)| text).filter(is_code).map(str::to_owned));
        }
    }
}

#[test]
fn every_diagnostic_has_a_row_in_the_docs() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut given = BTreeSet::new();
    codes(&here.join("src/definition"), &mut given);
    let page = std::fs::read_to_string(here.join("../../docs/file-format.md")).unwrap();
    let rows = page.split("\n## ").find(|section| section.starts_with("Diagnostics\n")).unwrap().lines();
    let first_cells = rows.filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let listed: BTreeSet<String> =
        first_cells.flat_map(|cell| cell.split(", ")).map(|code| code.trim_matches('`').to_owned()).collect();
    assert_eq!(given, listed, "the source and the tables in docs/file-format.md#diagnostics");
}

#[test]
fn doubtful_files_are_taken_with_warnings() {
    for path in files("warned") {
        let read = read_file(&path).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        assert!(!read.warnings.is_empty());
        snapshot("warned", &path, &read.warnings.render(false));
    }
}

#[test]
fn a_step_that_subscribes_to_an_empty_list_starts_with_the_run() {
    let read = |steps: &str| {
        let text = format!(
            "flow: f\nsteps:\n  a: {{function: a, returns: b.go{steps}}}\n  b: {{function: b, subscribes: b.go}}\n"
        );
        read("f.yaml", &text, Format::Yaml).unwrap_or_else(|diagnostics| panic!("{diagnostics}")).definition
    };
    let (with, without) = (read(", subscribes: []"), read(""));
    assert_eq!(with, without);
    assert_eq!(with.hash(), without.hash());
}

#[test]
fn good_files_mean_the_same_in_three_formats() {
    let mut by_stem: BTreeMap<String, Vec<Definition>> = Default::default();
    for path in files("good") {
        let read = read_file(&path).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        assert!(read.warnings.is_empty(), "{}", read.warnings);
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        by_stem.entry(stem).or_default().push(read.definition);
    }
    for (stem, definitions) in by_stem {
        assert_eq!(definitions.len(), 3, "{stem}");
        for other in &definitions[1..] {
            assert_eq!(&definitions[0], other, "{stem}");
            assert_eq!(definitions[0].hash(), other.hash());
        }
    }
}

#[test]
fn steps_keep_the_order_of_the_file() {
    for path in files("good").iter().filter(|path| path.file_stem().unwrap() == "diamond") {
        let names: Vec<String> =
            read_file(path).unwrap().definition.steps.into_iter().map(|step| step.name).collect();
        assert_eq!(names, ["top", "zeta", "alpha", "bottom"]);
    }
}

#[test]
fn canonical_json_reads_back_as_the_same_definition() {
    for path in files("good").iter().chain(&files("warned")) {
        let definition = read_file(path).unwrap().definition;
        let again =
            read("canonical.json", &definition.canonical(), Format::Json).unwrap_or_else(|d| panic!("{d}"));
        assert_eq!(definition, again.definition);
        assert_eq!(definition.canonical(), again.definition.canonical());
    }
}

#[test]
fn the_file_schema_takes_good_files_and_refuses_a_broken_shape() {
    let schema = file_schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let validator = jsonschema::validator_for(&schema).unwrap();
    for path in files("good").iter().chain(&files("warned")) {
        let definition: serde_json::Value =
            serde_json::from_str(&read_file(path).unwrap().definition.canonical()).unwrap();
        let errors: Vec<String> = validator.iter_errors(&definition).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new(), "{}", path.display());
    }
    for path in files("good").iter().filter(|path| path.extension().unwrap() == "json") {
        assert!(validator.is_valid(&serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()));
    }
    for broken in [
        r#"{"flow": "f", "steps": {}}"#,
        r#"{"flow": "f", "retain": {}, "steps": {"a": {"function": "f"}}}"#,
        r#"{"flow": "f", "retain": {"rows": "1d"}, "steps": {"a": {"function": "f"}}}"#,
        r#"{"flow": "f", "steps": {"a": {"function": "f", "command": ["x"]}}}"#,
        r#"{"flow": "f", "steps": {"a": {"function": "f", "timeout": 30}}}"#,
        r#"{"flow": "f", "steps": {"a": {"function": "f", "subscribe": "x"}}}"#,
        r#"{"flow": "f", "steps": {"a": {"http": {"get": "https://a.b", "post": "https://a.b"}}}}"#,
        r#"{"flow": "f", "steps": {"a": {"function": "f", "after": ["b"]}}}"#,
        r#"{"machine": "m", "states": {}}"#,
        r#"{"machine": "m", "steps": {"a": {"function": "f"}}}"#,
        r#"{"machine": "m", "states": {"a": {"final": "yes"}}}"#,
        r#"{"machine": "m", "states": {"a": {"after": {"to": "a"}}}}"#,
        r#"{"machine": "m", "states": {"a": {"after": {"in": "1h", "at": "b", "to": "a"}}}}"#,
        r#"{"machine": "m", "states": {"a": {"after": {"in": "1h", "role": "b", "to": "a"}}}}"#,
        r#"{"machine": "m", "states": {"a": {"on": {"b": {"goto": "a"}}}}}"#,
        r#"{"machine": "m", "states": {"a": {"final": true}}, "actions": {"b": {"function": "f", "emits": []}}}"#,
    ] {
        assert!(!validator.is_valid(&serde_json::from_str(broken).unwrap()), "{broken}");
    }
}

#[test]
fn a_graph_is_drawn_the_same_way_each_time() {
    let order = files("good").into_iter().find(|path| path.ends_with("order.yaml")).unwrap();
    let mut definition = read_file(&order).unwrap().definition;
    let drawn = |d: &Definition| {
        format!("{}\n{}\n{}", mermaid(d), dot(d), serde_json::to_string_pretty(&graph(d)).unwrap())
    };
    snapshot("graph", &order, &drawn(&definition));
    assert_eq!(drawn(&definition), drawn(&definition.clone()));
    definition.steps[0].name = "a\"]; evil --> b\n".to_owned();
    assert!(
        mermaid(&definition).contains(r##"s0(["a#34;#93;#59; evil --#62; b#10;"])"##),
        "{}",
        mermaid(&definition)
    );
    assert!(
        dot(&definition).contains(r#"s0 [label="a\"]; evil --> b ", style=rounded];"#),
        "{}",
        dot(&definition)
    );
}

#[test]
fn a_machine_is_drawn_with_its_states_and_what_leads_from_one_to_the_next() {
    let expense = files("good").into_iter().find(|path| path.ends_with("expense.yaml")).unwrap();
    let mut definition = read_file(&expense).unwrap().definition;
    let drawn = format!(
        "{}\n{}\n{}",
        mermaid(&definition),
        dot(&definition),
        serde_json::to_string_pretty(&graph(&definition)).unwrap()
    );
    snapshot("graph", &expense, &drawn);
    let machine = definition.machine.as_mut().unwrap();
    machine.states[0].name = "a\"]; evil --> b\n".to_owned();
    machine.states[1].on.get_mut("approve").unwrap()[0].condition = Some("a: b; c\n<d>".to_owned());
    let drawn = mermaid(&definition);
    assert!(drawn.contains(r##"state "a#34;#93;#59; evil --#62; b#10;" as s0"##), "{drawn}");
    assert!(drawn.contains("approve [a#58; b#59; c#10;#60;d#62;] (manager)"), "{drawn}");
}

fn function(name: &str) -> StepDefinition {
    StepDefinition::new(name, Runner::Function(name.to_owned()))
}

#[test]
fn a_flow_built_in_rust_is_told_the_path_in_place_of_the_line() {
    let mut definition = Definition::new("built");
    definition.steps.push(StepDefinition { returns: Some("order.paid".to_owned()), ..function("pay") });
    let waits = Subscribes::All(vec![
        Subscribes::Step("pay".to_owned()),
        Subscribes::Event("order.payed".to_owned()),
    ]);
    definition.steps.push(StepDefinition { subscribes: Some(waits), ..function("order.ship") });
    definition.steps.push(function("pay"));
    definition.steps.push(StepDefinition {
        queue: "q".to_owned(),
        ..StepDefinition::new("far", Runner::Worker("w".to_owned()))
    });
    let refused = definition.validate().unwrap_err();
    insta::with_settings!({
        snapshot_path => "definitions/snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!("built-in-rust", format!("{refused}\n\n{}", refused.render(false)));
    });
}

#[test]
fn branches_that_meet_in_an_alternative_are_no_half_satisfied_join() {
    let text = r#"
flow: branches
steps:
  approve: { function: f, if: "input.ok", returns: approved }
  refuse: { function: f, if: "!input.ok", returns: refused }
  tell: { function: f, subscribes: { any: [approved, refused] }, returns: told }
  file: { function: f, subscribes: [told, { any: [approved, refused] }] }
  twice: { function: f, subscribes: [approved, step:approve] }
  lone: { function: f, subscribes: [approved] }
"#;
    let read =
        read("branches.yaml", text, Format::Yaml).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    assert_eq!(read.warnings.to_string(), "");
}

#[test]
fn words_that_older_yaml_took_for_booleans_stay_text() {
    let text = "flow: no\nsteps:\n  on: {function: off, returns: yes, queue: y, description: 'true'}\n  n: {function: f, subscribes: yes}\n";
    let definition = read("words.yaml", text, Format::Yaml)
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
        .definition;
    assert_eq!((definition.flow.as_str(), definition.steps[0].name.as_str()), ("no", "on"));
    assert_eq!(definition.steps[0].returns.as_deref(), Some("yes"));
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_no_mistake() {
    let text = "\u{feff}flow: windows\r\nsteps:\r\n  only:\r\n    function: only\r\n";
    assert_eq!(read("windows.yaml", text, Format::Yaml).unwrap().definition.steps[0].name, "only");
}

#[test]
fn a_format_is_known_by_the_ending_of_the_name() {
    assert_eq!(Format::of_path("flows/order.v2.YAML"), Some(Format::Yaml));
    assert_eq!(Format::of_path("order.yml"), Some(Format::Yaml));
    assert_eq!(Format::of_path("order.toml"), Some(Format::Toml));
    assert_eq!(Format::of_path("order.json"), Some(Format::Json));
    assert_eq!(Format::of_path("order"), None);
}
