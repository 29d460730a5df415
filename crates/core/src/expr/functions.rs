//! CEL's functions: sizes, conversions, questions about text, optionals.

use std::rc::Rc;

use super::evaluate::Evaluation;
use super::fault::CelFault;
use super::value::{CelBytes, CelText, CelValue};

/// Bytes of text that take as long to search or to parse as one step.
const SEARCHED: usize = 16;

/// Calls a function. What no function here takes is an error, of which the message depends on whether there is one of this
/// name at all.
pub(super) fn call<'a>(
    of: &mut Evaluation<'a, '_, '_>,
    name: &'a str,
    args: &[CelValue<'a>],
) -> Result<CelValue<'a>, CelFault<'a>> {
    let value = match (name, args) {
        ("size", [value]) => size(of, value)?,
        ("dyn", [value]) => Some(value.clone()),
        ("type", [value]) => Some(CelValue::Type(value.type_name())),
        ("string", [value]) => string(of, value)?,
        ("bytes", [value]) => bytes(value),
        ("bool", [value]) => boolean(of, value)?,
        ("int", [value]) => int(of, value)?,
        ("uint", [value]) => uint(of, value)?,
        ("double", [value]) => double(of, value)?,
        ("optional.none", []) => Some(CelValue::Optional(None)),
        ("optional.of", [value]) => Some(CelValue::Optional(Some(Rc::new(value.clone())))),
        ("optional.ofNonZeroValue", [value]) => {
            let value = (!is_zero(value)).then(|| Rc::new(value.clone()));
            Some(CelValue::Optional(value))
        }
        (
            "size"
            | "dyn"
            | "type"
            | "string"
            | "bytes"
            | "bool"
            | "int"
            | "uint"
            | "double"
            | "optional.none"
            | "optional.of"
            | "optional.ofNonZeroValue",
            _,
        ) => None,
        _ => return Err(CelFault::Undeclared(name)),
    };
    match value {
        Some(value) => Ok(value),
        None => Err(of.said(CelFault::overload(name, args))),
    }
}

/// Calls a function on a value.
pub(super) fn method<'a>(
    of: &mut Evaluation<'a, '_, '_>,
    name: &'a str,
    target: CelValue<'a>,
    args: &[CelValue<'a>],
) -> Result<CelValue<'a>, CelFault<'a>> {
    let value = match (name, &target, args) {
        ("size", _, []) => size(of, &target)?,
        ("contains", CelValue::Text(text), [CelValue::Text(part)]) => {
            of.meter.steps(((text.get().len() + part.get().len()) / SEARCHED) as u64)?;
            Some(CelValue::Bool(text.get().contains(part.get())))
        }
        ("startsWith", CelValue::Text(text), [CelValue::Text(part)]) => {
            of.meter.reads(part.get().len())?;
            Some(CelValue::Bool(text.get().starts_with(part.get())))
        }
        ("endsWith", CelValue::Text(text), [CelValue::Text(part)]) => {
            of.meter.reads(part.get().len())?;
            Some(CelValue::Bool(text.get().ends_with(part.get())))
        }
        ("hasValue", CelValue::Optional(value), []) => Some(CelValue::Bool(value.is_some())),
        ("value", CelValue::Optional(value), []) => match value {
            Some(value) => Some((**value).clone()),
            None => return Err(of.said(CelFault::function("value", "optional.none() dereference"))),
        },
        ("or", CelValue::Optional(value), [other]) => {
            Some(if value.is_some() { target.clone() } else { other.clone() })
        }
        ("orValue", CelValue::Optional(value), [other]) => {
            Some(value.as_ref().map_or_else(|| other.clone(), |value| (**value).clone()))
        }
        ("size" | "contains" | "startsWith" | "endsWith" | "hasValue" | "value" | "or" | "orValue", _, _) => {
            None
        }
        _ => return Err(CelFault::Undeclared(name)),
    };
    match value {
        Some(value) => Ok(value),
        None => Err(of.said(CelFault::method(name, &target, args))),
    }
}

type Given<'a> = Result<Option<CelValue<'a>>, CelFault<'a>>;

fn size<'a>(of: &mut Evaluation<'a, '_, '_>, value: &CelValue<'a>) -> Given<'a> {
    let size = match value {
        CelValue::Text(text) => {
            of.meter.reads(text.get().len())?;
            Some(text.get().chars().count())
        }
        CelValue::Bytes(bytes) => Some(bytes.get().len()),
        value => value.count(),
    };
    Ok(size.map(|size| CelValue::Int(size as i64)))
}

fn string<'a>(of: &mut Evaluation<'a, '_, '_>, value: &CelValue<'a>) -> Given<'a> {
    let text = match value {
        CelValue::Text(text) => return Ok(Some(CelValue::Text(text.clone()))),
        CelValue::Bool(truth) => truth.to_string(),
        CelValue::Int(number) => number.to_string(),
        CelValue::UInt(number) => number.to_string(),
        CelValue::Double(number) => number.to_string(),
        CelValue::Bytes(bytes) => {
            of.meter.makes(2 * bytes.get().len())?;
            match std::str::from_utf8(bytes.get()) {
                Ok(text) => text.to_owned(),
                Err(_) => {
                    let problem = "invalid UTF-8 in bytes, cannot convert to string";
                    return Err(of.said(CelFault::function("string", problem)));
                }
            }
        }
        _ => return Ok(None),
    };
    of.meter.makes(text.len())?;
    Ok(Some(CelValue::Text(CelText::Own(text.into()))))
}

fn bytes<'a>(value: &CelValue<'a>) -> Option<CelValue<'a>> {
    match value {
        CelValue::Text(CelText::Ref(text)) => Some(CelValue::Bytes(CelBytes::Ref(text.as_bytes()))),
        CelValue::Text(CelText::Own(text)) => Some(CelValue::Bytes(CelBytes::Own(text.clone().into()))),
        CelValue::Bytes(bytes) => Some(CelValue::Bytes(bytes.clone())),
        _ => None,
    }
}

fn boolean<'a>(of: &mut Evaluation<'a, '_, '_>, value: &CelValue<'a>) -> Given<'a> {
    match value {
        CelValue::Bool(truth) => Ok(Some(CelValue::Bool(*truth))),
        CelValue::Text(text) => match text.get() {
            "1" | "t" | "true" | "TRUE" | "True" => Ok(Some(CelValue::Bool(true))),
            "0" | "f" | "false" | "FALSE" | "False" => Ok(Some(CelValue::Bool(false))),
            _ => Err(of.said(CelFault::function("bool", "Type conversion error from 'string' to 'bool'"))),
        },
        _ => Ok(None),
    }
}

fn int<'a>(of: &mut Evaluation<'a, '_, '_>, value: &CelValue<'a>) -> Given<'a> {
    let overflow = || CelFault::function("int", "integer overflow");
    let number = match value {
        CelValue::Int(number) => Ok(*number),
        CelValue::UInt(number) => i64::try_from(*number).map_err(|_| overflow()),
        CelValue::Double(number) if *number > i64::MIN as f64 && *number < i64::MAX as f64 => {
            Ok(*number as i64)
        }
        CelValue::Double(_) => Err(overflow()),
        CelValue::Text(text) => parsed(of, "int", text)?,
        _ => return Ok(None),
    };
    number.map(|number| Some(CelValue::Int(number))).map_err(|fault| of.said(fault))
}

fn uint<'a>(of: &mut Evaluation<'a, '_, '_>, value: &CelValue<'a>) -> Given<'a> {
    let overflow = || CelFault::function("uint", "unsigned integer overflow");
    let number = match value {
        CelValue::UInt(number) => Ok(*number),
        CelValue::Int(number) => u64::try_from(*number).map_err(|_| overflow()),
        CelValue::Double(number) if *number >= 0.0 && *number < u64::MAX as f64 => Ok(*number as u64),
        CelValue::Double(_) => Err(overflow()),
        CelValue::Text(text) => parsed(of, "uint", text)?,
        _ => return Ok(None),
    };
    number.map(|number| Some(CelValue::UInt(number))).map_err(|fault| of.said(fault))
}

fn double<'a>(of: &mut Evaluation<'a, '_, '_>, value: &CelValue<'a>) -> Given<'a> {
    let number = match value {
        CelValue::Double(number) => Ok(*number),
        CelValue::Int(number) => Ok(*number as f64),
        CelValue::UInt(number) => Ok(*number as f64),
        CelValue::Text(text) => parsed(of, "double", text)?,
        _ => return Ok(None),
    };
    number.map(|number| Some(CelValue::Double(number))).map_err(|fault| of.said(fault))
}

/// A number that a text says.
fn parsed<'a, T: std::str::FromStr<Err: std::fmt::Display>>(
    of: &mut Evaluation<'a, '_, '_>,
    function: &str,
    text: &CelText<'a>,
) -> Result<Result<T, CelFault<'a>>, CelFault<'a>> {
    of.meter.steps((text.get().len() / SEARCHED) as u64)?;
    let problem = |error| CelFault::function(function, format_args!("string parse error: {error}"));
    Ok(text.get().parse().map_err(problem))
}

/// What counts as nothing for `optional.ofNonZeroValue`.
fn is_zero(value: &CelValue<'_>) -> bool {
    match value {
        CelValue::Null => true,
        CelValue::Bool(truth) => !truth,
        CelValue::Int(number) => *number == 0,
        CelValue::UInt(number) => *number == 0,
        CelValue::Double(number) => *number == 0.0,
        CelValue::Text(text) => text.get().is_empty(),
        CelValue::Bytes(bytes) => bytes.get().is_empty(),
        CelValue::Type(_) | CelValue::Optional(_) => false,
        value => value.count() == Some(0),
    }
}
