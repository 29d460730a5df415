//! The inputs of a run's steps according to its log: the events that each step waits for and that were there when it was
//! triggered.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::definition::Subscribes;
use flowline_core::event::{Event, EventType};
use flowline_core::{Json, RunKey};
use serde::Deserialize;
use serde_json::Value;

use crate::flow::FlowMap;
use crate::source::StoreSnapshot;
use crate::violation::Checker;
use crate::walk::Walk;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    name: String,
    #[serde(deserialize_with = "flowline_core::json::present")]
    payload: Option<Json>,
    input: Option<Json>,
}

/// By triggered step. Empty for a machine, whose actions get their event instead.
pub(crate) fn inputs(
    source: &dyn StoreSnapshot,
    run: &RunKey,
    events: &[Event],
) -> BTreeMap<Arc<str>, Value> {
    let mut inputs = BTreeMap::new();
    let Some(row) = source.row(run) else { return inputs };
    let body = source.definition(&row.tenant, &row.definition);
    let flow = body.and_then(|body| FlowMap::read(&row.flow_name, &body).ok());
    let Some(flow) = flow.filter(|flow| flow.states.is_none()) else { return inputs };
    let mut walk = Walk::new(run.clone(), row.flow_name, &flow);
    let mut emitted: BTreeMap<String, Option<Value>> = BTreeMap::new();
    let mut input = Value::Null;
    // Other checks report what's wrong with the log itself.
    let mut ignored = Checker::default().findings();
    for event in events {
        if matches!(event.kind, EventType::FlowStart | EventType::Emit) {
            let data: Data = event.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default();
            match event.kind {
                EventType::FlowStart => input = data.input.map(|input| input.value()).unwrap_or_default(),
                _ => {
                    emitted.entry(data.name).or_insert(data.payload.map(|payload| payload.value()));
                }
            }
        }
        walk.event(&flow, event, &mut ignored);
        for step in std::mem::take(&mut walk.triggered) {
            let definition = &flow.definition.steps[step];
            let fixed = match &definition.subscribes {
                None => input.clone(),
                Some(wanted) => wanted
                    .leaves()
                    .into_iter()
                    .filter_map(|leaf| match leaf {
                        Subscribes::Event(name) => Some((name.clone(), emitted.get(name)?.clone()?)),
                        _ => None,
                    })
                    .collect(),
            };
            inputs.insert(definition.name.as_str().into(), fixed);
        }
    }
    inputs
}
