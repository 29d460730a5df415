//! A JSON value whose texts are [templates](crate::template): the body of a request, the input of a run to start.

use serde_json::{Map, Value};

use crate::budget::Budget;
use crate::expr::{EvaluationError, Variables};
use crate::limits::Limit;
use crate::template::Template;

#[derive(Debug)]
pub(crate) enum Shape {
    Text(Template),
    Plain(Value),
    List(Vec<Shape>),
    Map(Vec<(String, Shape)>),
}

impl Shape {
    pub(crate) fn compile(value: &Value) -> Result<Shape, String> {
        Ok(match value {
            Value::String(text) => Shape::Text(Template::parse(text)?),
            Value::Array(items) => Shape::List(items.iter().map(Shape::compile).collect::<Result<_, _>>()?),
            Value::Object(map) => {
                let entry = |(key, value): (&String, &Value)| Ok((key.clone(), Shape::compile(value)?));
                Shape::Map(map.iter().map(entry).collect::<Result<_, String>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Shape::Plain(value.clone()),
        })
    }

    pub(crate) fn reads_input(&self) -> bool {
        match self {
            Shape::Text(template) => template.reads_input(),
            Shape::Plain(_) => false,
            Shape::List(items) => items.iter().any(Shape::reads_input),
            Shape::Map(entries) => entries.iter().any(|(_, value)| value.reads_input()),
        }
    }

    /// Its value. What its templates put in is limited: they can repeat a large input many times.
    pub(crate) fn value(
        &self,
        variables: &Variables,
        budget: &Budget,
        limit: Limit,
    ) -> Result<Value, EvaluationError> {
        let mut room = limit.bytes;
        self.render(variables, budget, limit, &mut room)
    }

    /// `room` is how many bytes the rest may have.
    fn render(
        &self,
        variables: &Variables,
        budget: &Budget,
        limit: Limit,
        room: &mut usize,
    ) -> Result<Value, EvaluationError> {
        Ok(match self {
            Shape::Text(template) => {
                let value = template.value(variables, budget)?;
                let size = match &value {
                    Value::String(text) => text.len(),
                    Value::Array(_) | Value::Object(_) => value.to_string().len(),
                    _ => 0,
                };
                *room = room
                    .checked_sub(size)
                    .ok_or_else(|| format!("it's over {} bytes (setting {})", limit.bytes, limit.setting))?;
                value
            }
            Shape::Plain(value) => value.clone(),
            Shape::List(items) => Value::Array(
                items
                    .iter()
                    .map(|item| item.render(variables, budget, limit, room))
                    .collect::<Result<_, _>>()?,
            ),
            Shape::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(key.clone(), value.render(variables, budget, limit, room)?);
                }
                Value::Object(map)
            }
        })
    }
}
