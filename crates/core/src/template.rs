//! Text with expressions in it: `https://stock.example/orders/${input.id}`.
//!
//! `${…}` holds a CEL expression over [`VARIABLES`]; `$${` stands for a plain `${`. A template is split and parsed when
//! its definition is checked, so that at run time only a value can be wrong. It knows nothing of requests.

use std::borrow::Cow;

use serde_json::Value;

use crate::budget::{BYTES, Budget, TooCostly};
use crate::expr::{EvaluationError, Expr, Variables};

/// What the expressions of a template may read.
pub const VARIABLES: [&str; 3] = ["input", "run", "step"];

/// A part of a template's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    Text(Cow<'a, str>),
    /// The text of an expression.
    Expression(&'a str),
}

/// A `${` without its `}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has a `${{` without a closing `}}`")]
pub struct Unclosed;

/// Splits a text into plain parts and expressions.
pub fn split(text: &str) -> Result<Vec<Piece<'_>>, Unclosed> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            pieces.push(Piece::Text(format!("{before}${{").into()));
            rest = &rest[at + 2..];
            continue;
        }
        if at > 0 {
            pieces.push(Piece::Text(rest[..at].into()));
        }
        let inside = &rest[at + 2..];
        let end = end_of(inside).ok_or(Unclosed)?;
        pieces.push(Piece::Expression(&inside[..end]));
        rest = &inside[end + 1..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.into()));
    }
    Ok(pieces)
}

/// Where the `}` stands that ends an expression: outside its strings and its own braces.
fn end_of(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth == 0 => return Some(at),
            (None, '}') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

/// A parsed template.
#[derive(Debug)]
pub struct Template(Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(String),
    Expression(Expr, String),
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, String> {
        let pieces = split(text).map_err(|problem| problem.to_string())?;
        let part = |piece: Piece<'_>| match piece {
            Piece::Text(text) => Ok(Part::Text(text.into_owned())),
            Piece::Expression(text) => match Expr::parse(text) {
                Ok(expr) => Ok(Part::Expression(expr, text.to_owned())),
                Err(problem) => Err(format!("{text:?}: {problem}")),
            },
        };
        pieces.into_iter().map(part).collect::<Result<_, _>>().map(Template)
    }

    /// The one expression that it consists of, if it does: its value keeps its type.
    pub(crate) fn is_one_expression(&self) -> bool {
        matches!(self.0[..], [Part::Expression(..)])
    }

    pub(crate) fn reads_input(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Expression(expr, _) if expr.reads().input))
    }

    /// The value of a template that is one expression, or its text.
    pub(crate) fn value(&self, variables: &Variables, budget: &Budget) -> Result<Value, EvaluationError> {
        match &self.0[..] {
            [Part::Expression(expr, text)] => evaluate(expr, text, variables, budget),
            _ => self.text(variables, budget, str::to_owned).map(Value::String),
        }
    }

    /// Its text. What expressions give is put in by `put`; only text, numbers and booleans can be. What they give together
    /// is limited like what one evaluation makes: they can repeat a large input many times.
    pub(crate) fn text(
        &self,
        variables: &Variables,
        budget: &Budget,
        put: impl Fn(&str) -> String,
    ) -> Result<String, EvaluationError> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Expression(expr, source) => match evaluate(expr, source, variables, budget)? {
                    Value::String(value) => text.push_str(&put(&value)),
                    value @ (Value::Number(_) | Value::Bool(_)) => text.push_str(&put(&value.to_string())),
                    Value::Null => return Err(format!("`{source}` gave null").into()),
                    Value::Array(_) | Value::Object(_) => {
                        let problem = format!("`{source}` gave a list or a map, which can't be used as text");
                        return Err(problem.into());
                    }
                },
            }
            if text.len() as u64 > BYTES {
                return Err(TooCostly::Bytes.into());
            }
        }
        Ok(text)
    }
}

fn evaluate(
    expr: &Expr,
    text: &str,
    variables: &Variables,
    budget: &Budget,
) -> Result<Value, EvaluationError> {
    expr.evaluate_in(variables, budget).map_err(|problem| problem.at(format_args!("`{text}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::CelPayload;
    use serde_json::json;

    fn variables() -> Variables {
        let input = json!({ "id": 7, "name": "a/b", "tags": ["x"], "none": null });
        Variables::of([("input", CelPayload::parsed(input))])
    }

    fn text(template: &str) -> Result<String, String> {
        let text = Template::parse(template).unwrap().text(&variables(), &Budget::default(), str::to_owned);
        text.map_err(|problem| problem.to_string())
    }

    #[test]
    fn an_expression_ends_at_its_own_brace() {
        for (whole, inside) in [
            ("${input.id}", "input.id"),
            ("${{'a': {'b': 1}}.a.b}", "{'a': {'b': 1}}.a.b"),
            ("${'}' + \"}\\\"}\"}", "'}' + \"}\\\"}\""),
        ] {
            assert_eq!(split(whole), Ok(vec![Piece::Expression(inside)]), "{whole}");
        }
        assert_eq!(split("a ${input.id"), Err(Unclosed));
        assert_eq!(split("${'}"), Err(Unclosed));
    }

    #[test]
    fn two_dollars_stand_for_a_plain_brace() {
        assert_eq!(
            text("$${input.id} costs $5 or ${input.id}$"),
            Ok("${input.id} costs $5 or 7$".to_owned())
        );
        assert_eq!(text(""), Ok(String::new()));
    }

    #[test]
    fn a_value_that_is_no_text_is_refused_within_text() {
        assert_eq!(text("${input.name}-${input.id > 3}"), Ok("a/b-true".to_owned()));
        assert_eq!(text("x${input.none}"), Err("`input.none` gave null".to_owned()));
        assert!(text("x${input.tags}").unwrap_err().contains("a list or a map"));
        assert!(text("${input.lost}").unwrap_err().starts_with("`input.lost`: "));
    }

    #[test]
    fn one_expression_alone_keeps_its_type() {
        let value =
            |template: &str| Template::parse(template).unwrap().value(&variables(), &Budget::default());
        assert_eq!(value("${input.tags}"), Ok(json!(["x"])));
        assert_eq!(value("${input.none}"), Ok(Value::Null));
        assert_eq!(value("${input.id}."), Ok(json!("7.")));
    }
}
