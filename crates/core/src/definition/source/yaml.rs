//! YAML 1.2 with positions.
//!
//! Only `true` and `false` are booleans; `no`, `on` and `True` stay text. Aliases work, up to a bound on what they unfold
//! to. Refused: a second document, tags other than `!!str`, keys that are not scalars, `.inf` and `.nan`.

use std::collections::BTreeMap;
use std::ops::Range;

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::Number;

use super::{Map, MapEntry, Node, NodeValue, syntax, tidy, too_deep};
use crate::definition::diagnostic::Diagnostic;
use crate::limits;

/// Values that all aliases of a file may unfold to together.
const ALIASED_NODES: usize = 100_000;

pub(super) fn parse(text: &str) -> Result<Node, Diagnostic> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader { text, parser, anchors: BTreeMap::new(), aliased: 0 };
    reader.document()
}

struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, (Node, usize)>,
    aliased: usize,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Node, Diagnostic> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(..) if root.is_some() => {
                    let message = "a second document starts here".to_owned();
                    let help = Some("put each flow in its own file");
                    return Err(syntax("second-document", message, span, help));
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => root = Some(self.node(event, span, 0)?.0),
            }
        }
        root.filter(|node| !matches!(node.value, NodeValue::Null)).ok_or_else(|| {
            let help = Some("start with flow: NAME and steps:, or with machine: NAME and states:");
            syntax("empty-file", "the file is empty".to_owned(), 0..0, help)
        })
    }

    /// The node that `event` opens, and how many nodes it holds.
    fn node(
        &mut self,
        event: Event<'a>,
        span: Range<usize>,
        depth: usize,
    ) -> Result<(Node, usize), Diagnostic> {
        if depth > limits::JSON_DEPTH {
            return Err(too_deep(span));
        }
        let (node, size, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let as_text = style != ScalarStyle::Plain || self.is_text(tag.as_deref(), &span)?;
                let value = if as_text { NodeValue::String(text.into_owned()) } else { plain(&text, &span)? };
                (Node::new(value, span), 1, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), &span)?;
                let (node, size) = self.list(span, depth)?;
                (node, size, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), &span)?;
                let (node, size) = self.map(span, depth)?;
                (node, size, anchor)
            }
            Event::Alias(id) => return self.alias(id, span, depth),
            other => {
                return Err(syntax(
                    "syntax",
                    format!("Flowline doesn't support this YAML: {other:?}"),
                    span,
                    None,
                ));
            }
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok((node, size))
    }

    fn list(&mut self, start: Range<usize>, depth: usize) -> Result<(Node, usize), Diagnostic> {
        let (mut items, mut size, mut span) = (Vec::new(), 1, start);
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok((Node::new(NodeValue::List(items), self.closed(span, at)), size));
            }
            let (node, nodes) = self.node(event, at, depth + 1)?;
            span.end = span.end.max(node.span.end);
            size += nodes;
            items.push(node);
        }
    }

    fn map(&mut self, start: Range<usize>, depth: usize) -> Result<(Node, usize), Diagnostic> {
        let (mut map, mut size, mut span) = (Map::default(), 1, start);
        loop {
            let (event, at) = self.next()?;
            let key = match event {
                Event::MappingEnd => {
                    return Ok((Node::new(NodeValue::Map(map), self.closed(span, at)), size));
                }
                Event::Scalar(text, ..) => text.into_owned(),
                _ => {
                    let message = "a key must be plain text".to_owned();
                    let help = Some("write out the key; quote it if it has special characters");
                    return Err(syntax("syntax", message, at, help));
                }
            };
            let (event, value_at) = self.next()?;
            let (value, nodes) = self.node(event, value_at, depth + 1)?;
            span.end = span.end.max(value.span.end);
            size += nodes;
            map.insert(MapEntry { key, key_span: at, value })?;
        }
    }

    /// Where a collection ends: at its bracket, or for block style at its last value.
    fn closed(&self, span: Range<usize>, end: Range<usize>) -> Range<usize> {
        let bracket = matches!(self.text.as_bytes().get(end.start), Some(b']' | b'}')) && end.end > end.start;
        span.start..if bracket { end.end } else { span.end }
    }

    fn alias(&mut self, id: usize, span: Range<usize>, depth: usize) -> Result<(Node, usize), Diagnostic> {
        let Some((node, size)) = self.anchors.get(&id).cloned() else {
            let message = "this alias is inside the value that it refers to".to_owned();
            return Err(syntax("syntax", message, span, Some("a value can't contain itself; write it out")));
        };
        self.aliased += size;
        if self.aliased > ALIASED_NODES {
            let message = format!("the aliases in this file expand to more than {ALIASED_NODES} values");
            return Err(syntax("too-large", message, span, Some("use fewer or smaller aliases")));
        }
        if depth + height(&node) > limits::JSON_DEPTH {
            return Err(too_deep(span));
        }
        Ok((Node::new(node.value, span), size))
    }

    fn is_text(&self, tag: Option<&Tag>, span: &Range<usize>) -> Result<bool, Diagnostic> {
        match tag {
            Some(tag) if tag.core_suffix() == Some("str") => Ok(true),
            tag => self.refuse_tag(tag, span).map(|()| false),
        }
    }

    fn refuse_tag(&self, tag: Option<&Tag>, span: &Range<usize>) -> Result<(), Diagnostic> {
        let Some(tag) = tag else { return Ok(()) };
        let message = format!("the tag {:?} isn't supported", tag.original());
        Err(syntax("syntax", message, span.clone(), Some("remove the tag; to make a value text, quote it")))
    }

    fn next(&mut self) -> Result<(Event<'a>, Range<usize>), Diagnostic> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, self.range(&span))),
            Some(Err(error)) => {
                let at = error.marker().byte_offset().unwrap_or(0);
                let end = self
                    .text
                    .get(at..)
                    .and_then(|rest| rest.chars().next())
                    .map_or(at, |c| at + c.len_utf8());
                let help = "check the indentation, brackets and quotes here and on the lines just before";
                let message = format!("this isn't valid YAML: {}", error.info());
                Err(syntax("syntax", message, tidy(self.text, at..end), Some(help)))
            }
            None => Ok((Event::StreamEnd, self.text.len()..self.text.len())),
        }
    }

    fn range(&self, span: &Span) -> Range<usize> {
        tidy(self.text, span.byte_range().unwrap_or(0..0))
    }
}

fn height(node: &Node) -> usize {
    1 + match &node.value {
        NodeValue::List(items) => items.iter().map(height).max().unwrap_or(0),
        NodeValue::Map(map) => map.entries().iter().map(|entry| height(&entry.value)).max().unwrap_or(0),
        _ => 0,
    }
}

/// What a scalar without quotes means.
fn plain(text: &str, span: &Range<usize>) -> Result<NodeValue, Diagnostic> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => NodeValue::Null,
        "true" => NodeValue::Bool(true),
        "false" => NodeValue::Bool(false),
        _ => match number(text) {
            Some(Some(number)) => NodeValue::Number(number),
            Some(None) => {
                let message = format!("{text} isn't a number that JSON can represent");
                return Err(syntax("syntax", message, span.clone(), Some("quote it if it's meant as text")));
            }
            None => NodeValue::String(text.to_owned()),
        },
    })
}

/// None for text; `Some(None)` for a number that JSON has no form for.
fn number(text: &str) -> Option<Option<Number>> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(digits, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Some(None);
    }
    if let Some((radix, digits)) =
        text.strip_prefix("0x").map(|d| (16, d)).or(text.strip_prefix("0o").map(|d| (8, d)))
    {
        let all_digits = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
        return all_digits.then(|| u64::from_str_radix(digits, radix).ok().map(Number::from));
    }
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        let whole = text.strip_prefix('+').unwrap_or(text);
        let signed = whole.parse::<i64>().ok().map(Number::from);
        let number = signed.or_else(|| whole.parse::<u64>().ok().map(Number::from));
        return Some(number.or_else(|| whole.parse().ok().and_then(Number::from_f64)));
    }
    let looks_like_float = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.contains(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    if !looks_like_float {
        return None;
    }
    text.parse::<f64>().ok().map(Number::from_f64)
}
