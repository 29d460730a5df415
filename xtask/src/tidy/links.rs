//! Links in Markdown that stay in the repository: the file exists, and so does the heading.
//!
//! Links to elsewhere are not followed: a check must not depend on the network.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut anchors = BTreeMap::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in links(text) {
            let (file, anchor) =
                target.split_once('#').map_or((target.as_str(), None), |(f, a)| (f, Some(a)));
            let found = if file.is_empty() { Some(path.to_owned()) } else { resolve(path, file) };
            let Some(found) = found.filter(|found| found.is_empty() || tree.has(found)) else {
                let message = format!("the link `{target}` leads to no file of the repository");
                findings.push(Finding::new(path, line, message, "mend the path, relative to this file"));
                continue;
            };
            let heading = anchor.filter(|anchor| !anchor.is_empty() && found.ends_with(".md"));
            if let (Some(anchor), Some(text)) = (heading, tree.text(&found)) {
                let known: &BTreeSet<String> = anchors.entry(found.clone()).or_insert_with(|| headings(text));
                if !known.contains(&anchor.to_lowercase()) {
                    let message = format!("the link `{target}` names a heading that {found} does not have");
                    findings.push(Finding::new(path, line, message, "mend the part after `#`"));
                }
            }
        }
    }
    findings
}

/// The repository's path for `target` as written in the file `from`; nothing if it leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let target = target.replace("%20", " ");
    let mut parts: Vec<&str> = match target.starts_with('/') {
        true => Vec::new(),
        false => from.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Every target that stays in the repository, with its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (line, prose) in prose(text) {
        let inline = prose.match_indices("](").filter_map(|(at, _)| {
            let rest = &prose[at + 2..];
            rest.split_once(')').map(|(target, _)| target)
        });
        let definition = prose.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        // `[^1]: …` is a footnote.
        let definition = definition.filter(|(name, _)| !name.starts_with('^')).map(|(_, target)| target);
        for target in inline.chain(definition) {
            let target = target.trim();
            let target = match target.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
                Some((target, _)) => target,
                // What follows a blank is the title.
                None => target.split_whitespace().next().unwrap_or_default(),
            };
            if !target.is_empty() && !is_elsewhere(target) {
                links.push((line, target.to_owned()));
            }
        }
    }
    links
}

fn is_elsewhere(target: &str) -> bool {
    let scheme = target.split_once(':').map_or("", |(scheme, _)| scheme);
    target.starts_with("//")
        || (!scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+'))
}

/// The lines outside code fences, numbered from 1, with code spans blanked.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => lines.push((at + 1, without_code(line))),
        }
    }
    lines
}

/// Drops what stands between backticks; an unpaired one stays text.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let paired = parts.len() - usize::from(parts.len().is_multiple_of(2));
    parts.iter().enumerate().filter(|(at, _)| at % 2 == 0 || *at >= paired).map(|(_, part)| *part).collect()
}

/// The anchors that a rendered page offers: its headings' slugs and explicit `id="…"`.
fn headings(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    let fenced = prose(text).into_iter().map(|(line, _)| line).collect::<BTreeSet<_>>();
    for (_, line) in text.lines().enumerate().filter(|(at, _)| fenced.contains(&(at + 1))) {
        for id in line.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            anchors.insert(id.to_lowercase());
        }
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if (1..=6).contains(&level) && title.starts_with(' ') {
            let slug = slug(title.trim().trim_end_matches('#').trim_end());
            let nth = seen.entry(slug.clone()).or_default();
            anchors.insert(if *nth == 0 { slug } else { format!("{slug}-{nth}") });
            *nth += 1;
        }
    }
    anchors
}

/// A heading as code hosts turn it into an anchor: lower case, blanks as dashes, punctuation dropped.
fn slug(title: &str) -> String {
    // A link in a heading counts by its text.
    let mut text = title.to_owned();
    while let Some(at) = text.find("](") {
        let Some(end) = text[at..].find(')') else { break };
        text.replace_range(at..=at + end, "");
    }
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        check(&Tree::of(files)).into_iter().map(|f| (f.path, f.line)).collect()
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let text = "[a](docs/a.md) [b](docs/b.md)\n\n[c]: ../out.md\n![p](p.png \"title\")\n";
        let files = [("README.md", text), ("docs/a.md", "# A\n")];
        assert_eq!(
            found(&files),
            [("README.md".into(), 1), ("README.md".into(), 3), ("README.md".into(), 4)]
        );
    }

    #[test]
    fn links_resolve_from_their_file_and_from_the_root() {
        let text = "[r](../README.md) [d](../docs/) [s](./a.md) [t](/docs/a.md) [u](..)\n";
        assert_eq!(found(&[("README.md", ""), ("docs/a.md", text)]), []);
    }

    #[test]
    fn a_heading_must_exist() {
        let page = "# The `store` contract, v1\n## Same\n## Same\n```\n# not one\n```\n<a id=\"own\"></a>\n";
        let good = "[1](p.md#the-store-contract-v1) [2](p.md#same-1) [3](p.md#own) [4](#here)\n# Here\n";
        assert_eq!(found(&[("p.md", page), ("a.md", good)]), []);
        let bad = "[1](p.md#store)\n[2](p.md#same-2)\n[3](p.md#not-one)\n[4](#here)\n";
        assert_eq!(found(&[("p.md", page), ("a.md", bad)]).len(), 4);
    }

    #[test]
    fn code_and_other_places_are_not_links_of_ours() {
        let text = "`[a](b.md)` [x](https://example.org/b.md) [m](mailto:a@example.org)\n```\n[a](b.md)\n```\n[^1]: note\n";
        assert_eq!(found(&[("a.md", text)]), []);
    }
}
