//! CEL expressions: conditions (`if`), outputs (`output`), and those in the [templates](crate::template) of a request.
//!
//! The `cel` crate parses them; they are evaluated here, where every step and every byte is counted against a
//! [budget](crate::budget). In `decide` the variables are `input`, `events` and `results`; an expression is parsed once and
//! knows which of them it reads, so that nothing else is loaded for it.

#[cfg(test)]
mod differential;
mod evaluate;
mod fault;
mod functions;
mod part;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use cel::Program;
use cel::common::ast::{EntryExpr, Expr as Ast, IdedEntryExpr, IdedExpr, LiteralValue};
use serde_json::Value;

use crate::budget::{Budget, Meter, TooCostly};
use crate::json::Json;

use evaluate::Evaluation;
use part::CelPart;
pub(crate) use value::CelPayload;
use value::CelValue;

/// The variables that an expression may read.
pub const VARIABLES: [&str; 3] = ["input", "events", "results"];

// CEL's parser recurses and takes much of a 2 MiB stack per bracket when it is not optimized. What needs more than this
// belongs in a step.
/// An expression, in bytes.
pub const EXPRESSION_BYTES: usize = 2 << 10;
/// Brackets open at once in an expression.
pub const EXPRESSION_DEPTH: usize = 8;
/// Conditional operators (`?:`), which nest without brackets.
pub const EXPRESSION_CHOICES: usize = 16;
/// The expressions of one definition together, by their [`weight`]: about 18,000 of 100 bytes, or 100 of 2 KiB.
pub const EXPRESSIONS_WEIGHT: usize = 2 << 20;
/// Macros such as `all` and `map` in each other. Five over lists of sixteen items are past any budget.
pub const EXPRESSION_LOOPS: usize = 4;

/// What parsing an expression takes, in bytes of a short one. A long one takes more per byte: 2 KiB can take 40 ms.
pub fn weight(text: &str) -> usize {
    text.len() * (1 + text.len() / 256)
}

/// A parsed expression.
pub struct Expr {
    text: String,
    program: Program,
    part: CelPart,
    reads: Reads,
}

/// Why a text is no expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    #[error("is too long or too deep")]
    TooComplex,
    /// In CEL's words, without a position in any file.
    #[error("{0}")]
    Syntax(String),
}

/// Which variables an expression mentions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reads {
    pub input: bool,
    pub events: bool,
    pub results: bool,
}

/// The values of the variables for one evaluation.
#[derive(Debug, Default)]
pub struct GivenValues {
    pub input: Option<Json>,
    pub events: BTreeMap<String, Json>,
    pub results: BTreeMap<String, Json>,
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct EvaluationError {
    text: String,
    too_costly: bool,
}

impl EvaluationError {
    /// One whose text was put together elsewhere.
    pub(crate) fn too_costly(text: String) -> EvaluationError {
        EvaluationError { text, too_costly: true }
    }

    /// Says where it happened; the rest stays as it is.
    pub(crate) fn at(self, place: impl fmt::Display) -> EvaluationError {
        EvaluationError { text: format!("{place}: {}", self.text), ..self }
    }

    /// Whether the evaluation was stopped, which says nothing of the value that it would have had.
    pub fn is_too_costly(&self) -> bool {
        self.too_costly
    }

    /// [`TooCostly::CODE`], or what the place of the expression calls its other errors.
    pub(crate) fn code_or(&self, code: &'static str) -> &'static str {
        if self.too_costly { TooCostly::CODE } else { code }
    }
}

impl From<String> for EvaluationError {
    fn from(text: String) -> EvaluationError {
        EvaluationError { text, too_costly: false }
    }
}

impl From<TooCostly> for EvaluationError {
    fn from(cost: TooCostly) -> EvaluationError {
        EvaluationError { text: cost.to_string(), too_costly: true }
    }
}

/// Named values, made once for many expressions.
#[derive(Debug)]
pub(crate) struct Variables(Vec<(&'static str, Variable)>);

#[derive(Debug)]
enum Variable {
    One(Rc<CelPayload>),
    /// Payloads by name: `events` and `results` of a flow.
    Many(BTreeMap<String, Rc<CelPayload>>),
}

impl Variables {
    pub(crate) fn of(values: impl IntoIterator<Item = (&'static str, Rc<CelPayload>)>) -> Variables {
        Variables(values.into_iter().map(|(name, value)| (name, Variable::One(value))).collect())
    }

    /// Adds payloads by name.
    pub(crate) fn with(
        mut self,
        name: &'static str,
        payloads: impl IntoIterator<Item = (String, Rc<CelPayload>)>,
    ) -> Variables {
        self.0.push((name, Variable::Many(payloads.into_iter().collect())));
        self
    }

    fn read(&self, name: &str, meter: &mut Meter<'_>) -> Result<Option<CelValue<'_>>, TooCostly> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        Ok(match found {
            Some((_, Variable::One(payload))) => Some(CelValue::of(payload.read(meter)?)),
            Some((_, Variable::Many(payloads))) => Some(CelValue::Payloads(payloads)),
            None => None,
        })
    }
}

impl From<&GivenValues> for Variables {
    fn from(scope: &GivenValues) -> Variables {
        let input = scope.input.clone().unwrap_or_else(Json::null);
        let named = |payloads: &BTreeMap<String, Json>| -> Vec<(String, Rc<CelPayload>)> {
            payloads.iter().map(|(name, json)| (name.clone(), CelPayload::of(json.clone()))).collect()
        };
        Variables::of([("input", CelPayload::of(input))])
            .with("events", named(&scope.events))
            .with("results", named(&scope.results))
    }
}

impl Expr {
    /// Parses an expression. One that the parser could not take on a small stack is refused before it sees it.
    pub fn parse(text: &str) -> Result<Expr, ExprError> {
        if text.trim().is_empty() {
            return Err(ExprError::Syntax("the expression is empty".to_owned()));
        }
        if too_complex(text) {
            return Err(ExprError::TooComplex);
        }
        let program = Program::compile(text).map_err(|errors| {
            let first = errors.errors.first().map(|e| e.msg.clone()).unwrap_or_else(|| errors.to_string());
            ExprError::Syntax(first.lines().next().unwrap_or_default().to_owned())
        })?;
        let references = program.references();
        let reads = Reads {
            input: references.has_variable("input"),
            events: references.has_variable("events"),
            results: references.has_variable("results"),
        };
        let part = CelPart::of(&program.expression().expr);
        Ok(Expr { text: text.to_owned(), program, part, reads })
    }

    /// How deep its macros stand in each other.
    pub fn loops(&self) -> usize {
        self.part.loops()
    }

    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// Names that the expression reads beside the `known` ones and those that a macro such as `map` binds.
    pub fn unknown_variables(&self, known: &[&str]) -> Vec<String> {
        let references = self.program.references();
        let mut unknown: Vec<String> = references
            .variables()
            .into_iter()
            .filter(|name| !known.contains(name) && !name.starts_with('@') && !self.binds(name))
            .map(str::to_owned)
            .collect();
        unknown.sort();
        unknown
    }

    /// The members that the expression names of the value at this path: with `["context"]`, `amount` of `context.amount` and
    /// of `context["amount"]`. None where a macro binds the path's first name to something else.
    pub fn members_of(&self, path: &[&str]) -> Vec<Member> {
        let mut members = Vec::new();
        if path.first().is_some_and(|first| self.text.contains(first) && !self.binds(first)) {
            collect(&self.program.expression().expr, path, &mut members);
        }
        members
    }

    /// A macro binds its first argument: `list.map(x, …)`, `list.all(x, …)`.
    fn binds(&self, name: &str) -> bool {
        ["map", "filter", "all", "exists", "exists_one"].iter().any(|call| {
            self.text.match_indices(&format!(".{call}(")).any(|(at, found)| {
                let after = self.text[at + found.len()..].trim_start();
                after.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(','))
            })
        })
    }

    /// Evaluates over variables of one's own, within what a budget leaves.
    pub(crate) fn evaluate_in(
        &self,
        variables: &Variables,
        budget: &Budget,
    ) -> Result<Value, EvaluationError> {
        let mut meter = budget.meter();
        let value = self.run(variables, &mut meter)?;
        Ok(value.json(&mut meter)?)
    }

    /// Evaluates a condition over variables of one's own; anything but a boolean is an error.
    pub(crate) fn test_in(&self, variables: &Variables, budget: &Budget) -> Result<bool, EvaluationError> {
        let mut meter = budget.meter();
        match self.run(variables, &mut meter)? {
            CelValue::Bool(truth) => Ok(truth),
            other => {
                let other = other.json(&mut meter)?.to_string();
                let shown = &other[..other.floor_char_boundary(fault::SHOWN)];
                let more = if shown.len() < other.len() { "…" } else { "" };
                Err(format!("gave {shown}{more}, not true or false").into())
            }
        }
    }

    fn run<'a>(
        &'a self,
        variables: &'a Variables,
        meter: &mut Meter<'_>,
    ) -> Result<CelValue<'a>, EvaluationError> {
        Evaluation::new(variables, meter).value(&self.part).map_err(|fault| match fault {
            fault::CelFault::TooCostly(cost) => cost.into(),
            fault => fault.to_string().into(),
        })
    }

    /// Evaluates on a budget of its own.
    pub fn evaluate(&self, scope: &GivenValues) -> Result<Value, EvaluationError> {
        self.evaluate_in(&Variables::from(scope), &Budget::default())
    }

    /// Evaluates a condition on a budget of its own; anything but a boolean is an error.
    pub fn test(&self, scope: &GivenValues) -> Result<bool, EvaluationError> {
        self.test_in(&Variables::from(scope), &Budget::default())
    }
}

/// A member that an expression names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// By `has(…)`, which asks whether it is there.
    pub tested: bool,
}

/// Adds the members of the value at `path` that an expression or a part of it names.
fn collect(expr: &Ast, path: &[&str], members: &mut Vec<Member>) {
    let mut parts: Vec<&IdedExpr> = Vec::new();
    match expr {
        Ast::Select(select) => {
            if spells(&select.operand.expr, path) {
                members.push(Member { name: select.field.clone(), tested: select.test });
            }
            parts.push(&select.operand);
        }
        Ast::Call(call) => {
            if let ("_[_]", [of, IdedExpr { expr: Ast::Literal(LiteralValue::String(name)), .. }]) =
                (call.func_name.as_str(), &call.args[..])
                && spells(&of.expr, path)
            {
                members.push(Member { name: name.inner().to_owned(), tested: false });
            }
            parts.extend(call.target.as_deref().into_iter().chain(&call.args));
        }
        Ast::Comprehension(each) => {
            parts.extend([&each.iter_range, &each.accu_init, &each.loop_cond, &each.loop_step, &each.result]);
        }
        Ast::List(list) => parts.extend(&list.elements),
        Ast::Map(map) => map.entries.iter().for_each(|entry| parts.extend(parts_of(entry))),
        Ast::Struct(made) => made.entries.iter().for_each(|entry| parts.extend(parts_of(entry))),
        Ast::Unspecified | Ast::Ident(_) | Ast::Literal(_) => {}
    }
    parts.into_iter().for_each(|part| collect(&part.expr, path, members));
}

fn parts_of(entry: &IdedEntryExpr) -> Vec<&IdedExpr> {
    match &entry.expr {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

/// Whether an expression is this path, dotted.
fn spells(expr: &Ast, path: &[&str]) -> bool {
    match (expr, path) {
        (Ast::Ident(name), [first]) => name == first,
        (Ast::Select(select), [before @ .., last]) if !before.is_empty() => {
            !select.test && select.field == *last && spells(&select.operand.expr, before)
        }
        _ => false,
    }
}

/// Whether a recursive parser could go too deep: by brackets, by choices or by a long chain of operators.
fn too_complex(text: &str) -> bool {
    let (mut depth, mut deepest) = (0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    let choices = text.matches('?').count();
    text.len() > EXPRESSION_BYTES || deepest > EXPRESSION_DEPTH || choices > EXPRESSION_CHOICES
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(input: &str) -> GivenValues {
        GivenValues { input: Some(Json::parse(input).unwrap()), ..GivenValues::default() }
    }

    #[test]
    fn a_condition_reads_the_input() {
        let expr = Expr::parse("input.total > 0 && input.items.all(i, i.qty >= 1)").unwrap();
        assert_eq!(expr.reads(), Reads { input: true, ..Reads::default() });
        assert_eq!(expr.unknown_variables(&VARIABLES), Vec::<String>::new());
        assert_eq!(expr.test(&scope(r#"{"total":5,"items":[{"qty":1}]}"#)), Ok(true));
        assert_eq!(expr.test(&scope(r#"{"total":0.0,"items":[]}"#)), Ok(false));
    }

    #[test]
    fn a_missing_key_or_a_value_that_is_not_boolean_is_an_error() {
        assert!(Expr::parse("input.total > 0").unwrap().test(&scope("{}")).is_err());
        assert_eq!(
            Expr::parse("1 + 1").unwrap().test(&scope("{}")),
            Err("gave 2, not true or false".to_owned().into())
        );
    }

    #[test]
    fn unknown_variables_are_found() {
        assert_eq!(Expr::parse("inptu.total > 0").unwrap().unknown_variables(&VARIABLES), ["inptu"]);
        assert!(Expr::parse("input.total >").is_err());
    }

    #[test]
    fn what_would_overflow_the_parser_is_refused_before_it() {
        let deep = "(".repeat(500) + "true" + &")".repeat(500);
        let long = "true && ".repeat(500) + "true";
        let choices = "true ? true : ".repeat(50) + "true";
        for text in [deep, long, choices] {
            assert_eq!(Expr::parse(&text).unwrap_err(), ExprError::TooComplex);
        }
        assert!(Expr::parse(&("(".repeat(8) + "true" + &")".repeat(8))).is_ok());
    }

    #[test]
    fn an_output_can_build_an_object() {
        let expr = Expr::parse(r#"{"id": input.id, "label": results.ship.label}"#).unwrap();
        let mut scope = scope(r#"{"id":7}"#);
        scope.results.insert("ship".into(), Json::parse(r#"{"label":"L1"}"#).unwrap());
        assert_eq!(expr.evaluate(&scope), Ok(serde_json::json!({"id": 7, "label": "L1"})));
    }
}
