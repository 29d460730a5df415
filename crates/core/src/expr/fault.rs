//! Why an evaluation came to nothing, in the words of the `cel` crate, which users know.
//!
//! A message shows values only in part: they can be as large as a payload.

use std::fmt::{self, Write};

use super::value::CelValue;
use crate::budget::TooCostly;

/// What a message shows of one value, in bytes.
pub(super) const SHOWN: usize = 1 << 10;

pub(super) enum CelFault<'a> {
    /// Never absorbed by `||`, `&&`, `all` or `exists`, unlike the others.
    TooCostly(TooCostly),
    NoSuchKey(&'a str),
    Undeclared(&'a str),
    Unexpected {
        got: &'a str,
        want: &'static str,
    },
    Said(Box<str>),
}

impl From<TooCostly> for CelFault<'_> {
    fn from(cost: TooCostly) -> Self {
        CelFault::TooCostly(cost)
    }
}

impl fmt::Display for CelFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CelFault::TooCostly(cost) => cost.fmt(f),
            CelFault::NoSuchKey(key) => write!(f, "No such key: {key}"),
            CelFault::Undeclared(name) => write!(f, "Undeclared reference to '{name}'"),
            CelFault::Unexpected { got, want } => write!(f, "Unexpected type: got '{got}', want '{want}'"),
            CelFault::Said(text) => f.write_str(text),
        }
    }
}

impl<'a> CelFault<'a> {
    fn said(text: fmt::Arguments<'_>) -> CelFault<'a> {
        CelFault::Said(text.to_string().into())
    }

    pub(super) fn not_bool(value: &CelValue<'a>) -> CelFault<'a> {
        CelFault::Unexpected { got: value.type_name(), want: "bool" }
    }

    /// No operator or function of this name takes values of these types.
    pub(super) fn overload<'v>(
        function: &str,
        arguments: impl IntoIterator<Item = &'v CelValue<'a>>,
    ) -> CelFault<'a>
    where
        'a: 'v,
    {
        let types: Vec<&str> = arguments.into_iter().map(CelValue::type_name).collect();
        CelFault::no_overload(function, &types)
    }

    pub(super) fn no_overload(function: &str, types: &[&str]) -> CelFault<'a> {
        let types = types.join(", ");
        CelFault::said(format_args!("found no matching overload for '{function}' applied to '({types})'"))
    }

    /// No method of this name takes values of these types; the first is what it is called on.
    pub(super) fn method<'v>(
        function: &str,
        target: &CelValue<'a>,
        arguments: impl IntoIterator<Item = &'v CelValue<'a>>,
    ) -> CelFault<'a>
    where
        'a: 'v,
    {
        let types: Vec<&str> = arguments.into_iter().map(CelValue::type_name).collect();
        let (target, types) = (target.type_name(), types.join(", "));
        CelFault::said(format_args!(
            "found no matching overload for '{function}' applied to '{target}.({types})'"
        ))
    }

    pub(super) fn unsupported(operator: &str, left: &CelValue<'_>, right: &CelValue<'_>) -> CelFault<'a> {
        let (left, right) = (Shown(left), Shown(right));
        CelFault::said(format_args!("Unsupported binary operator '{operator}': {left}, {right}"))
    }

    pub(super) fn overflow(operator: &str, left: &CelValue<'_>, right: &CelValue<'_>) -> CelFault<'a> {
        let (left, right) = (Shown(left), Shown(right));
        CelFault::said(format_args!("Overflow from binary operator '{operator}': {left}, {right}"))
    }

    pub(super) fn by_zero(operation: &str, value: &CelValue<'_>) -> CelFault<'a> {
        CelFault::said(format_args!("{operation} by zero of {}", Shown(value)))
    }

    pub(super) fn out_of_bounds(index: &CelValue<'_>) -> CelFault<'a> {
        CelFault::said(format_args!("Index out of bounds: {}", Shown(index)))
    }

    pub(super) fn bad_index(index: &CelValue<'_>, of: &CelValue<'_>) -> CelFault<'a> {
        CelFault::said(format_args!("Cannot use value {} to index {}", Shown(index), Shown(of)))
    }

    pub(super) fn bad_key(key: &CelValue<'_>) -> CelFault<'a> {
        CelFault::said(format_args!("Unable to use value '{}' as a key", Shown(key)))
    }

    pub(super) fn repeated_key(key: &CelValue<'_>) -> CelFault<'a> {
        CelFault::said(format_args!("Failed with repeated key: {}", Shown(key)))
    }

    /// A key that is not in a map.
    pub(super) fn missing(key: &CelValue<'_>) -> CelFault<'a> {
        let mut shown = Cut { text: String::new(), room: SHOWN };
        let all = match key {
            CelValue::Text(text) => shown.write_str(text.get()),
            CelValue::Int(number) => write!(shown, "{number}"),
            CelValue::UInt(number) => write!(shown, "{number}"),
            CelValue::Double(number) => write!(shown, "{number}"),
            CelValue::Bool(truth) => write!(shown, "{truth}"),
            _ => Ok(()),
        };
        CelFault::said(format_args!("No such key: {}{}", shown.text, if all.is_err() { "…" } else { "" }))
    }

    pub(super) fn function(name: &str, problem: impl fmt::Display) -> CelFault<'a> {
        CelFault::said(format_args!("Error executing function '{name}': {problem}"))
    }
}

/// A value as `cel` shows it, up to a limit.
pub(super) struct Shown<'v, 'a>(pub(super) &'v CelValue<'a>);

impl fmt::Display for Shown<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cut = Cut { text: String::new(), room: SHOWN };
        let all = show(self.0, &mut cut);
        f.write_str(&cut.text)?;
        if all.is_err() { f.write_char('…') } else { Ok(()) }
    }
}

/// Takes as much text as there is room for, and fails on the first that doesn't fit.
struct Cut {
    text: String,
    room: usize,
}

impl Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.floor_char_boundary(self.room - self.text.len());
        self.text.push_str(&text[..fits]);
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

fn show(value: &CelValue<'_>, f: &mut Cut) -> fmt::Result {
    match value {
        CelValue::Null => f.write_str("Null"),
        CelValue::Bool(truth) => write!(f, "Bool({truth:?})"),
        CelValue::Int(number) => write!(f, "Int({number:?})"),
        CelValue::UInt(number) => write!(f, "UInt({number:?})"),
        CelValue::Double(number) => write!(f, "Float({number:?})"),
        CelValue::Text(text) => write!(f, "String({:?})", text.get()),
        CelValue::Type(name) => write!(f, "String({name:?})"),
        CelValue::Bytes(bytes) => write!(f, "Bytes({:?})", bytes.get()),
        CelValue::Optional(None) => f.write_str("Opaque<optional_type>(OptionalValue { value: None })"),
        CelValue::Optional(Some(value)) => {
            f.write_str("Opaque<optional_type>(OptionalValue { value: Some(")?;
            show(value, f)?;
            f.write_str(") })")
        }
        CelValue::Items(_) | CelValue::List(_) => {
            f.write_str("List([")?;
            for at in 0..value.count().unwrap_or(0) {
                f.write_str(if at > 0 { ", " } else { "" })?;
                value.item(at).map_or(Ok(()), |item| show(&item, f))?;
            }
            f.write_str("])")
        }
        CelValue::Object(map) => show_map(map.iter().map(|(key, value)| (key, CelValue::of(value))), f),
        CelValue::Payloads(map) => {
            show_map(map.iter().map(|(key, payload)| (key, CelValue::of(payload.value()))), f)
        }
        CelValue::Map(map) => {
            f.write_str("Map(Map { map: {")?;
            for (at, (key, value)) in map.iter().enumerate() {
                f.write_str(if at > 0 { ", " } else { "" })?;
                match key.value() {
                    CelValue::UInt(number) => write!(f, "Uint({number})")?,
                    key => show(&key, f)?,
                }
                f.write_str(": ")?;
                show(value, f)?;
            }
            f.write_str("} })")
        }
    }
}

fn show_map<'k, 'v>(entries: impl Iterator<Item = (&'k String, CelValue<'v>)>, f: &mut Cut) -> fmt::Result {
    f.write_str("Map(Map { map: {")?;
    for (at, (key, value)) in entries.enumerate() {
        f.write_str(if at > 0 { ", " } else { "" })?;
        write!(f, "String({key:?}): ")?;
        show(&value, f)?;
    }
    f.write_str("} })")
}
