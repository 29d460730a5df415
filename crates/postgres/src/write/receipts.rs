//! What became of events: changes of a batch as rows of `receipts`.
//!
//! A receipt that one commit of a batch opens may be changed by a later one of the same batch; the last word on it is
//! written.

use flowline_core::{Tenant, Time};
use flowline_store::{Opened, Receipt, ReceiptChange};

use super::flush::{SqlValue, column};
use super::model::{Model, ReceiptRow};
use crate::code;

impl Model {
    pub(super) fn change_receipts(&mut self, run: i64, tenant: &Tenant, ts: Time, changes: &[ReceiptChange]) {
        for ReceiptChange { number, opened, status, worker, outcome } in changes {
            let started = status.is_started().then_some(ts.millis());
            let completed = status.is_end().then_some(ts.millis());
            let event = |opened: &Opened| (tenant.clone(), opened.clone(), ts.millis());
            let row = self.receipts.entry((run, *number)).or_insert_with(|| ReceiptRow {
                opened: opened.as_ref().map(event),
                status: *status,
                worker: None,
                outcome: None,
                started_at: None,
                completed_at: None,
            });
            row.status = *status;
            row.worker = worker.clone().or(row.worker.take());
            row.outcome = outcome.clone().or(row.outcome.take());
            row.started_at = row.started_at.or(started);
            row.completed_at = row.completed_at.or(completed);
        }
    }

    pub(super) fn restored_receipts(&mut self, run: i64, receipts: &[Receipt]) {
        for receipt in receipts {
            let Receipt { event_id, name, sender, .. } = receipt.clone();
            let event = Opened { event_id, name, sender };
            let row = ReceiptRow {
                opened: Some((receipt.tenant.clone(), event, receipt.received_at.millis())),
                status: receipt.status,
                worker: receipt.worker.clone(),
                outcome: receipt.outcome.clone(),
                started_at: receipt.started_at.map(Time::millis),
                completed_at: receipt.completed_at.map(Time::millis),
            };
            self.receipts.insert((run, receipt.number), row);
        }
    }
}

pub(super) const OPEN_RECEIPTS: &str = "
    insert into receipts (run, number, status, worker, outcome, started_at, completed_at, tenant, event_id, name, sender,
        received_at)
    select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
        $8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[])";

pub(super) fn opened(model: &Model) -> Option<Vec<SqlValue>> {
    let opened = model.receipts.iter().filter_map(|(at, row)| Some((at, row, row.opened.as_ref()?)));
    let (rows, events): (Vec<_>, Vec<_>) = opened.map(|(at, row, event)| ((at, row), event)).unzip();
    (!rows.is_empty()).then(|| {
        let mut columns = changes(&rows);
        columns.extend([
            column(&events, |(tenant, ..)| tenant.as_str().to_owned()),
            column(&events, |(_, event, _)| code::shut(&event.event_id).into_owned()),
            column(&events, |(_, event, _)| code::shut(&event.name).into_owned()),
            column(&events, |(_, event, _)| event.sender.as_ref().map(|sender| sender.get().to_owned())),
            column(&events, |(.., received)| *received),
        ]);
        columns
    })
}

pub(super) const CHANGE_RECEIPTS: &str = "
    update receipts c set status = u.status, worker = coalesce(u.worker, c.worker),
        outcome = coalesce(u.outcome, c.outcome), started_at = coalesce(c.started_at, u.started_at),
        completed_at = coalesce(c.completed_at, u.completed_at)
    from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
        u(run, number, status, worker, outcome, started_at, completed_at)
    where c.run = u.run and c.number = u.number";

pub(super) fn changed(model: &Model) -> Option<Vec<SqlValue>> {
    let rows: Vec<_> = model.receipts.iter().filter(|(_, row)| row.opened.is_none()).collect();
    (!rows.is_empty()).then(|| changes(&rows))
}

fn changes(rows: &[(&(i64, u32), &ReceiptRow)]) -> Vec<SqlValue> {
    vec![
        column(rows, |((run, _), _)| *run),
        column(rows, |((_, number), _)| i64::from(*number)),
        column(rows, |(_, row)| row.status.as_str()),
        column(rows, |(_, row)| row.worker.as_deref().map(|worker| code::shut(worker).into_owned())),
        column(rows, |(_, row)| row.outcome.as_ref().map(|outcome| outcome.get().to_owned())),
        column(rows, |(_, row)| row.started_at),
        column(rows, |(_, row)| row.completed_at),
    ]
}
