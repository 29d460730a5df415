//! TOML with positions.

use std::ops::Range;

use serde_json::Number;
use toml::Spanned;
use toml::de::{DeInteger, DeString, DeTable, DeValue};

use super::{Map, MapEntry, Node, NodeValue, syntax, tidy, too_deep};
use crate::definition::diagnostic::Diagnostic;
use crate::limits;

pub(super) fn parse(text: &str) -> Result<Node, Diagnostic> {
    if let Some(span) = long_key(text) {
        return Err(too_deep(span));
    }
    // After the first error the parser guesses, and its guesses only confuse.
    let table = DeTable::parse(text).map_err(|error| {
        let span = tidy(text, error.span().unwrap_or(0..0));
        if error.message() == "duplicate key" {
            let message = format!("duplicate key {:?}", &text[span.clone()]);
            return syntax("duplicate-key", message, span, Some("remove or rename one of them"));
        }
        let help = "check the brackets and quotes here and on the lines just before";
        syntax("syntax", format!("this isn't valid TOML: {}", error.message()), span, Some(help))
    })?;
    let map = map(text, table.get_ref(), 0)?;
    if map.entries().is_empty() {
        let help = Some("start with flow = \"NAME\" or machine = \"NAME\"");
        return Err(syntax("empty-file", "the file is empty".to_owned(), 0..0, help));
    }
    Ok(Node::new(NodeValue::Map(map), 0..text.len()))
}

/// A line with more dots than the nesting allows: `a.a.a.…` would nest tables without any bracket.
fn long_key(text: &str) -> Option<Range<usize>> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let key = line.split(['=', '"', '\'', '#']).next().unwrap_or_default();
        if key.matches('.').count() > limits::JSON_DEPTH {
            return Some(tidy(text, start..start + key.len()));
        }
        start += line.len();
    }
    None
}

fn map(text: &str, table: &DeTable<'_>, depth: usize) -> Result<Map, Diagnostic> {
    // The table is sorted by key; the order of the file is the order of its keys' places.
    let mut entries: Vec<(&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut map = Map::default();
    for (key, value) in entries {
        let key_span = tidy(text, key.span());
        map.insert(MapEntry {
            key: key.get_ref().to_string(),
            key_span,
            value: node(text, value, depth + 1)?,
        })?;
    }
    Ok(map)
}

fn node(text: &str, value: &Spanned<DeValue<'_>>, depth: usize) -> Result<Node, Diagnostic> {
    let span = tidy(text, value.span());
    if depth > limits::JSON_DEPTH {
        return Err(too_deep(span));
    }
    let not_json = |raw: &str| {
        syntax("syntax", format!("{raw} isn't a number that JSON can represent"), span.clone(), None)
    };
    let value = match value.get_ref() {
        DeValue::String(s) => NodeValue::String(s.to_string()),
        DeValue::Boolean(b) => NodeValue::Bool(*b),
        DeValue::Integer(n) => NodeValue::Number(integer(n).ok_or_else(|| not_json(&n.to_string()))?),
        DeValue::Float(n) => {
            let number = n.as_str().parse().ok().and_then(Number::from_f64);
            NodeValue::Number(number.ok_or_else(|| not_json(n.as_str()))?)
        }
        DeValue::Datetime(time) => NodeValue::String(time.to_string()),
        DeValue::Array(items) => {
            NodeValue::List(items.iter().map(|item| node(text, item, depth + 1)).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => NodeValue::Map(map(text, table, depth)?),
    };
    Ok(Node::new(value, span))
}

fn integer(n: &DeInteger<'_>) -> Option<Number> {
    let signed = i64::from_str_radix(n.as_str(), n.radix()).ok().map(Number::from);
    signed.or_else(|| u64::from_str_radix(n.as_str(), n.radix()).ok().map(Number::from))
}
