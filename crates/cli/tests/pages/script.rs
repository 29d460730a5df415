//! The shell script that a page is.

use std::fmt::Write as _;

use crate::pages::page::{Block, Directive};

/// What a page's script is made with.
pub struct Surroundings {
    /// What stands for itself in every value of a `let`: `$POSTGRES` and its like, with what it is.
    pub known: Vec<(&'static str, String)>,
    /// Whether the page's Rust is compiled and run as doctests.
    pub doctests: bool,
    /// The text of the Rust program of this name.
    pub example: fn(&str) -> Result<String, String>,
}

/// A file that the script needs beside it, by name.
pub type Files = Vec<(String, String)>;

const KEYS: &[&str] = &[
    "prints",
    "resembles",
    "request",
    "skip",
    "store",
    "let",
    "before",
    "after",
    "file",
    "background",
    "example",
    "input",
    "ends",
    "run",
];

/// The script and its files, or what is wrong with the page, as `line: what`.
pub fn of(blocks: &[Block], around: &Surroundings) -> Result<(String, Files), String> {
    let mut script = String::new();
    let mut files = Files::new();
    let mut words: Vec<(String, String)> = Vec::new();
    for host in ["localhost", "127.0.0.1", "0.0.0.0"] {
        words.push((format!("{host}:7400"), around.expand("127.0.0.1:$PORT")));
    }
    for block in blocks {
        for directive in &block.directives {
            check(directive)?;
            match directive.key.as_str() {
                "let" => {
                    let split = directive.value.split_once(" = ");
                    let (word, stands) = split.ok_or(format!("{}: not `let A = B`", directive.line))?;
                    words.insert(0, (word.to_owned(), around.expand(stands)));
                }
                "store" => {
                    let url =
                        around.expand(&format!("${}", directive.value.to_uppercase().replace('-', "_")));
                    writeln!(script, "export FLOWLINE_STORE={}", quoted(&url)).expect("text");
                }
                _ => {}
            }
        }
        let text =
            words.iter().fold(block.text.clone(), |text, (word, stands)| replaced(&text, word, stands));
        if block.directive("skip").is_some() {
            continue;
        }
        let commands = commands(block, text, &mut files, around)?;
        writeln!(script, "at {}", block.line).expect("text");
        let before = block.directive("before").map(str::to_owned);
        let after = block.directive("after").filter(|_| !block.is_definition()).map(str::to_owned);
        for code in [before, commands, after].into_iter().flatten() {
            writeln!(script, "{}", code.trim_end()).expect("text");
        }
    }
    for (name, _) in files.iter().filter(|(name, _)| !name.starts_with("block-")) {
        let used = script.matches(name.as_str()).count() > 0
            || files.iter().any(|(other, text)| other != name && text.contains(name.as_str()));
        if !used {
            return Err(format!("0: {name} is saved, and nothing on the page uses it"));
        }
    }
    Ok((script, files))
}

fn check(directive: &Directive) -> Result<(), String> {
    let known = KEYS.contains(&directive.key.as_str()) || directive.key.starts_with("script ");
    let said = !directive.value.is_empty();
    (known && said)
        .then_some(())
        .ok_or(format!("{}: unknown or empty directive {:?}", directive.line, directive.key))
}

impl Surroundings {
    fn expand(&self, text: &str) -> String {
        // The longest first: one name may begin with another.
        let mut known: Vec<_> = self.known.iter().collect();
        known.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// What runs the block, if anything does.
fn commands(
    block: &Block,
    text: String,
    files: &mut Files,
    around: &Surroundings,
) -> Result<Option<String>, String> {
    let line = block.line;
    let mut language = block.language.split(',');
    let (name, attributes) = (language.next().unwrap_or_default(), language.collect::<Vec<_>>());
    if let Some(file) = block.directive("file") {
        files.push((file.to_owned(), text));
        return Ok(None);
    }
    if block.is_definition() {
        return Ok(Some(definition(block, text, files)));
    }
    let mut save = |ending: &str| {
        let file = format!("block-{line}.{ending}");
        files.push((file.clone(), text.clone()));
        file
    };
    match (name, block.directive("background")) {
        ("console" | "sh", None) if !text.starts_with("#!") => Ok(Some(text)),
        ("console" | "sh", Some(how)) => Ok(Some(background(&text, how))),
        ("python", None) => Ok(Some(format!("python3 {}", save("py")))),
        ("js", None) => Ok(Some(format!("node {}", save("mjs")))),
        ("sql", None) => {
            let file = save("sql");
            Ok(Some(format!("sql {file}")))
        }
        ("json", None) => match (block.directive("request"), block.directive("resembles")) {
            (Some(request), None) => Ok(Some(format!("request {request} {}", save("json")))),
            (None, Some(command)) => Ok(Some(resembles(command, &save("json")))),
            _ => Err(format!(
                "{line}: say what this JSON is: a `request`, or what it `resembles`; or `skip` it"
            )),
        },
        ("rust", None) => rust(block, &attributes, around).map(|()| None),
        ("text" | "mermaid", None) => {
            let file = save(name);
            let compare = |command| format!("{command} >printed\ndiff {file} printed");
            let printed = block.directive("prints").map(compare);
            Ok(printed.or(block.directive("resembles").map(|command| resembles(command, &file))))
        }
        _ => Err(format!("{line}: nothing runs this {name:?} block; say how, or why it cannot run (`skip`)")),
    }
}

/// A doctest that runs, or the text of a program that the page's directives run.
fn rust(block: &Block, attributes: &[&str], around: &Surroundings) -> Result<(), String> {
    let line = block.line;
    match (block.directive("example"), attributes) {
        (None, []) if around.doctests => Ok(()),
        (None, _) => {
            Err(format!("{line}: a doctest that is not run; make it an `example`, or say why not (`skip`)"))
        }
        (Some(name), _) => {
            let program = (around.example)(name)?;
            // Lines are broken and commas set otherwise by rustfmt.
            let plain = |text: &str| {
                text.chars().filter(|char| !char.is_whitespace() && *char != ',').collect::<String>()
            };
            let same = plain(&program).ends_with(&plain(&block.text));
            same.then_some(()).ok_or(format!("{line}: differs from crates/cli/examples/{name}.rs"))
        }
    }
}

/// Holds what the page shows against what a command prints.
fn resembles(command: &str, file: &str) -> String {
    format!("{{ {command}\n}} >.came\nshown hold {file} .came")
}

fn background(text: &str, how: &str) -> String {
    let started = format!("block() {{\n{}\n}}\nbehind block", text.trim_end());
    if how == "server" { format!("{started}\nserving") } else { started }
}

/// Validates it, runs it, and holds its end against what is expected.
fn definition(block: &Block, text: String, files: &mut Files) -> String {
    let named = text.split(['"', ' ', '\n']).filter(|word| !word.is_empty());
    let kinds = ["flow", "machine", "flow:", "machine:", "=", ":", "{"];
    let name = named.into_iter().find(|word| !kinds.contains(word)).unwrap_or("nameless");
    let file = format!("{name}.{}", block.language);
    // The same flow may be on a page more than once.
    let saved = format!("block-{}.{}", block.line, block.language);
    files.push((saved.clone(), text));
    let mut lines = vec![format!("cp {saved} {file}"), format!("flowline validate --strict {file}")];
    for directive in &block.directives {
        if let Some(script) = directive.key.strip_prefix("script ") {
            lines.push(format!("script {} {}", quoted(script), quoted(&directive.value)));
        }
    }
    lines.push(format!("stubs {file}"));
    lines.push(format!("INPUT={}", quoted(block.directive("input").unwrap_or("null"))));
    let run = format!("flowline run {file} --no-progress --input \"$INPUT\" || [ $? = 1 ]\nRUN=$(last)");
    lines.push(block.directive("run").map_or(run, str::to_owned));
    lines.extend(block.directive("after").map(str::to_owned));
    lines.push(format!("ended $RUN {}", block.directive("ends").unwrap_or("completed")));
    lines.join("\n")
}

/// In single quotes for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `text` with `word` replaced where it stands by itself.
fn replaced(text: &str, word: &str, stands: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, behind) = (&rest[..at], &rest[at + word.len()..]);
        let inside = |char: char| char.is_alphanumeric() || char == '_';
        let apart = !before
            .chars()
            .next_back()
            .or(out.chars().next_back())
            .is_some_and(|char| inside(char) || char == '$')
            && !behind.chars().next().is_some_and(|char| inside(char) || char == '=');
        out.push_str(before);
        out.push_str(if apart { stands } else { word });
        rest = behind;
    }
    out + rest
}

#[test]
fn a_word_is_replaced_where_it_stands_by_itself() {
    assert_eq!(replaced("RUN=1; show RUN $RUN RUNS x/RUN", "RUN", "7"), "RUN=1; show 7 $RUN RUNS x/7");
}

#[cfg(test)]
fn script_of(page: &str) -> Result<String, String> {
    let around = Surroundings {
        doctests: true,
        known: vec![("$PORT", "7".to_owned())],
        example: |_| Ok("fn main() {}".to_owned()),
    };
    of(&crate::pages::page::blocks(page).unwrap(), &around).map(|(script, _)| script)
}

#[test]
fn a_block_that_nothing_runs_is_refused() {
    for (page, expected) in [
        ("```\nls\n```\n", "1: nothing runs this \"\" block; say how, or why it cannot run (`skip`)"),
        ("```go\nx\n```\n", "1: nothing runs this \"go\" block; say how, or why it cannot run (`skip`)"),
        ("```json\n{}\n```\n", "1: say what this JSON is: a `request`, or what it `resembles`; or `skip` it"),
        (
            "```rust,ignore\nx\n```\n",
            "1: a doctest that is not run; make it an `example`, or say why not (`skip`)",
        ),
        ("<!-- test skipp: x -->\n```go\nx\n```\n", "1: unknown or empty directive \"skipp\""),
        ("<!-- test skip: -->\n```go\nx\n```\n", "1: unknown or empty directive \"skip\""),
        (
            "<!-- test file: a.py -->\n```python\nx\n```\n",
            "0: a.py is saved, and nothing on the page uses it",
        ),
        (
            "<!-- test example: a -->\n```rust\nfn main() { more() }\n```\n",
            "2: differs from crates/cli/examples/a.rs",
        ),
    ] {
        let error = script_of(page).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(script_of("<!-- test skip: a cluster -->\n```go\nx\n```\n"), Ok(String::new()));
}

#[test]
fn a_definition_is_run_to_its_end() {
    let script = script_of("<!-- test input: 1 -->\n```yaml\nflow: a\nsteps: {}\n```\n").unwrap();
    assert_eq!(
        script,
        "at 2\ncp block-2.yaml a.yaml\nflowline validate --strict a.yaml\nstubs a.yaml\n\
         INPUT='1'\nflowline run a.yaml --no-progress --input \"$INPUT\" || [ $? = 1 ]\nRUN=$(last)\nended $RUN completed\n"
    );
}
