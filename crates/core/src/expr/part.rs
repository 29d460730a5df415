//! An expression as it is evaluated: names resolved, operators and macros told apart once and not at each evaluation.
//!
//! Macros are recognised by the shape that CEL's parser expands them to; no expression can be written that has the shape of
//! a macro and isn't one.

use cel::common::ast::operators as op;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr as Ast, IdedExpr, LiteralValue, SelectExpr,
};

/// The types that an expression can name.
const TYPES: [&str; 11] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "optional_type", "string", "type", "uint"];

/// Functions that are called by a qualified name.
const QUALIFIED: [&str; 3] = ["optional.none", "optional.of", "optional.ofNonZeroValue"];

#[derive(Debug)]
pub(super) enum CelPart {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// A variable that is given from outside, or a type.
    Name {
        name: String,
        typed: Option<&'static str>,
    },
    /// What a macro binds, by its place on the stack.
    Local(usize),
    Select(Box<CelPart>, String),
    Has(Box<CelPart>, String),
    Not(Box<CelPart>),
    Negate(Box<CelPart>),
    If(Box<[CelPart; 3]>),
    And(Box<[CelPart; 2]>),
    Or(Box<[CelPart; 2]>),
    Binary(CelOperator, Box<[CelPart; 2]>),
    Call(String, Vec<CelPart>),
    Method(String, Box<CelPart>, Vec<CelPart>),
    List(Vec<CelPart>),
    Map(Vec<(CelPart, CelPart)>),
    Loop(Box<Loop>),
    /// A struct, which nothing here knows.
    Struct(String),
    /// What CEL's parser never leaves behind.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CelOperator {
    Equal,
    Unequal,
    Index,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

impl CelOperator {
    /// As messages call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            CelOperator::Equal => op::EQUALS,
            CelOperator::Unequal => op::NOT_EQUALS,
            CelOperator::Index => op::INDEX,
            CelOperator::Add => "add",
            CelOperator::Subtract => "sub",
            CelOperator::Multiply => "mul",
            CelOperator::Divide => "div",
            CelOperator::Remainder => "rem",
            CelOperator::Less => op::LESS,
            CelOperator::LessOrEqual => op::LESS_EQUALS,
            CelOperator::Greater => op::GREATER,
            CelOperator::GreaterOrEqual => op::GREATER_EQUALS,
            CelOperator::In => op::IN,
        }
    }

    fn of(name: &str) -> Option<CelOperator> {
        Some(match name {
            op::EQUALS => CelOperator::Equal,
            op::NOT_EQUALS => CelOperator::Unequal,
            op::INDEX => CelOperator::Index,
            op::ADD => CelOperator::Add,
            op::SUBSTRACT => CelOperator::Subtract,
            op::MULTIPLY => CelOperator::Multiply,
            op::DIVIDE => CelOperator::Divide,
            op::MODULO => CelOperator::Remainder,
            op::LESS => CelOperator::Less,
            op::LESS_EQUALS => CelOperator::LessOrEqual,
            op::GREATER => CelOperator::Greater,
            op::GREATER_EQUALS => CelOperator::GreaterOrEqual,
            op::IN => CelOperator::In,
            _ => return None,
        })
    }
}

/// A macro over the items of a list or the keys of a map.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) over: CelPart,
    pub(super) does: Does,
}

/// What a macro does with each item.
#[derive(Debug)]
pub(super) enum Does {
    All(CelPart),
    Exists(CelPart),
    ExistsOne(CelPart),
    /// `map` and `filter`: the items that pass the filter, and what becomes of each.
    Collect {
        filter: Option<CelPart>,
        item: CelPart,
    },
}

impl CelPart {
    /// The part that a parsed expression stands for.
    pub(super) fn of(expr: &Ast) -> CelPart {
        Scopes(Vec::new()).part(expr)
    }

    /// How deep macros stand in each other.
    pub(super) fn loops(&self) -> usize {
        let deepest =
            |parts: &mut dyn Iterator<Item = &CelPart>| parts.map(CelPart::loops).max().unwrap_or(0);
        match self {
            CelPart::Loop(each) => {
                let inside = match &each.does {
                    Does::All(part) | Does::Exists(part) | Does::ExistsOne(part) => part.loops(),
                    Does::Collect { filter, item } => deepest(&mut filter.iter().chain([item])),
                };
                each.over.loops().max(1 + inside)
            }
            CelPart::Select(of, _) | CelPart::Has(of, _) | CelPart::Not(of) | CelPart::Negate(of) => {
                of.loops()
            }
            CelPart::If(parts) => deepest(&mut parts.iter()),
            CelPart::And(parts) | CelPart::Or(parts) | CelPart::Binary(_, parts) => {
                deepest(&mut parts.iter())
            }
            CelPart::Call(_, parts) | CelPart::List(parts) => deepest(&mut parts.iter()),
            CelPart::Method(_, target, parts) => deepest(&mut parts.iter().chain([&**target])),
            CelPart::Map(entries) => deepest(&mut entries.iter().flat_map(|(key, value)| [key, value])),
            _ => 0,
        }
    }
}

/// The names that the macros around a part bind, outermost first.
struct Scopes<'e>(Vec<&'e str>);

impl<'e> Scopes<'e> {
    fn part(&mut self, expr: &'e Ast) -> CelPart {
        match expr {
            Ast::Literal(literal) => literal_part(literal),
            Ast::Ident(name) => self.name(name, Typed::Yes),
            Ast::Select(select) => self.select(select),
            Ast::Call(call) => match operation(call) {
                Some(_) => self.binary(expr),
                None => self.call(call),
            },
            Ast::List(list) => CelPart::List(self.parts(&list.elements)),
            Ast::Map(map) => CelPart::Map(
                map.entries
                    .iter()
                    .filter_map(|entry| match &entry.expr {
                        EntryExpr::MapEntry(entry) => {
                            Some((self.part(&entry.key.expr), self.part(&entry.value.expr)))
                        }
                        EntryExpr::StructField(_) => None,
                    })
                    .collect(),
            ),
            Ast::Comprehension(each) => self.each(each).unwrap_or(CelPart::Unknown),
            Ast::Struct(made) => CelPart::Struct(made.type_name.clone()),
            Ast::Unspecified => CelPart::Unknown,
        }
    }

    fn parts(&mut self, exprs: &'e [IdedExpr]) -> Vec<CelPart> {
        exprs.iter().map(|expr| self.part(&expr.expr)).collect()
    }

    fn boxed(&mut self, expr: &'e IdedExpr) -> Box<CelPart> {
        Box::new(self.part(&expr.expr))
    }

    fn name(&self, name: &'e str, typed: Typed) -> CelPart {
        // A leading dot skips what macros bind.
        let absolute = name.strip_prefix('.');
        if absolute.is_none()
            && let Some(at) = self.0.iter().rposition(|bound| *bound == name)
        {
            return CelPart::Local(at);
        }
        let plain = absolute.unwrap_or(name);
        let typed = TYPES.into_iter().find(|known| typed == Typed::Yes && *known == plain);
        CelPart::Name { name: name.to_owned(), typed }
    }

    /// A long path nests to the left, and so does a long sum: both are read without recursion.
    fn select(&mut self, select: &'e SelectExpr) -> CelPart {
        let (mut last, mut path) = (select, Vec::new());
        while let Ast::Select(of) = &last.operand.expr {
            path.push(last);
            last = of;
        }
        path.push(last);
        let mut part = match &last.operand.expr {
            // Of `a.b`, `a` can only be a variable; of `has(a.b)`, a type as well.
            Ast::Ident(name) => self.name(name, if last.test { Typed::Yes } else { Typed::No }),
            other => self.part(other),
        };
        while let Some(select) = path.pop() {
            part = match select.test {
                true => CelPart::Has(Box::new(part), select.field.clone()),
                false => CelPart::Select(Box::new(part), select.field.clone()),
            };
        }
        part
    }

    fn binary(&mut self, expr: &'e Ast) -> CelPart {
        let (mut first, mut then) = (expr, Vec::new());
        while let Ast::Call(call) = first
            && let Some((operator, left, right)) = operation(call)
        {
            then.push((operator, right));
            first = left;
        }
        let mut part = self.part(first);
        while let Some((operator, right)) = then.pop() {
            part = CelPart::Binary(operator, Box::new([part, self.part(right)]));
        }
        part
    }

    fn call(&mut self, call: &'e CallExpr) -> CelPart {
        let name = call.func_name.as_str();
        match (name, &call.args[..]) {
            (op::CONDITIONAL, [condition, yes, no]) => {
                return CelPart::If(Box::new([condition, yes, no].map(|part| self.part(&part.expr))));
            }
            (op::LOGICAL_AND, [a, b]) => {
                return CelPart::And(Box::new([a, b].map(|part| self.part(&part.expr))));
            }
            (op::LOGICAL_OR, [a, b]) => {
                return CelPart::Or(Box::new([a, b].map(|part| self.part(&part.expr))));
            }
            (op::LOGICAL_NOT, [of]) => return CelPart::Not(self.boxed(of)),
            (op::NEGATE, [of]) => return CelPart::Negate(self.boxed(of)),
            _ => {}
        }
        let args = self.parts(&call.args);
        match &call.target {
            None => CelPart::Call(name.strip_prefix('.').unwrap_or(name).to_owned(), args),
            Some(target) => match qualified(&target.expr, name) {
                Some(name) => CelPart::Call(name.to_owned(), args),
                None => CelPart::Method(name.to_owned(), self.boxed(target), args),
            },
        }
    }

    /// A macro, by what its expansion does with each item.
    fn each(&mut self, each: &'e ComprehensionExpr) -> Option<CelPart> {
        let accumulated = |expr: &IdedExpr| matches!(&expr.expr, Ast::Ident(name) if *name == each.accu_var);
        let over = self.part(&each.iter_range.expr);
        let Ast::Call(step) = &each.loop_step.expr else { return None };
        self.0.push(&each.iter_var);
        let does = match (step.func_name.as_str(), &step.args[..]) {
            (op::LOGICAL_AND, [first, test]) if accumulated(first) => Some(Does::All(self.part(&test.expr))),
            (op::LOGICAL_OR, [first, test]) if accumulated(first) => {
                Some(Does::Exists(self.part(&test.expr)))
            }
            (op::CONDITIONAL, [test, _, _]) if matches!(each.accu_init.expr, Ast::Literal(_)) => {
                Some(Does::ExistsOne(self.part(&test.expr)))
            }
            (op::CONDITIONAL, [test, add, _]) => {
                let item = appended(&add.expr);
                item.map(|item| Does::Collect {
                    filter: Some(self.part(&test.expr)),
                    item: self.part(&item.expr),
                })
            }
            _ => appended(&each.loop_step.expr)
                .map(|item| Does::Collect { filter: None, item: self.part(&item.expr) }),
        };
        self.0.pop();
        does.map(|does| CelPart::Loop(Box::new(Loop { over, does })))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Typed {
    Yes,
    No,
}

/// An operator between two parts.
fn operation(call: &CallExpr) -> Option<(CelOperator, &Ast, &Ast)> {
    match &call.args[..] {
        [left, right] => Some((CelOperator::of(&call.func_name)?, &left.expr, &right.expr)),
        _ => None,
    }
}

/// The `e` of `@result + [e]`.
fn appended(expr: &Ast) -> Option<&IdedExpr> {
    match expr {
        Ast::Call(CallExpr { func_name, args, .. }) if func_name == op::ADD => match &args[..] {
            [_, IdedExpr { expr: Ast::List(list), .. }] => list.elements.first(),
            _ => None,
        },
        _ => None,
    }
}

/// The function that `target.name(…)` calls by its qualified name.
fn qualified(target: &Ast, name: &str) -> Option<&'static str> {
    let Ast::Ident(space) = target else { return None };
    let space = space.strip_prefix('.').unwrap_or(space);
    QUALIFIED.into_iter().find(|known| known.split_once('.') == Some((space, name)))
}

fn literal_part(literal: &LiteralValue) -> CelPart {
    match literal {
        LiteralValue::Null => CelPart::Null,
        LiteralValue::Boolean(truth) => CelPart::Bool(*truth.inner()),
        LiteralValue::Int(number) => CelPart::Int(*number.inner()),
        LiteralValue::UInt(number) => CelPart::UInt(*number.inner()),
        LiteralValue::Double(number) => CelPart::Double(*number.inner()),
        LiteralValue::String(text) => CelPart::Text(text.inner().to_owned()),
        LiteralValue::Bytes(bytes) => CelPart::Bytes(bytes.inner().to_vec()),
    }
}
