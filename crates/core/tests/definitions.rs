//! Definition files as users write them: what is refused and how that reads, and what is taken.

// Tests read the files that they are about; the crate itself never does.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};

use flowline_core::Definition;
use flowline_core::definition::{Diagnostics, Format, Read, read};

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

#[test]
fn doubtful_files_are_taken_with_warnings() {
    for path in files("warned") {
        let read = read_file(&path).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        assert!(!read.warnings.is_empty());
        snapshot("warned", &path, &read.warnings.render(false));
    }
}

#[test]
fn good_files_mean_the_same_in_three_formats() {
    let mut by_stem: std::collections::BTreeMap<String, Vec<Definition>> = Default::default();
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
