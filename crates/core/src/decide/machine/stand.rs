//! A retry of a machine's run: it continues from the state, context, timers and receipts of the retried run.
//!
//! All of it is written into the log of the new run, so that nothing depends on the old one being kept.

use crate::decide::draft::Draft;
use crate::decide::{Halt, Refusal, known_event};
use crate::event::{EventType, PayloadSlot};
use crate::json::{self, Json};
use crate::receipt::{Opened, ReceiptChange, ReceiptStatus};
use crate::run::Fact;
use crate::time::Time;
use std::sync::Arc;

use super::super::Sender;

/// Where the run of a machine stood.
#[derive(Debug, Clone)]
pub struct Standing {
    pub state: Arc<str>,
    /// The number of its last transition.
    pub transition: u32,
    pub context: Json,
    /// The timers that were set, each with the time that it was set for.
    pub timers: Vec<(u32, Time)>,
    /// The events that it had accepted until then, in order.
    pub past: Vec<PastEvent>,
    pub again: Option<TriedAgain>,
}

/// An event that a machine is done with.
#[derive(Debug, Clone)]
pub struct PastEvent {
    pub opened: Opened,
    pub status: ReceiptStatus,
    pub outcome: Option<Json>,
}

/// What a machine that stands where another stood does first.
#[derive(Debug, Clone)]
pub enum TriedAgain {
    /// The event, under the id that it had.
    Event { name: String, payload: Json, event_id: String, sender: Sender },
    /// The timer fires, however late it is.
    Timer(u32),
}

impl Draft<'_> {
    pub(in crate::decide) fn stand(&mut self, standing: &Standing) -> Result<(), Halt> {
        let states = &self.planned().states;
        let Some(state) = states.iter().position(|known| known.name == standing.state) else {
            let problem = format!("there is no state {:?}", standing.state);
            return Err(Refusal::Expression { problem }.into());
        };
        for (at, past) in standing.past.iter().enumerate() {
            self.take_over(at as u32 + 1, past);
        }
        let transition = standing.transition;
        let data = json::object([
            ("to", Some(&json::string(&standing.state))),
            ("transition", Some(&json::number(transition.into()))),
            ("context", Some(&standing.context)),
            ("inherited", Some(&Json::from(true))),
        ]);
        self.keep(PayloadSlot::Context(transition), &standing.context);
        let fact = Fact::Stood { state: state as u32, transition };
        self.push_run(fact, EventType::StateChanged, Some(data));
        for (timer, due) in &standing.timers {
            self.set_timer(*timer, *due);
        }
        match standing.again.as_ref() {
            Some(TriedAgain::Event { name, payload, event_id, sender }) => {
                let event = known_event(self.plan, name)?;
                self.take_in((event, name), payload, event_id, sender);
            }
            Some(TriedAgain::Timer(timer)) => self.push_timer(*timer, EventType::TimerFired, None),
            None => {}
        }
        self.advance()
    }

    fn take_over(&mut self, number: u32, past: &PastEvent) {
        let PastEvent { opened, status, outcome } = past;
        let data = json::object([
            ("name", Some(&json::string(&opened.name))),
            ("eventId", Some(&json::string(&opened.event_id))),
            ("number", Some(&json::number(number.into()))),
            ("sender", opened.sender.as_ref()),
            ("inherited", Some(&Json::from(true))),
            ("status", Some(&json::string(status.as_str()))),
        ]);
        self.push_run(Fact::Inherited { number }, EventType::EventReceived, Some(data));
        let change = ReceiptChange::new(number, *status);
        let change = ReceiptChange { opened: Some(opened.clone()), outcome: outcome.clone(), ..change };
        self.receipts.insert(number, change);
    }
}
