//! The server section of the README, run block by block as it stands.
#![cfg(unix)]

#[allow(dead_code)]
#[path = "http/served.rs"]
mod served;

use std::process::{Child, Command};

use served::Served;

const README: &str = include_str!("../../../README.md");

struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The code blocks of a section with their languages, in order.
fn blocks(section: &str) -> Vec<(&'static str, &'static str)> {
    let (_, text) = README.split_once(&format!("## {section}\n")).expect("the section is there");
    let text = text.split("\n## ").next().unwrap_or_default();
    let fences: Vec<&str> = text.split("```").collect();
    fences.chunks(2).filter_map(|chunk| chunk.get(1)?.split_once('\n')).collect()
}

#[test]
fn the_path_of_a_newcomer_works_as_it_is_written() {
    let blocks = blocks("A server");
    let languages: Vec<&str> = blocks.iter().map(|(language, _)| *language).collect();
    assert_eq!(languages, ["console", "console", "python", "console"]);
    let folder = tempfile::tempdir().unwrap();
    let arguments: Vec<&str> =
        blocks[0].1.trim().strip_prefix("cargo run -- ").expect("how it is run").split(' ').collect();
    let served = Served::command(folder.path(), &[&arguments[..], &["--listen", "127.0.0.1:0"]].concat());
    let served = served.unwrap_or_else(|said| panic!("the server did not start: {said}"));
    let here = |text: &str| text.replace("localhost:7400", &served.address.to_string());

    std::fs::write(folder.path().join("worker.py"), here(blocks[2].1)).unwrap();
    let lines = blocks[2].1.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 15, "{lines} lines");
    let worker = Command::new("python3")
        .arg("worker.py")
        .current_dir(folder.path())
        .spawn()
        .expect("python3 is there");
    let _worker = Worker(worker);

    // One shell, because the second block names the run for the third.
    let script = format!("set -e\n{}\n{}", here(blocks[1].1), here(blocks[3].1));
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        .output()
        .expect("bash is there");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for expected in [
        "\"created\":true",
        "event: step.started",
        "event: flow.completed",
        "Dear Ada",
        "\"status\":\"completed\"",
        "flowline_runs_ended_total",
    ] {
        assert!(said.contains(expected), "no {expected} in {said}");
    }
}
