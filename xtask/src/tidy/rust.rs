//! Rust text taken apart just far enough for tidy: code, comments and test code told from one another.
//!
//! Not a parser. String contents are blanked, so a needle found in `code` is code. What it cannot see: code
//! made by macros.

/// One line of a Rust file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SourceLine {
    /// The code, with comments removed and the insides of strings blanked.
    pub(super) code: String,
    /// The text of comments, without their slashes.
    pub(super) comment: String,
    /// Part of an item under `#[cfg(test)]`.
    pub(super) test: bool,
}

impl SourceLine {
    /// The name in `mod name;`, when the line declares a module that lives in another file.
    pub(super) fn module_declared(&self) -> Option<&str> {
        let (before, name) = self.code.trim().strip_suffix(';')?.rsplit_once(' ')?;
        (before == "mod" || before.ends_with(" mod")).then_some(name)
    }
}

/// One name that a `use` brings into scope.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// Where the statement begins, from 1.
    pub(super) line: usize,
    /// The full path, groups expanded: `std::fs` for the first of `use std::{fs, io}`.
    pub(super) path: String,
    /// The name in scope: the alias or the last segment.
    pub(super) name: String,
    pub(super) test: bool,
}

pub(super) fn read(text: &str) -> Vec<SourceLine> {
    let mut lines = split(text);
    mark_tests(&mut lines);
    lines
}

/// Every name brought in by the `use` statements of a file.
pub(super) fn uses(lines: &[SourceLine]) -> Vec<Use> {
    let mut uses = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        for start in word_positions(&line.code, "use") {
            let mut statement = line.code[start + "use".len()..].to_owned();
            for next in &lines[at + 1..] {
                if statement.contains(';') {
                    break;
                }
                statement.push(' ');
                statement.push_str(&next.code);
            }
            // `impl Trait + use<'a>` is the other meaning of the word.
            if !statement.starts_with('<') {
                let mut paths = Vec::new();
                expand("", statement.split(';').next().unwrap_or_default(), &mut paths);
                uses.extend(paths.into_iter().map(|(path, name)| Use {
                    line: at + 1,
                    path,
                    name,
                    test: line.test,
                }));
            }
        }
    }
    uses
}

/// Whether `needle` stands in `code` and is not part of a longer name.
pub(super) fn has_word(code: &str, needle: &str) -> bool {
    word_positions(code, needle).next().is_some()
}

pub(super) fn word_positions<'a>(code: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(needle).map(|(at, _)| at).filter(move |at| {
        !code[..*at].ends_with(part_of_name) && !code[at + needle.len()..].starts_with(part_of_name)
    })
}

/// Expands a use tree into (path, name in scope) pairs.
fn expand(prefix: &str, tree: &str, out: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let prefix = format!("{prefix}{}", head.trim());
        for part in top_level_parts(rest.rsplit_once('}').map_or(rest, |(inner, _)| inner)) {
            expand(&prefix, part, out);
        }
    } else if !tree.is_empty() {
        let (path, alias) =
            tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name.trim())));
        let path = format!("{prefix}{}", path.trim());
        let path = path.trim_start_matches("::").trim_end_matches("::self").to_owned();
        let last = path.rsplit("::").next().unwrap_or_default().to_owned();
        out.push((path, alias.map_or(last, str::to_owned)));
    }
}

fn top_level_parts(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

#[derive(Clone, Copy, PartialEq)]
enum In {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Text,
    RawText { hashes: usize },
}

fn split(text: &str) -> Vec<SourceLine> {
    let chars: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    let mut line = SourceLine::default();
    let (mut state, mut at) = (In::Code, 0);
    while at < chars.len() {
        let c = chars[at];
        if c == '\n' {
            lines.push(std::mem::take(&mut line));
            if state == In::LineComment {
                state = In::Code;
            }
            at += 1;
            continue;
        }
        let (next, taken) = step(&chars, at, state);
        match (state, next) {
            (In::LineComment | In::BlockComment { .. }, In::LineComment | In::BlockComment { .. }) => {
                line.comment.extend(&chars[at..at + taken]);
            }
            (In::Code, In::Code) if taken > 1 => line.code.push_str("' '"),
            (In::Code, In::Code | In::Text | In::RawText { .. }) => line.code.extend(&chars[at..at + taken]),
            // The quote that ends a text.
            (In::Text | In::RawText { .. }, In::Code) => line.code.push('"'),
            (In::Text | In::RawText { .. }, _) => line.code.push(' '),
            _ => {}
        }
        state = next;
        at += taken;
    }
    if !line.code.is_empty() || !line.comment.is_empty() {
        lines.push(line);
    }
    lines
}

/// What follows the characters at `at`, and how many of them belong together. Never takes a newline.
fn step(chars: &[char], at: usize, state: In) -> (In, usize) {
    let peek = |ahead: usize| chars.get(at + ahead).copied().unwrap_or('\n');
    match (state, chars[at], peek(1)) {
        (In::Code, '/', '/') => (In::LineComment, 2),
        (In::Code, '/', '*') => (In::BlockComment { depth: 1 }, 2),
        (In::Code, '"', _) => (In::Text, 1),
        (In::Code, 'r', _) => raw_text(chars, at).unwrap_or((In::Code, 1)),
        // A quoted character may be a quote or a brace; a lifetime has no closing quote.
        (In::Code, '\'', '\\') if peek(3) == '\'' => (In::Code, 4),
        (In::Code, '\'', next) if next != '\n' && peek(2) == '\'' => (In::Code, 3),
        (In::BlockComment { depth }, '/', '*') => (In::BlockComment { depth: depth + 1 }, 2),
        (In::BlockComment { depth: 1 }, '*', '/') => (In::Code, 2),
        (In::BlockComment { depth }, '*', '/') => (In::BlockComment { depth: depth - 1 }, 2),
        (In::Text, '\\', next) if next != '\n' => (In::Text, 2),
        (In::Text, '"', _) => (In::Code, 1),
        (In::RawText { hashes }, '"', _) if (1..=hashes).all(|ahead| peek(ahead) == '#') => {
            (In::Code, 1 + hashes)
        }
        _ => (state, 1),
    }
}

/// `r"`, `r#"`, `br"` …; not the `r#` of a raw name.
fn raw_text(chars: &[char], at: usize) -> Option<(In, usize)> {
    let part_of_name = |c: &char| c.is_alphanumeric() || *c == '_';
    let before = match at.checked_sub(1).map(|before| chars[before]) {
        Some('b' | 'c') => at.checked_sub(2),
        _ => at.checked_sub(1),
    };
    if before.is_some_and(|before| part_of_name(&chars[before])) {
        return None;
    }
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some((In::RawText { hashes }, 2 + hashes))
}

/// Marks the lines of every item under `#[cfg(test)]`.
fn mark_tests(lines: &mut [SourceLine]) {
    if lines.iter().any(|line| line.code.contains("#![cfg(test)]")) {
        lines.iter_mut().for_each(|line| line.test = true);
        return;
    }
    let mut at = 0;
    while at < lines.len() {
        let code = &lines[at].code;
        let attribute =
            ["#[cfg(test)]", "#[cfg(all(test,"].iter().find_map(|a| Some(code.find(a)? + a.len()));
        let end = attribute.map_or(at, |from| item_end(lines, at, from));
        if attribute.is_some() {
            lines[at..=end].iter_mut().for_each(|line| line.test = true);
        }
        at = end + 1;
    }
}

/// The line on which the item after line `first`, byte `from`, ends: at its `;` or closing brace.
fn item_end(lines: &[SourceLine], first: usize, from: usize) -> usize {
    let (mut depth, mut braces) = (0_i32, 0_i32);
    for (at, line) in lines.iter().enumerate().skip(first) {
        let code = if at == first { &line.code[from..] } else { &line.code };
        for c in code.chars() {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                '{' => braces += 1,
                '}' => {
                    braces -= 1;
                    if braces <= 0 {
                        return at;
                    }
                }
                ';' if depth <= 0 && braces == 0 => return at,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        read(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn strings_are_blanked_and_comments_kept_apart() {
        let lines = read("let a = \"x // y\"; // why\n/* one\ntwo */ let b = 1;\n");
        assert_eq!(lines[0].code, "let a = \"      \"; ");
        assert_eq!(lines[0].comment, " why");
        assert_eq!(lines[1], SourceLine { comment: " one".into(), ..SourceLine::default() });
        assert_eq!(lines[2].comment, "two ");
        assert_eq!(lines[2].code, " let b = 1;");
    }

    #[test]
    fn quotes_in_characters_raw_strings_and_escapes_do_not_derail() {
        assert_eq!(
            code("('\"', b'\\'', '{', '\\\\', '\\u{7d}') // c"),
            ["(' ', b' ', ' ', ' ', '\\u{7d}') "]
        );
        assert_eq!(code("f(r#\"a \" b\"#, 1)")[0].replace(' ', ""), "f(r#\"\",1)");
        assert_eq!(code("f(\"a\\\"b\", x)")[0].replace(' ', ""), "f(\"\",x)");
        assert_eq!(code("fn f<'a>(r#type: &'a str) {} // x"), ["fn f<'a>(r#type: &'a str) {} "]);
        assert_eq!(code("let a = \"one\\\ntwo\";\nlet b;")[2], "let b;");
    }

    #[test]
    fn only_the_item_under_cfg_test_is_test_code() {
        let text = "#[cfg(test)]\nmod fixtures;\nfn real() {}\n#[cfg(test)]\nmod tests {\n    fn a() {}\n}\nfn late() {}\n";
        let test: Vec<_> = read(text).into_iter().map(|line| line.test).collect();
        assert_eq!(test, [true, true, false, true, true, true, true, false]);
    }

    #[test]
    fn use_groups_expand_to_full_paths() {
        let lines = read(
            "pub use std::{\n    collections::{BTreeMap, BTreeSet as Set},\n    fs::{self},\n};\nuse ::serde::de;\n",
        );
        let found: Vec<_> = uses(&lines).into_iter().map(|u| (u.line, u.path, u.name)).collect();
        let expected = [
            (1, "std::collections::BTreeMap", "BTreeMap"),
            (1, "std::collections::BTreeSet", "Set"),
            (1, "std::fs", "fs"),
            (5, "serde::de", "de"),
        ];
        assert_eq!(found, expected.map(|(line, path, name)| (line, path.to_owned(), name.to_owned())));
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("let x = std::fs::read(p);", "std::fs"));
        assert!(!has_word("let x = mystd::fsx;", "std::fs"));
        assert!(!has_word("tokio_like", "tokio"));
    }
}
