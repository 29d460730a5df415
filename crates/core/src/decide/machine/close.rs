//! Endings: an event is rejected, the receipt of a handled one is written, the run ends.

use super::list;
use crate::decide::Halt;
use crate::decide::draft::Draft;
use crate::definition::Ends;
use crate::event::{EventType, PayloadSlot};
use crate::expr::{CelPayload, EvaluationError, Variables};
use crate::json::{self, Json};
use crate::machine::{Current, Turn};
use crate::receipt::{ReceiptChange, ReceiptStatus};
use crate::run::{Ended, Fact};

/// Why an event is rejected when its turn comes.
pub(super) struct Rejection {
    pub(super) code: &'static str,
    pub(super) reason: String,
}

impl Draft<'_> {
    pub(super) fn reject(&mut self, number: u32, event: u32, why: &Rejection, event_id: Option<&str>) {
        let accepts =
            list(self.planned_state().on.keys().map(|&event| &*self.plan.events[event as usize].name));
        let state = self.state_name(self.machine().state);
        let (code, reason) = (json::string(why.code), json::string(&why.reason));
        let data = json::object([
            ("name", Some(&json::string(&self.plan.events[event as usize].name))),
            ("eventId", event_id.map(json::string).as_ref()),
            ("number", Some(&json::number(number.into()))),
            ("state", Some(&state)),
            ("code", Some(&code)),
            ("reason", Some(&reason)),
        ]);
        self.push_run(Fact::Rejected { number }, EventType::EventRejected, Some(data));
        let outcome = json::object([
            ("previousState", Some(&state)),
            ("currentState", Some(&state)),
            ("error", Some(&reason)),
            ("code", Some(&code)),
            ("accepts", Some(&accepts)),
        ]);
        self.note_receipt(number, ReceiptStatus::Failed, Some(outcome));
    }

    pub(super) fn note_receipt(&mut self, number: u32, status: ReceiptStatus, outcome: Option<Json>) {
        let change = ReceiptChange { outcome, ..ReceiptChange::new(number, status) };
        match self.receipts.get_mut(&number) {
            Some(before) => before.then(change),
            None => drop(self.receipts.insert(number, change)),
        }
    }

    /// The run is about to end: rejects the events in its inbox, and the one whose turn it is.
    pub(in crate::decide) fn close_inbox(&mut self, how: Ended) {
        let Some(machine) = &self.state.machine else { return };
        let word = format!("{how:?}").to_lowercase();
        let (waiting, current) = (machine.inbox.clone(), machine.current.clone());
        let why = Rejection { code: "ended", reason: format!("the run has ended ({word})") };
        for turn in waiting {
            if let Turn::Event { number, event } = turn {
                self.reject(number, event, &why, None);
            }
        }
        if let Some(Current { by: Turn::Event { number, .. }, from, .. }) = current {
            let outcome = json::object([
                ("previousState", from.map(|state| self.state_name(state)).as_ref()),
                ("currentState", Some(&self.state_name(self.machine().state))),
                ("error", Some(&json::string(&why.reason))),
                ("code", Some(&json::string(why.code))),
            ]);
            self.note_receipt(number, ReceiptStatus::Failed, Some(outcome));
        }
    }

    pub(super) fn end_failed(&mut self, action: u32) -> Result<(), Halt> {
        let error = self.error_of(action)?;
        let name = json::string(&self.plan.step(action).name);
        self.end(Ended::Failed, &[("error", Some(&error)), ("step", Some(&name))]);
        Ok(())
    }

    /// Something that only the definition can be blamed for.
    pub(super) fn give_up(&mut self, problem: EvaluationError) -> Result<(), Halt> {
        self.end_by(&problem);
        Ok(())
    }

    /// The machine is in a final state and everything that this asked for is done.
    pub(super) fn reach_end(&mut self) -> Result<(), Halt> {
        let (state, ends) = (self.planned_state().name.clone(), self.planned_state().ends);
        if ends == Ends::Failed {
            let error = format!("the machine ended in state {state:?}");
            return self.give_up(error.into());
        }
        let context = self.context()?;
        let plan = self.plan;
        let result = match &plan.output {
            None => Ok(Json::composed(context.value().to_string())),
            Some(output) => {
                let input = match output.reads().input {
                    true => self.value(PayloadSlot::Input)?,
                    false => CelPayload::of(Json::null()),
                };
                let variables = Variables::of([("input", input), ("context", context)]);
                output.evaluate_in(&variables, self.budget).map(Json::from).and_then(|json| {
                    let limit = self.moment.limits.payload();
                    json.within("the result", limit).map_err(|error| error.to_string().into())
                })
            }
        };
        match result {
            Ok(result) => {
                let actions = json::number(self.plan.steps.len() as i64);
                let fields = [
                    ("result", Some(&result)),
                    ("state", Some(&json::string(&state))),
                    ("stepCount", Some(&actions)),
                ];
                self.end(Ended::Completed, &fields);
                Ok(())
            }
            Err(problem) => self.give_up(problem.at("`output`")),
        }
    }
}
