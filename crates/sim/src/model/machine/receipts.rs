//! What the processing records of events must say in the end.

use flowline_store::{Receipt, ReceiptStatus};
use serde_json::{Value, json};

use super::{Current, Model, Phase, Turn};

/// What became of an event.
#[derive(Debug, Clone)]
pub(super) struct Became {
    pub(super) status: ReceiptStatus,
    outcome: Value,
}

impl Model<'_> {
    /// An event was turned down, and why.
    pub(super) fn turned_down(&mut self, number: u32, code: &str) {
        let outcome = json!({ "code": code });
        self.became.insert(number, Became { status: ReceiptStatus::Failed, outcome });
    }

    /// The actions of a turn are done.
    pub(super) fn finished(&mut self, current: &Current) {
        let Turn::Event(number) = current.by else { return };
        let failed = self.failed.is_some() || self.error.is_some();
        let executed = current.asked.iter().filter(|(action, _)| self.phases[*action] == Phase::Completed);
        let executed: Vec<&String> =
            executed.map(|(action, _)| &self.definition.steps[*action].name).collect();
        let name = |state: usize| self.machine.states[state].name.clone();
        let outcome = json!({
            "previousState": current.from.map(name),
            "currentState": name(self.state),
            "actionsExecuted": executed,
            "code": failed.then_some("action_failed"),
        });
        let status = if failed { ReceiptStatus::Failed } else { ReceiptStatus::Completed };
        self.became.insert(number, Became { status, outcome });
    }

    /// The run ended while actions of a turn ran.
    pub(super) fn give_up_turn(&mut self) {
        if let Some(Current { by: Turn::Event(number), .. }) = self.current.take() {
            self.turned_down(number, "ended");
        }
    }

    pub(super) fn check_receipts(&self, receipts: &[Receipt]) -> Result<(), String> {
        for (number, letter) in &self.letters {
            let Some(receipt) = receipts.iter().find(|receipt| receipt.number == *number) else {
                return Err(format!("event {number} has no receipt"));
            };
            if *receipt.event_id != letter.id || *receipt.name != letter.name {
                return Err(format!("event {number} has the receipt of {}", receipt.event_id));
            }
            let Some(became) = self.became.get(number) else {
                // It waits, or has the turn: the log says which, and the checker holds the receipt against that.
                continue;
            };
            let outcome = receipt.outcome.as_ref().map(|outcome| outcome.value()).unwrap_or_default();
            let Value::Object(expected) = &became.outcome else { continue };
            let differs = |(key, value): &(&String, &Value)| {
                outcome.get(key.as_str()).unwrap_or(&Value::Null) != *value
            };
            if receipt.status != became.status || expected.iter().any(|field| differs(&field)) {
                return Err(format!("event {number} should be {became:?}, but its receipt says {receipt:?}"));
            }
        }
        match receipts.len() == self.letters.len() {
            true => Ok(()),
            false => Err(format!("{} events have {} receipts", self.letters.len(), receipts.len())),
        }
    }
}
