//! Evaluates an expression, counting every step.
//!
//! The language is that of the `cel` crate, value for value and error for error; a test compares the two. Where that crate
//! goes over a map in no order, this goes in the order of its keys, so that every instance comes to the same value.

use std::cmp::Ordering;
use std::rc::Rc;

use super::Variables;
use super::fault::CelFault;
use super::functions;
use super::part::{CelOperator, CelPart, Does, Loop};
use super::value::{self, CelBytes, CelKey, CelMap, CelText, CelValue, Found, VALUE_BYTES};
use crate::budget::Meter;

/// What a message costs: it is put together from names and shortened values.
const MESSAGE_STEPS: u64 = 20;

type Evaluated<'a> = Result<CelValue<'a>, CelFault<'a>>;

pub(super) struct Evaluation<'a, 'm, 'b> {
    pub(super) variables: &'a Variables,
    pub(super) meter: &'m mut Meter<'b>,
    /// What the macros around the present part bind.
    locals: Vec<CelValue<'a>>,
}

impl<'a, 'm, 'b> Evaluation<'a, 'm, 'b> {
    pub(super) fn new(variables: &'a Variables, meter: &'m mut Meter<'b>) -> Evaluation<'a, 'm, 'b> {
        Evaluation { variables, meter, locals: Vec::new() }
    }

    pub(super) fn value(&mut self, part: &'a CelPart) -> Evaluated<'a> {
        self.meter.step()?;
        match part {
            CelPart::Null => Ok(CelValue::Null),
            CelPart::Bool(truth) => Ok(CelValue::Bool(*truth)),
            CelPart::Int(number) => Ok(CelValue::Int(*number)),
            CelPart::UInt(number) => Ok(CelValue::UInt(*number)),
            CelPart::Double(number) => Ok(CelValue::Double(*number)),
            CelPart::Text(text) => Ok(CelValue::Text(CelText::Ref(text))),
            CelPart::Bytes(bytes) => Ok(CelValue::Bytes(CelBytes::Ref(bytes))),
            CelPart::Local(at) => Ok(self.locals[*at].clone()),
            CelPart::Name { name, typed } => self.name(name, *typed),
            CelPart::Select(of, field) => {
                let of = self.value(of)?;
                self.select(of, field)
            }
            CelPart::Has(of, field) => {
                let of = self.value(of)?;
                self.has(&of, field).map(CelValue::Bool)
            }
            CelPart::Not(of) => self.not(of),
            CelPart::Negate(of) => self.negate(of),
            CelPart::If(parts) => {
                let [condition, yes, no] = &**parts;
                let truth = self.truth(condition)?;
                self.value(if truth { yes } else { no })
            }
            CelPart::And(parts) => self.connect(&parts[0], &parts[1], Connective::And),
            CelPart::Or(parts) => self.connect(&parts[0], &parts[1], Connective::Or),
            CelPart::Binary(operator, parts) => self.binary(*operator, &parts[0], &parts[1]),
            CelPart::Call(name, args) => self.call(name, args),
            CelPart::Method(name, target, args) => self.method(name, target, args),
            CelPart::List(parts) => self.list(parts),
            CelPart::Map(entries) => self.map(entries),
            CelPart::Loop(each) => self.each(each),
            CelPart::Struct(name) => Err(CelFault::Unexpected { got: name, want: "known struct" }),
            CelPart::Unknown => Err(CelFault::Said("this part of the expression isn't supported".into())),
        }
    }

    fn name(&mut self, name: &'a str, typed: Option<&'static str>) -> Evaluated<'a> {
        match (self.variables.read(name.strip_prefix('.').unwrap_or(name), self.meter)?, typed) {
            (Some(value), _) => Ok(value),
            (None, Some(typed)) => Ok(CelValue::Type(typed)),
            (None, None) => Err(CelFault::Undeclared(name)),
        }
    }

    /// A condition; anything but a boolean is an error.
    fn truth(&mut self, part: &'a CelPart) -> Result<bool, CelFault<'a>> {
        match self.value(part)? {
            CelValue::Bool(truth) => Ok(truth),
            other => Err(CelFault::not_bool(&other)),
        }
    }

    /// `&&` and `||`: an operand that settles the result makes up for an error of the other.
    #[inline(never)]
    fn connect(&mut self, left: &'a CelPart, right: &'a CelPart, connective: Connective) -> Evaluated<'a> {
        let left = match self.truth(left) {
            Ok(truth) if truth == connective.settled_by() => return Ok(CelValue::Bool(truth)),
            Err(CelFault::TooCostly(cost)) => return Err(cost.into()),
            left => left,
        };
        let right = self.value(right)?;
        match (left, &right) {
            (Ok(_), CelValue::Bool(truth)) => Ok(CelValue::Bool(*truth)),
            (Err(_), CelValue::Bool(truth)) if *truth == connective.settled_by() => Ok(right),
            (Ok(_), _) => {
                Err(self.said(CelFault::no_overload(connective.name(), &["bool", right.type_name()])))
            }
            (Err(CelFault::Unexpected { got, want: "bool" }), _) => {
                Err(self.said(CelFault::no_overload(connective.name(), &[got, right.type_name()])))
            }
            (Err(fault), _) => Err(fault),
        }
    }

    /// An error whose message was put together.
    pub(super) fn said(&mut self, fault: CelFault<'a>) -> CelFault<'a> {
        match self.meter.steps(MESSAGE_STEPS) {
            Ok(()) => fault,
            Err(cost) => cost.into(),
        }
    }

    #[inline(never)]
    fn not(&mut self, of: &'a CelPart) -> Evaluated<'a> {
        match self.value(of)? {
            CelValue::Bool(truth) => Ok(CelValue::Bool(!truth)),
            other => Err(self.said(CelFault::overload("!_", [&other]))),
        }
    }

    #[inline(never)]
    fn negate(&mut self, of: &'a CelPart) -> Evaluated<'a> {
        let of = self.value(of)?;
        match of {
            CelValue::Int(number) => match number.checked_neg() {
                Some(number) => Ok(CelValue::Int(number)),
                None => Err(self.said(CelFault::overflow("negate", &of, &CelValue::Null))),
            },
            CelValue::Double(number) => Ok(CelValue::Double(-number)),
            other => Err(self.said(CelFault::overload("-_", [&other]))),
        }
    }

    /// `of.field`. What is selected of an optional is optional.
    fn select(&mut self, of: CelValue<'a>, field: &'a str) -> Evaluated<'a> {
        match of {
            CelValue::Optional(None) => Ok(CelValue::Optional(None)),
            CelValue::Optional(Some(inner)) if inner.is_map() || inner.is_list() => {
                Ok(CelValue::Optional(inner.field(field, self.meter)?.map(Rc::new)))
            }
            CelValue::Optional(Some(_)) => Err(CelFault::NoSuchKey(field)),
            of if of.is_map() => of.field(field, self.meter)?.ok_or(CelFault::NoSuchKey(field)),
            of => Err(self.said(CelFault::no_overload("_._", &[of.type_name(), "string"]))),
        }
    }

    fn has(&mut self, of: &CelValue<'a>, field: &'a str) -> Result<bool, CelFault<'a>> {
        match of {
            CelValue::Optional(None) => Ok(false),
            CelValue::Optional(Some(inner)) if inner.is_map() => Ok(inner.has(field, self.meter)?),
            CelValue::Optional(Some(inner)) if inner.is_list() => Ok(false),
            CelValue::Optional(Some(_)) => Err(CelFault::NoSuchKey(field)),
            of if of.is_map() => Ok(of.has(field, self.meter)?),
            of => Err(self.said(CelFault::no_overload("_._", &[of.type_name(), "string"]))),
        }
    }

    #[inline(never)]
    fn index(&mut self, of: CelValue<'a>, index: &'a CelPart) -> Evaluated<'a> {
        let inner = match &of {
            CelValue::Optional(None) => return Ok(of),
            CelValue::Optional(Some(inner)) => Some(inner),
            _ => None,
        };
        let index = self.value(index)?;
        match inner {
            None => self.at(&of, &index),
            Some(inner) => match self.at(inner, &index) {
                Ok(value) => Ok(CelValue::Optional(Some(Rc::new(value)))),
                Err(CelFault::TooCostly(cost)) => Err(cost.into()),
                Err(_) => Ok(CelValue::Optional(None)),
            },
        }
    }

    fn at(&mut self, of: &CelValue<'a>, index: &CelValue<'a>) -> Evaluated<'a> {
        let fault = if of.is_map() {
            match of.find(index, self.meter)? {
                Found::Value(value) => return Ok(value),
                Found::Nothing => CelFault::missing(index),
                Found::NoKey => CelFault::overload("_[_]", [of, index]),
            }
        } else if of.is_list() {
            let at = match index {
                CelValue::Int(at) => Ok((usize::try_from(*at), CelValue::Int(*at))),
                CelValue::UInt(at) => Ok((usize::try_from(*at), CelValue::UInt(*at))),
                CelValue::Double(at) => match value::int_of(*at) {
                    Some(at) => Ok((usize::try_from(at), CelValue::Int(at))),
                    None => Err(CelFault::bad_index(index, of)),
                },
                _ => Err(CelFault::overload("_[_]", [of, index])),
            };
            match at {
                Ok((Ok(at), _)) => match of.item(at) {
                    Some(item) => return Ok(item),
                    None => CelFault::out_of_bounds(index),
                },
                Ok((Err(_), at)) => CelFault::out_of_bounds(&at),
                Err(fault) => fault,
            }
        } else {
            CelFault::overload("_[_]", [of, index])
        };
        Err(self.said(fault))
    }

    #[inline(never)]
    fn binary(&mut self, operator: CelOperator, left: &'a CelPart, right: &'a CelPart) -> Evaluated<'a> {
        if !matches!(left, CelPart::Binary(..)) {
            let left = self.value(left)?;
            return self.operate(operator, left, right);
        }
        // A long sum nests to the left; this way it needs no more stack than a short one.
        let (mut first, mut then) = (left, vec![(operator, right)]);
        while let CelPart::Binary(operator, parts) = first {
            self.meter.step()?;
            then.push((*operator, &parts[1]));
            first = &parts[0];
        }
        let mut value = self.value(first)?;
        while let Some((operator, right)) = then.pop() {
            value = self.operate(operator, value, right)?;
        }
        Ok(value)
    }

    #[inline(never)]
    fn operate(&mut self, operator: CelOperator, left: CelValue<'a>, right: &'a CelPart) -> Evaluated<'a> {
        if operator == CelOperator::Index {
            return self.index(left, right);
        }
        let right = self.value(right)?;
        let ordered = |expected: fn(Ordering) -> bool, meter: &mut Meter<'_>| {
            Ok(left.order(&right, meter)?.map(|order| CelValue::Bool(expected(order))))
        };
        let settled: Result<Option<CelValue<'a>>, CelFault<'a>> = match operator {
            CelOperator::Equal => return Ok(CelValue::Bool(left.equals(&right, self.meter)?)),
            CelOperator::Unequal => return Ok(CelValue::Bool(!left.equals(&right, self.meter)?)),
            CelOperator::Less => ordered(Ordering::is_lt, self.meter),
            CelOperator::LessOrEqual => ordered(Ordering::is_le, self.meter),
            CelOperator::Greater => ordered(Ordering::is_gt, self.meter),
            CelOperator::GreaterOrEqual => ordered(Ordering::is_ge, self.meter),
            CelOperator::In => Ok(right.holds(&left, self.meter)?.map(CelValue::Bool)),
            CelOperator::Add | CelOperator::Subtract => return self.sum(operator, &left, &right),
            CelOperator::Multiply | CelOperator::Divide | CelOperator::Remainder | CelOperator::Index => {
                return self.arithmetic(operator, &left, &right);
            }
        };
        match settled? {
            Some(value) => Ok(value),
            None => Err(self.said(CelFault::overload(operator.name(), [&left, &right]))),
        }
    }

    fn sum(&mut self, operator: CelOperator, left: &CelValue<'a>, right: &CelValue<'a>) -> Evaluated<'a> {
        if operator == CelOperator::Subtract {
            return self.arithmetic(operator, left, right);
        }
        match (left, right) {
            (CelValue::Text(a), CelValue::Text(b)) => {
                let (a, b) = (a.get(), b.get());
                // Once for the text, once for its way into a shared one.
                self.meter.makes(2 * (a.len() + b.len()))?;
                Ok(CelValue::Text(CelText::Own([a, b].concat().into())))
            }
            (CelValue::Bytes(a), CelValue::Bytes(b)) => {
                let (a, b) = (a.get(), b.get());
                self.meter.makes(2 * (a.len() + b.len()))?;
                Ok(CelValue::Bytes(CelBytes::Own([a, b].concat().into())))
            }
            (a, b) if a.is_list() && (b.is_list() || b.is_map()) => self.concat(a, b),
            (left, right) => self.arithmetic(operator, left, right),
        }
    }

    fn concat(&mut self, left: &CelValue<'a>, right: &CelValue<'a>) -> Evaluated<'a> {
        let count = left.count().unwrap_or(0) + right.count().unwrap_or(0);
        self.meter.steps(count as u64)?;
        self.meter.makes(count * VALUE_BYTES)?;
        let mut items = Vec::with_capacity(count);
        items.extend((0..).map_while(|at| left.item(at)));
        match right.is_map() {
            true => items.extend(right.keys(self.meter)?),
            false => items.extend((0..).map_while(|at| right.item(at))),
        }
        Ok(CelValue::List(Rc::new(items)))
    }

    fn arithmetic(
        &mut self,
        operator: CelOperator,
        left: &CelValue<'a>,
        right: &CelValue<'a>,
    ) -> Evaluated<'a> {
        let fault = match (left, right) {
            (CelValue::Int(a), CelValue::Int(b)) => match operator {
                CelOperator::Divide if *b == 0 => CelFault::by_zero("Division", left),
                CelOperator::Remainder if *b == 0 => CelFault::by_zero("Remainder", left),
                _ => {
                    let result = match operator {
                        CelOperator::Add => a.checked_add(*b),
                        CelOperator::Subtract => a.checked_sub(*b),
                        CelOperator::Multiply => a.checked_mul(*b),
                        CelOperator::Divide => a.checked_div(*b),
                        _ => a.checked_rem(*b),
                    };
                    match result {
                        Some(number) => return Ok(CelValue::Int(number)),
                        None => CelFault::overflow(operator.name(), left, right),
                    }
                }
            },
            (CelValue::UInt(a), CelValue::UInt(b)) => match operator {
                CelOperator::Divide if *b == 0 => CelFault::by_zero("Division", left),
                CelOperator::Remainder if *b == 0 => CelFault::by_zero("Remainder", left),
                _ => {
                    let result = match operator {
                        CelOperator::Add => a.checked_add(*b),
                        CelOperator::Subtract => a.checked_sub(*b),
                        CelOperator::Multiply => a.checked_mul(*b),
                        CelOperator::Divide => a.checked_div(*b),
                        _ => a.checked_rem(*b),
                    };
                    match result {
                        Some(number) => return Ok(CelValue::UInt(number)),
                        None => CelFault::overflow(operator.name(), left, right),
                    }
                }
            },
            (CelValue::Double(a), CelValue::Double(b)) => match operator {
                CelOperator::Add => return Ok(CelValue::Double(a + b)),
                CelOperator::Subtract => return Ok(CelValue::Double(a - b)),
                CelOperator::Multiply => return Ok(CelValue::Double(a * b)),
                CelOperator::Divide => return Ok(CelValue::Double(a / b)),
                _ => CelFault::unsupported(operator.name(), left, right),
            },
            _ => CelFault::unsupported(operator.name(), left, right),
        };
        Err(self.said(fault))
    }

    #[inline(never)]
    fn values(&mut self, parts: &'a [CelPart]) -> Result<Vec<CelValue<'a>>, CelFault<'a>> {
        parts.iter().map(|part| self.value(part)).collect()
    }

    #[inline(never)]
    fn call(&mut self, name: &'a str, args: &'a [CelPart]) -> Evaluated<'a> {
        let args = self.values(args)?;
        functions::call(self, name, &args)
    }

    #[inline(never)]
    fn method(&mut self, name: &'a str, target: &'a CelPart, args: &'a [CelPart]) -> Evaluated<'a> {
        let args = self.values(args)?;
        let target = self.value(target)?;
        functions::method(self, name, target, &args)
    }

    #[inline(never)]
    fn list(&mut self, parts: &'a [CelPart]) -> Evaluated<'a> {
        self.meter.makes(parts.len() * VALUE_BYTES)?;
        Ok(CelValue::List(Rc::new(self.values(parts)?)))
    }

    #[inline(never)]
    fn map(&mut self, entries: &'a [(CelPart, CelPart)]) -> Evaluated<'a> {
        let mut map = CelMap::new();
        for (key, value) in entries {
            let key = self.value(key)?;
            let Some(key) = CelKey::of(&key) else { return Err(self.said(CelFault::bad_key(&key))) };
            let value = self.value(value)?;
            value::insert(&mut map, key, value, self.meter)?;
        }
        Ok(CelValue::Map(Rc::new(map)))
    }

    #[inline(never)]
    fn each(&mut self, each: &'a Loop) -> Evaluated<'a> {
        let over = self.value(&each.over)?;
        let over = match over {
            over if over.is_list() => over,
            over if over.is_map() => CelValue::List(Rc::new(over.keys(self.meter)?)),
            over => return Err(CelFault::Unexpected { got: over.type_name(), want: "iterable" }),
        };
        let depth = self.locals.len();
        let result = match &each.does {
            Does::All(test) => self.fold(&over, test, Connective::And),
            Does::Exists(test) => self.fold(&over, test, Connective::Or),
            Does::ExistsOne(test) => self.exists_one(&over, test),
            Does::Collect { filter, item } => self.collect(&over, filter.as_ref(), item),
        };
        self.locals.truncate(depth);
        result
    }

    /// Binds an item for the parts inside a macro.
    fn bind(&mut self, depth: usize, item: CelValue<'a>) -> Result<(), CelFault<'a>> {
        self.meter.step()?;
        self.locals.truncate(depth);
        self.locals.push(item);
        Ok(())
    }

    /// `all` and `exists`: an error counts only where no other item settles the result.
    fn fold(&mut self, over: &CelValue<'a>, test: &'a CelPart, connective: Connective) -> Evaluated<'a> {
        let depth = self.locals.len();
        let mut pending = None;
        for item in (0..).map_while(|at| over.item(at)) {
            self.bind(depth, item)?;
            match self.value(test) {
                Ok(CelValue::Bool(truth)) if truth == connective.settled_by() => {
                    return Ok(CelValue::Bool(truth));
                }
                Ok(CelValue::Bool(_)) => {}
                Ok(other) => {
                    let fault = CelFault::no_overload(connective.name(), &["bool", other.type_name()]);
                    pending = Some(self.said(fault));
                }
                Err(CelFault::TooCostly(cost)) => return Err(cost.into()),
                Err(fault) => pending = Some(fault),
            }
        }
        match pending {
            Some(fault) => Err(fault),
            None => Ok(CelValue::Bool(!connective.settled_by())),
        }
    }

    fn exists_one(&mut self, over: &CelValue<'a>, test: &'a CelPart) -> Evaluated<'a> {
        let depth = self.locals.len();
        let mut found = 0;
        for item in (0..).map_while(|at| over.item(at)) {
            self.bind(depth, item)?;
            found += usize::from(self.truth(test)?);
        }
        Ok(CelValue::Bool(found == 1))
    }

    fn collect(
        &mut self,
        over: &CelValue<'a>,
        filter: Option<&'a CelPart>,
        item: &'a CelPart,
    ) -> Evaluated<'a> {
        let depth = self.locals.len();
        let mut items = Vec::new();
        for each in (0..).map_while(|at| over.item(at)) {
            self.bind(depth, each)?;
            if let Some(filter) = filter
                && !self.truth(filter)?
            {
                continue;
            }
            // A list that grows is moved to twice its size.
            self.meter.makes(2 * VALUE_BYTES)?;
            items.push(self.value(item)?);
        }
        Ok(CelValue::List(Rc::new(items)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Connective {
    And,
    Or,
}

impl Connective {
    /// The operand that settles the result whatever the other one is.
    fn settled_by(self) -> bool {
        self == Connective::Or
    }

    fn name(self) -> &'static str {
        match self {
            Connective::And => "_&&_",
            Connective::Or => "_||_",
        }
    }
}
