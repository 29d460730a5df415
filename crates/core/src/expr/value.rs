//! The values of CEL, borrowed from what an expression reads wherever they can be.
//!
//! Cloning one is a copy or a reference count, never a copy of what it holds. So bytes are only made where an operator makes
//! something new, and that is where they are counted.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

use super::fault::CelFault;
use crate::budget::{Meter, TooCostly};
use crate::json::Json;

#[derive(Clone)]
pub(super) enum CelValue<'a> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    Text(CelText<'a>),
    Bytes(CelBytes<'a>),
    /// A list of JSON.
    Items(&'a [Value]),
    List(Rc<Vec<CelValue<'a>>>),
    /// An object of JSON.
    Object(&'a serde_json::Map<String, Value>),
    Map(Rc<CelMap<'a>>),
    /// Payloads by name.
    Payloads(&'a BTreeMap<String, Rc<CelPayload>>),
    Type(&'static str),
    Optional(Option<Rc<CelValue<'a>>>),
}

pub(super) type CelMap<'a> = BTreeMap<CelKey<'a>, CelValue<'a>>;

/// A payload that is parsed when an expression first reads it.
#[derive(Debug)]
pub(crate) struct CelPayload {
    json: Option<Json>,
    parsed: OnceCell<Value>,
}

impl CelPayload {
    pub(crate) fn of(json: Json) -> Rc<CelPayload> {
        Rc::new(CelPayload { json: Some(json), parsed: OnceCell::new() })
    }

    pub(crate) fn parsed(value: Value) -> Rc<CelPayload> {
        Rc::new(CelPayload { json: None, parsed: OnceCell::from(value) })
    }

    /// Its value, parsed once.
    pub(crate) fn value(&self) -> &Value {
        self.parsed.get_or_init(|| self.json.as_ref().map_or(Value::Null, Json::value))
    }

    /// Its value. Parsing is counted where it has to be done.
    pub(super) fn read(&self, meter: &mut Meter<'_>) -> Result<&Value, TooCostly> {
        if let (None, Some(json)) = (self.parsed.get(), &self.json) {
            meter.reads(json.get().len())?;
        }
        Ok(self.value())
    }
}

#[derive(Clone)]
pub(super) enum CelText<'a> {
    Ref(&'a str),
    Own(Rc<str>),
}

#[derive(Clone)]
pub(super) enum CelBytes<'a> {
    Ref(&'a [u8]),
    Own(Rc<[u8]>),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CelKey<'a> {
    Int(i64),
    UInt(u64),
    Bool(bool),
    Text(CelText<'a>),
}

impl CelText<'_> {
    pub(super) fn get(&self) -> &str {
        match self {
            CelText::Ref(text) => text,
            CelText::Own(text) => text,
        }
    }
}

impl CelBytes<'_> {
    pub(super) fn get(&self) -> &[u8] {
        match self {
            CelBytes::Ref(bytes) => bytes,
            CelBytes::Own(bytes) => bytes,
        }
    }
}

impl PartialEq for CelText<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for CelText<'_> {}

impl PartialOrd for CelText<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CelText<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.get().cmp(other.get())
    }
}

impl<'a> CelKey<'a> {
    /// None for a value that cannot be a key.
    pub(super) fn of(value: &CelValue<'a>) -> Option<CelKey<'a>> {
        match value {
            CelValue::Int(number) => Some(CelKey::Int(*number)),
            CelValue::UInt(number) => Some(CelKey::UInt(*number)),
            CelValue::Bool(truth) => Some(CelKey::Bool(*truth)),
            CelValue::Text(text) => Some(CelKey::Text(text.clone())),
            _ => None,
        }
    }

    pub(super) fn value(&self) -> CelValue<'a> {
        match self {
            CelKey::Int(number) => CelValue::Int(*number),
            CelKey::UInt(number) => CelValue::UInt(*number),
            CelKey::Bool(truth) => CelValue::Bool(*truth),
            CelKey::Text(text) => CelValue::Text(text.clone()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            CelKey::Text(text) => text.get().len(),
            _ => 0,
        }
    }

    /// The same number as the other kind of key.
    fn other(&self) -> Option<CelKey<'a>> {
        match self {
            CelKey::Int(number) => u64::try_from(*number).ok().map(CelKey::UInt),
            CelKey::UInt(number) => i64::try_from(*number).ok().map(CelKey::Int),
            _ => None,
        }
    }
}

/// What a key finds in a map.
pub(super) enum Found<'a> {
    Value(CelValue<'a>),
    Nothing,
    /// A value of this type is never a key.
    NoKey,
}

impl<'a> CelValue<'a> {
    /// Whole numbers become ints whatever their sign, so that `input.total > 0` compares like with like.
    pub(super) fn of(value: &'a Value) -> CelValue<'a> {
        match value {
            Value::Null => CelValue::Null,
            Value::Bool(truth) => CelValue::Bool(*truth),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => CelValue::Int(int),
                (None, Some(uint)) => CelValue::UInt(uint),
                (None, None) => CelValue::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => CelValue::Text(CelText::Ref(text)),
            Value::Array(items) => CelValue::Items(items),
            Value::Object(map) => CelValue::Object(map),
        }
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            CelValue::Null => "null_type",
            CelValue::Bool(_) => "bool",
            CelValue::Int(_) => "int",
            CelValue::UInt(_) => "uint",
            CelValue::Double(_) => "double",
            CelValue::Text(_) => "string",
            CelValue::Bytes(_) => "bytes",
            CelValue::Items(_) | CelValue::List(_) => "list",
            CelValue::Object(_) | CelValue::Map(_) | CelValue::Payloads(_) => "map",
            CelValue::Type(_) => "type",
            CelValue::Optional(_) => "optional_type",
        }
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self, CelValue::Items(_) | CelValue::List(_))
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self, CelValue::Object(_) | CelValue::Map(_) | CelValue::Payloads(_))
    }

    /// How many items a list, or entries a map, has; none of anything else.
    pub(super) fn count(&self) -> Option<usize> {
        match self {
            CelValue::Items(items) => Some(items.len()),
            CelValue::List(items) => Some(items.len()),
            CelValue::Object(map) => Some(map.len()),
            CelValue::Map(map) => Some(map.len()),
            CelValue::Payloads(map) => Some(map.len()),
            _ => None,
        }
    }

    /// An item of a list.
    pub(super) fn item(&self, at: usize) -> Option<CelValue<'a>> {
        match self {
            CelValue::Items(items) => items.get(at).map(CelValue::of),
            CelValue::List(items) => items.get(at).cloned(),
            _ => None,
        }
    }

    /// The keys of a map, in order.
    pub(super) fn keys(&self, meter: &mut Meter<'_>) -> Result<Vec<CelValue<'a>>, TooCostly> {
        let count = self.count().unwrap_or(0);
        meter.steps(count as u64)?;
        meter.makes(count * VALUE_BYTES)?;
        let text = |key: &'a String| CelValue::Text(CelText::Ref(key));
        Ok(match self {
            CelValue::Object(map) => map.keys().map(text).collect(),
            CelValue::Payloads(map) => map.keys().map(text).collect(),
            CelValue::Map(map) => map.keys().map(CelKey::value).collect(),
            _ => Vec::new(),
        })
    }

    /// The value of a map under a text.
    pub(super) fn field(&self, name: &str, meter: &mut Meter<'_>) -> Result<Option<CelValue<'a>>, TooCostly> {
        meter.reads(name.len())?;
        Ok(match self {
            CelValue::Object(map) => map.get(name).map(CelValue::of),
            CelValue::Payloads(map) => match map.get(name) {
                Some(payload) => Some(CelValue::of(payload.read(meter)?)),
                None => None,
            },
            CelValue::Map(map) => map.get(&CelKey::Text(CelText::Ref(name))).cloned(),
            _ => None,
        })
    }

    /// Whether a map has something under a text.
    pub(super) fn has(&self, name: &str, meter: &mut Meter<'_>) -> Result<bool, TooCostly> {
        meter.reads(name.len())?;
        Ok(match self {
            CelValue::Object(map) => map.contains_key(name),
            CelValue::Payloads(map) => map.contains_key(name),
            CelValue::Map(map) => map.contains_key(&CelKey::Text(CelText::Ref(name))),
            _ => false,
        })
    }

    /// The value of a map under a key. Numbers are found by what they are, whatever their type.
    pub(super) fn find(&self, key: &CelValue<'a>, meter: &mut Meter<'_>) -> Result<Found<'a>, TooCostly> {
        let found = match key {
            CelValue::Text(text) => self.field(text.get(), meter)?,
            CelValue::Int(_) | CelValue::UInt(_) | CelValue::Bool(_) => match (self, CelKey::of(key)) {
                (CelValue::Map(map), Some(key)) => under(map, &key).cloned(),
                _ => None,
            },
            CelValue::Double(number) => match self {
                CelValue::Map(map) => {
                    let int = int_of(*number).and_then(|int| map.get(&CelKey::Int(int)));
                    let uint = || uint_of(*number).and_then(|uint| map.get(&CelKey::UInt(uint)));
                    int.or_else(uint).cloned()
                }
                _ => None,
            },
            _ => return Ok(Found::NoKey),
        };
        Ok(found.map_or(Found::Nothing, Found::Value))
    }

    /// Whether two values are equal: numbers by what they are, lists and maps by what they hold.
    pub(super) fn equals(&self, other: &CelValue<'a>, meter: &mut Meter<'_>) -> Result<bool, TooCostly> {
        meter.step()?;
        Ok(match (self, other) {
            (CelValue::Null, CelValue::Null) => true,
            (CelValue::Bool(a), CelValue::Bool(b)) => a == b,
            (CelValue::Text(a), CelValue::Text(b)) => {
                let (a, b) = (a.get(), b.get());
                if a.len() == b.len() {
                    meter.reads(a.len())?;
                }
                a == b
            }
            (CelValue::Bytes(a), CelValue::Bytes(b)) => {
                meter.reads(a.get().len().min(b.get().len()))?;
                a.get() == b.get()
            }
            (CelValue::Type(a), CelValue::Type(b)) => a == b,
            (CelValue::Optional(None), CelValue::Optional(None)) => true,
            (CelValue::Optional(Some(a)), CelValue::Optional(Some(b))) => a.equals(b, meter)?,
            (a, b) if a.is_list() && b.is_list() => a.same_items(b, meter)?,
            (a, b) if a.is_map() && b.is_map() => a.same_entries(b, meter)?,
            (a, b) => a.number_order(b) == Some(Ordering::Equal),
        })
    }

    fn same_items(&self, other: &CelValue<'a>, meter: &mut Meter<'_>) -> Result<bool, TooCostly> {
        if self.count() != other.count() {
            return Ok(false);
        }
        for at in 0.. {
            match (self.item(at), other.item(at)) {
                (Some(a), Some(b)) if a.equals(&b, meter)? => {}
                (None, None) => break,
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn same_entries(&self, other: &CelValue<'a>, meter: &mut Meter<'_>) -> Result<bool, TooCostly> {
        if self.count() != other.count() {
            return Ok(false);
        }
        for key in self.keys(meter)? {
            let (Found::Value(a), Found::Value(b)) = (self.find(&key, meter)?, other.find(&key, meter)?)
            else {
                return Ok(false);
            };
            if !a.equals(&b, meter)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The order of two numbers; none where one is no number.
    fn number_order(&self, other: &CelValue<'_>) -> Option<Ordering> {
        use CelValue::{Double, Int, UInt};
        match (self, other) {
            (Int(a), Int(b)) => Some(a.cmp(b)),
            (UInt(a), UInt(b)) => Some(a.cmp(b)),
            (Double(a), Double(b)) => a.partial_cmp(b),
            (Int(a), UInt(b)) => Some(u64::try_from(*a).map_or(Ordering::Less, |a| a.cmp(b))),
            (UInt(a), Int(b)) => Some(i64::try_from(*a).map_or(Ordering::Greater, |a| a.cmp(b))),
            (Int(a), Double(b)) => (*a as f64).partial_cmp(b),
            (UInt(a), Double(b)) => (*a as f64).partial_cmp(b),
            (Double(a), Int(b)) => a.partial_cmp(&(*b as f64)),
            (Double(a), UInt(b)) => a.partial_cmp(&(*b as f64)),
            _ => None,
        }
    }

    /// The order of two values; none where they have none.
    pub(super) fn order(
        &self,
        other: &CelValue<'_>,
        meter: &mut Meter<'_>,
    ) -> Result<Option<Ordering>, TooCostly> {
        Ok(match (self, other) {
            (CelValue::Text(a), CelValue::Text(b)) => {
                meter.reads(a.get().len().min(b.get().len()))?;
                Some(a.get().cmp(b.get()))
            }
            (CelValue::Bytes(a), CelValue::Bytes(b)) => {
                meter.reads(a.get().len().min(b.get().len()))?;
                Some(a.get().cmp(b.get()))
            }
            (CelValue::Bool(a), CelValue::Bool(b)) => Some(a.cmp(b)),
            (a, b) => a.number_order(b),
        })
    }

    /// Whether a list has an item, or a map a key; the types have no `in` where none is returned.
    pub(super) fn holds(
        &self,
        item: &CelValue<'a>,
        meter: &mut Meter<'_>,
    ) -> Result<Option<bool>, TooCostly> {
        if self.is_map() {
            return Ok(match self.find(item, meter)? {
                Found::Value(_) => Some(true),
                Found::Nothing => Some(false),
                Found::NoKey => None,
            });
        }
        let Some(count) = self.count() else { return Ok(None) };
        for at in 0..count {
            if let Some(mine) = self.item(at)
                && mine.equals(item, meter)?
            {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    /// Its JSON, copied.
    pub(super) fn json(&self, meter: &mut Meter<'_>) -> Result<Value, TooCostly> {
        meter.step()?;
        meter.makes(VALUE_BYTES)?;
        Ok(match self {
            CelValue::Null | CelValue::Optional(_) => Value::Null,
            CelValue::Bool(truth) => Value::Bool(*truth),
            CelValue::Int(number) => Value::from(*number),
            CelValue::UInt(number) => Value::from(*number),
            CelValue::Double(number) => Value::from(*number),
            CelValue::Text(text) => Value::String(copied(text.get(), meter)?),
            CelValue::Type(name) => Value::from(*name),
            CelValue::Bytes(bytes) => {
                meter.makes(bytes.get().len() * 2)?;
                cel::Value::from(bytes.get().to_vec()).json().unwrap_or(Value::Null)
            }
            CelValue::Items(_) | CelValue::List(_) => {
                let mut items = Vec::new();
                for at in 0..self.count().unwrap_or(0) {
                    items.extend(self.item(at).map(|item| item.json(meter)).transpose()?);
                }
                Value::Array(items)
            }
            CelValue::Object(map) => {
                let mut object = serde_json::Map::new();
                for (key, value) in *map {
                    object.insert(entry(key, meter)?, CelValue::of(value).json(meter)?);
                }
                Value::Object(object)
            }
            CelValue::Payloads(map) => {
                let mut object = serde_json::Map::new();
                for (key, payload) in *map {
                    let value = CelValue::of(payload.read(meter)?).json(meter)?;
                    object.insert(entry(key, meter)?, value);
                }
                Value::Object(object)
            }
            CelValue::Map(map) => {
                let mut object = serde_json::Map::new();
                for (key, value) in map.iter() {
                    let key = match key {
                        CelKey::Int(number) => number.to_string(),
                        CelKey::UInt(number) => number.to_string(),
                        CelKey::Bool(truth) => truth.to_string(),
                        CelKey::Text(text) => text.get().to_owned(),
                    };
                    object.insert(entry(&key, meter)?, value.json(meter)?);
                }
                Value::Object(object)
            }
        })
    }
}

/// What a value takes, here and as JSON. It's the same number on every machine: whether an evaluation fits must not depend on
/// where it runs.
pub(super) const VALUE_BYTES: usize = 32;
/// What an entry of a map takes beside its key and its value.
pub(super) const ENTRY_BYTES: usize = 48;

fn entry(key: &str, meter: &mut Meter<'_>) -> Result<String, TooCostly> {
    meter.makes(ENTRY_BYTES)?;
    copied(key, meter)
}

fn copied(text: &str, meter: &mut Meter<'_>) -> Result<String, TooCostly> {
    meter.makes(text.len())?;
    Ok(text.to_owned())
}

/// The value under a key, or under the same number as the other kind of key.
pub(super) fn under<'m, 'a>(map: &'m CelMap<'a>, key: &CelKey<'a>) -> Option<&'m CelValue<'a>> {
    map.get(key).or_else(|| key.other().and_then(|other| map.get(&other)))
}

/// Adds an entry, unless the map has its key.
pub(super) fn insert<'a>(
    map: &mut CelMap<'a>,
    key: CelKey<'a>,
    value: CelValue<'a>,
    meter: &mut Meter<'_>,
) -> Result<(), CelFault<'a>> {
    meter.reads(key.bytes())?;
    meter.makes(ENTRY_BYTES + 2 * VALUE_BYTES)?;
    if under(map, &key).is_some() {
        return Err(CelFault::repeated_key(&key.value()));
    }
    map.insert(key, value);
    Ok(())
}

/// A number without a fraction, as an int.
pub(super) fn int_of(number: f64) -> Option<i64> {
    let fits = number > i64::MIN as f64 && number < i64::MAX as f64;
    fits.then_some(number as i64).filter(|int| *int as f64 == number)
}

fn uint_of(number: f64) -> Option<u64> {
    let fits = number >= 0.0 && number < u64::MAX as f64;
    fits.then_some(number as u64).filter(|uint| *uint as f64 == number)
}
