//! The source text of the checker and of the simulator's model: they judge what the engine decides, so they may use nothing
//! that the engine decides with.

use super::rust::has_word;
use super::{Finding, Tree};

/// Where the judges are, and what they're called.
const JUDGES: &[(&str, &str)] = &[("crates/check/src/", "checker"), ("crates/sim/src/model/", "model")];
/// Names of core that hold the engine's own idea of what is right.
const BARRED: &[&str] = &["decide", "Decision", "RunState", "Fact", "Plan", "plan", "encode", "planted"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !file.test) {
        let Some((_, judge)) = JUDGES.iter().find(|(folder, _)| file.path.starts_with(folder)) else {
            continue;
        };
        for (at, line) in file.lines.iter().enumerate().filter(|(_, line)| !line.test) {
            for name in BARRED.iter().filter(|name| has_word(&line.code, name)) {
                let message = format!("`{name}` in the {judge}");
                let remedy =
                    "write the rule from the invariant: a bug that both share is a bug that nobody finds";
                findings.push(Finding::new(file.path, at + 1, message, remedy));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_checker_and_the_model_may_not_name_what_they_judge() {
        let text = "//! x\nuse flowline_core::{Event, RunState};\nfn f() { flowline_core::decide::decide(); }\n\
            fn g(plan: &Plan) {}\n";
        assert_eq!(lines("crates/check/src/walk.rs", text), [2, 3, 4, 4]);
        assert_eq!(lines("crates/sim/src/model/predict.rs", text), [2, 3, 4, 4]);
    }

    #[test]
    fn comments_tests_and_other_crates_are_free() {
        let text = "//! not `decide`\n#[cfg(test)]\nmod tests { use flowline_core::decide; }\n";
        assert_eq!(lines("crates/check/src/walk.rs", text), [0; 0]);
        assert_eq!(lines("crates/flowline/src/verify.rs", "use flowline_core::RunState;\n"), [0; 0]);
        assert_eq!(lines("crates/check/tests/damage.rs", "use flowline_core::RunState;\n"), [0; 0]);
    }
}
