//! The position of a machine's run, for people: what it accepts and from whom, the turn and its actions, the inbox, the
//! timers and the context. Read-only.

use flowline_core::decide::ReceivedEvent;
use flowline_core::event::PayloadSlot;
use flowline_core::machine::{Current, MachineState, Turn};
use flowline_core::plan::PlanMachine;
use flowline_core::{Json, Plan, RunKey, RunState};
use flowline_store::{JobRow, Store, StoreError};

use crate::ledger::timer_of;

pub use flowline_api::explain::{Accepted, Armed, By, Position, Taken};

/// Reads the position of a run, given its state and jobs. `None` for a flow, and before a machine's first state.
pub async fn read(
    store: &dyn Store,
    run: &RunKey,
    (plan, state): (&Plan, &RunState),
    jobs: &[JobRow],
) -> Result<Option<Position>, StoreError> {
    let (Some(planned), Some(machine)) = (&plan.machine, &state.machine) else { return Ok(None) };
    if machine.transition == 0 {
        return Ok(None);
    }
    let turn = machine.current.as_ref().filter(|_| state.ended.is_none());
    let context = (machine.context > 0).then_some(PayloadSlot::Context(machine.context));
    let received = turn.and_then(received);
    let slots: Vec<PayloadSlot> = context.into_iter().chain(received).collect();
    let mut found = store.payloads_of(run, &slots).await?.into_iter().zip(&slots);
    let mut next = || found.next().and_then(|(data, slot)| Some(slot.open(&data?)));
    let context = context.and_then(|_| next()).unwrap_or_else(|| Json::from(serde_json::json!({})));
    let received = received.and_then(|_| next()?.to::<ReceivedEvent>().ok());
    Ok(Some(Position {
        context,
        accepts: if state.ended.is_some() { Vec::new() } else { accepts(plan, planned, machine.state) },
        turn: turn.map(|turn| taken(plan, turn, received)),
        inbox: machine.inbox.len(),
        timers: timers(planned, machine, jobs),
    }))
}

fn received(turn: &Current) -> Option<PayloadSlot> {
    match turn.by {
        Turn::Event { number, .. } => Some(PayloadSlot::Received(number)),
        _ => None,
    }
}

fn accepts(plan: &Plan, machine: &PlanMachine, state: u32) -> Vec<Accepted> {
    let on = machine.state(state).on.iter();
    on.map(|(&event, transitions)| {
        let mut roles: Vec<String> = Vec::new();
        if transitions.iter().all(|transition| !transition.roles.is_empty()) {
            for role in transitions.iter().flat_map(|transition| &transition.roles) {
                if !roles.contains(role) {
                    roles.push(role.clone());
                }
            }
        }
        Accepted { event: plan.events[event as usize].name.clone(), roles }
    })
    .collect()
}

fn taken(plan: &Plan, turn: &Current, received: Option<ReceivedEvent>) -> Taken {
    let (by, event) = match turn.by {
        Turn::Start => (By::Start, None),
        Turn::Event { event, .. } => (By::Event, Some(plan.events[event as usize].name.clone())),
        Turn::Timer(_) => (By::Timer, None),
        Turn::Error(_) => (By::Error, None),
    };
    let actions = turn.asked.iter().map(|asked| plan.step(asked.action).name.clone()).collect();
    Taken { by, event, event_id: received.map(|received| received.event_id), actions }
}

fn timers(planned: &PlanMachine, machine: &MachineState, jobs: &[JobRow]) -> Vec<Armed> {
    let armed = |job: &JobRow| {
        let timer = timer_of(job.key).filter(|timer| machine.armed.contains_key(timer))?;
        let to = planned.timer(timer).then.to.map(|to| planned.state(to).name.clone());
        Some(Armed { at: job.due, to })
    };
    let mut timers: Vec<Armed> = jobs.iter().filter_map(armed).collect();
    timers.sort_by_key(|timer| timer.at);
    timers
}
