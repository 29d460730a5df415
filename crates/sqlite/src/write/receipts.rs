//! What became of events, written with the commit that says so.

use flowline_core::event::PayloadSlot;
use flowline_core::{RunKey, Time};
use flowline_store::{CommitError, Opened, Receipt, ReceiptChange, StoreError};
use rusqlite::params;

use super::Writer;
use crate::code;
use crate::fault::Fault;

impl Writer<'_> {
    pub(super) fn change_receipts(
        &mut self,
        id: i64,
        ts: Time,
        changes: &[ReceiptChange],
    ) -> Result<(), Fault> {
        for ReceiptChange { number, opened, status, worker, outcome } in changes {
            let started = status.is_started().then_some(ts.millis());
            let ended = status.is_end().then_some(ts.millis());
            let status = code::receipt_status_number(*status);
            let outcome = outcome.as_ref().map(|outcome| outcome.get());
            match opened {
                Some(Opened { event_id, name, sender }) => {
                    let tenant = self.run(id)?.tenant;
                    let seq = self.take_seq(id, |slot| slot == PayloadSlot::Received(*number))?;
                    let sender = sender.as_ref().map(|sender| sender.get());
                    self.sql.open_receipt.execute(params![
                        id,
                        number,
                        tenant,
                        event_id,
                        name,
                        sender,
                        status,
                        worker,
                        ts.millis(),
                        started,
                        ended,
                        outcome,
                        seq
                    ])?;
                }
                None => {
                    let changed = params![id, number, status, worker, started, ended, outcome];
                    self.sql.change_receipt.execute(changed)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn restore_receipts(
        &mut self,
        run: &RunKey,
        receipts: &[Receipt],
    ) -> Result<Result<(), CommitError>, Fault> {
        let Some(id) = self.find(run)? else {
            let early = format!("receipts of run {run} come before the run itself");
            return Ok(Err(StoreError::Invalid(early).into()));
        };
        let tenant = self.run(id)?.tenant;
        for receipt in receipts {
            self.sql.open_receipt.execute(params![
                id,
                receipt.number,
                tenant,
                receipt.event_id,
                receipt.name,
                receipt.sender.as_ref().map(|sender| sender.get()),
                code::receipt_status_number(receipt.status),
                receipt.worker,
                receipt.received_at.millis(),
                receipt.started_at.map(|time| time.millis()),
                receipt.completed_at.map(|time| time.millis()),
                receipt.outcome.as_ref().map(|outcome| outcome.get()),
                None::<i64>,
            ])?;
        }
        Ok(Ok(()))
    }
}
