//! JSON with positions. Strict: no comments, no trailing commas, no second value.

use std::ops::Range;

use serde_json::Number;

use super::{Map, MapEntry, Node, NodeValue, syntax, too_deep};
use crate::definition::diagnostic::Diagnostic;
use crate::limits;

pub(super) fn parse(text: &str) -> Result<Node, Diagnostic> {
    let mut parser = Parser { text, at: 0 };
    parser.space();
    if parser.at == text.len() {
        let help = Some("start with {\"flow\": NAME, …} or {\"machine\": NAME, …}");
        return Err(syntax("empty-file", "the file is empty".to_owned(), 0..0, help));
    }
    let node = parser.value(0)?;
    parser.space();
    match parser.peek() {
        None => Ok(node),
        Some(_) => Err(parser.error("expected the end of the file", Some("a file has one definition"))),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Node, Diagnostic> {
        let start = self.at;
        if depth > limits::JSON_DEPTH {
            return Err(too_deep(self.here()));
        }
        let value = match self.peek() {
            Some('{') => NodeValue::Map(self.map(depth)?),
            Some('[') => NodeValue::List(self.list(depth)?),
            Some('"') => NodeValue::String(self.string()?),
            Some('-' | '0'..='9') => NodeValue::Number(self.number()?),
            _ => self.word()?,
        };
        Ok(Node::new(value, start..self.at))
    }

    fn map(&mut self, depth: usize) -> Result<Map, Diagnostic> {
        let mut map = Map::default();
        self.at += 1;
        self.space();
        if self.eat('}') {
            return Ok(map);
        }
        loop {
            self.space();
            let start = self.at;
            match self.peek() {
                Some('"') => {}
                Some('}') => return Err(self.extra_comma()),
                _ => return Err(self.error("expected a key in double quotes", None)),
            }
            let key = self.string()?;
            let key_span = start..self.at;
            self.space();
            if !self.eat(':') {
                return Err(self.error("expected ':' after the key", None));
            }
            self.space();
            let value = self.value(depth + 1)?;
            map.insert(MapEntry { key, key_span, value })?;
            self.space();
            if self.eat('}') {
                return Ok(map);
            }
            if !self.eat(',') {
                return Err(self.error("expected ',' or '}'", None));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Diagnostic> {
        let mut items = Vec::new();
        self.at += 1;
        self.space();
        if self.eat(']') {
            return Ok(items);
        }
        loop {
            self.space();
            if self.peek() == Some(']') {
                return Err(self.extra_comma());
            }
            items.push(self.value(depth + 1)?);
            self.space();
            if self.eat(']') {
                return Ok(items);
            }
            if !self.eat(',') {
                return Err(self.error("expected ',' or ']'", None));
            }
        }
    }

    /// Finds the end of the string; its escapes are serde_json's business.
    fn string(&mut self) -> Result<String, Diagnostic> {
        let start = self.at;
        let mut escaped = false;
        for (offset, byte) in self.text.as_bytes()[start..].iter().enumerate().skip(1) {
            match byte {
                b'\n' => break,
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.at = start + offset + 1;
                    let raw = &self.text[start..self.at];
                    return serde_json::from_str(raw).map_err(|_| {
                        let message =
                            "this string has a character or escape that JSON doesn't allow".to_owned();
                        let help = Some("write control characters as \\n, \\t or \\u00XX");
                        syntax("syntax", message, start..self.at, help)
                    });
                }
                _ => {}
            }
        }
        let help = Some("add '\"', or write line breaks as \\n");
        Err(self.error("this string has no closing quote on its line", help))
    }

    fn number(&mut self) -> Result<Number, Diagnostic> {
        let start = self.at;
        let raw =
            self.text[start..].split(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).next();
        let raw = raw.unwrap_or_default();
        self.at += raw.len();
        let parsed = match raw.parse::<Number>() {
            // The standard library's reading is exact, so that a number survives being written and read again.
            Ok(number) if number.is_f64() => raw.parse::<f64>().ok().and_then(Number::from_f64),
            other => other.ok(),
        };
        parsed.ok_or_else(|| syntax("syntax", format!("{raw:?} isn't a JSON number"), start..self.at, None))
    }

    fn word(&mut self) -> Result<NodeValue, Diagnostic> {
        for (word, value) in
            [("true", NodeValue::Bool(true)), ("false", NodeValue::Bool(false)), ("null", NodeValue::Null)]
        {
            let rest = &self.text[self.at..];
            if rest.starts_with(word)
                && !rest[word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
            {
                self.at += word.len();
                return Ok(value);
            }
        }
        let help = match self.peek() {
            Some('\'') => Some("JSON strings need double quotes"),
            Some('/' | '#') => Some("JSON has no comments; use YAML or TOML for that"),
            Some(c) if c.is_alphabetic() => Some("text needs double quotes"),
            _ => None,
        };
        Err(self.error("expected a value", help))
    }

    fn error(&self, message: &str, help: Option<&str>) -> Diagnostic {
        let Some(found) = self.peek() else {
            let end = self.text.trim_end().len();
            let help = help.or(Some("close the open brackets and quotes"));
            return syntax("syntax", format!("{message}, found the end of the file"), end..end, help);
        };
        syntax("syntax", format!("{message}, found {found:?}"), self.here(), help)
    }

    fn extra_comma(&self) -> Diagnostic {
        let comma = self.text[..self.at].rfind(',').unwrap_or(self.at);
        let message = "JSON doesn't allow a trailing comma".to_owned();
        syntax("syntax", message, comma..comma + 1, Some("remove the comma"))
    }

    fn here(&self) -> Range<usize> {
        self.at..self.at + self.peek().map_or(0, char::len_utf8)
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
    }
}
