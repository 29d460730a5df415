//! Receipts, kept with their run, and the lists of them.

use std::sync::Arc;

use flowline_core::{RunKey, Tenant, Time};

use super::rows::{Memory, StoredRun};
use crate::error::StoreError;
use crate::query::page_size;
use crate::receipt::{
    Opened, Receipt, ReceiptChange, ReceiptPage, ReceiptPlace, ReceiptQuery, ReceiptStatus,
};

/// A list of receipts that is kept ready.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReceiptsOf {
    tenant: Tenant,
    worker: Option<Arc<str>>,
    status: Option<ReceiptStatus>,
}

impl Memory {
    /// Walks the run's receipts, or the list for worker and status.
    pub fn receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        query.check()?;
        let before = query.after.as_deref().map(ReceiptPlace::parse).transpose()?;
        let limit = page_size(query.limit);
        let found = match &query.run {
            Some(run) => {
                let run = self.runs.get(&RunKey::new(query.tenant.clone(), run.clone()));
                let below = before.map_or(u32::MAX, |place| place.number);
                let all = run.into_iter().flat_map(|run| {
                    let numbers = match query.event_id.as_deref().map(|event| run.received.get(event)) {
                        Some(number) => number.map_or(0..0, |number| *number..*number + 1),
                        None => 0..below,
                    };
                    run.receipts.range(numbers).rev().map(|(_, receipt)| (place(run, receipt), receipt))
                });
                all.filter(|(place, receipt)| place.number < below && query.matches(receipt))
                    .take(limit + 1)
                    .map(|(place, receipt)| (place, receipt.clone()))
                    .collect()
            }
            None => {
                let worker = query.worker.as_deref().map(Into::into);
                let of = ReceiptsOf { tenant: query.tenant.clone(), worker, status: query.status };
                let first = ReceiptPlace { received: Time::from_millis(i64::MIN), run: 0, number: 0 };
                let last =
                    ReceiptPlace { received: Time::from_millis(i64::MAX), run: u64::MAX, number: u32::MAX };
                let below = self.listed_receipts.range((of.clone(), first)..(of, before.unwrap_or(last)));
                let receipt = |(_, place): &(ReceiptsOf, ReceiptPlace)| {
                    let run = self.runs.get(self.by_number.get(&place.run)?)?;
                    Some((*place, run.receipts.get(&place.number)?.clone()))
                };
                below.rev().filter_map(receipt).take(limit + 1).collect()
            }
        };
        Ok(ReceiptPage::of(found, limit))
    }

    /// What a commit of this date does to the receipts of its run.
    pub(super) fn change_receipts(&mut self, key: &RunKey, ts: Time, changes: Vec<ReceiptChange>) {
        for mut change in changes {
            let number = change.number;
            self.unlist_receipt(key, number);
            let Some(run) = self.runs.get_mut(key) else { return };
            if let Some(Opened { event_id, name, sender }) = change.opened.take() {
                run.put_receipt(Receipt {
                    event_id,
                    run_id: key.run.clone(),
                    flow_name: run.row.flow_name.clone(),
                    tenant: key.tenant.clone(),
                    number,
                    name,
                    sender,
                    status: ReceiptStatus::Pending,
                    worker: None,
                    received_at: ts,
                    started_at: None,
                    completed_at: None,
                    outcome: None,
                });
            }
            if let Some(receipt) = run.receipts.get_mut(&number) {
                receipt.change(ts, change);
            }
            self.list_receipt(key, number);
        }
    }

    pub(super) fn restore_receipts(
        &mut self,
        key: &RunKey,
        receipts: Vec<Receipt>,
    ) -> Result<(), StoreError> {
        let early = || StoreError::Invalid(format!("receipts of run {key} come before the run itself"));
        for receipt in receipts {
            let number = receipt.number;
            self.unlist_receipt(key, number);
            self.runs.get_mut(key).ok_or_else(early)?.put_receipt(receipt);
            self.list_receipt(key, number);
        }
        Ok(())
    }

    pub(super) fn forget_receipts(&mut self, key: &RunKey) {
        let numbers = self.runs.get(key).map(|run| run.receipts.keys().copied().collect::<Vec<_>>());
        for number in numbers.into_iter().flatten() {
            self.unlist_receipt(key, number);
        }
    }

    fn list_receipt(&mut self, key: &RunKey, number: u32) {
        let entries = self.entries(key, number);
        self.listed_receipts.extend(entries);
    }

    fn unlist_receipt(&mut self, key: &RunKey, number: u32) {
        for entry in self.entries(key, number) {
            self.listed_receipts.remove(&entry);
        }
    }

    /// Where a receipt is listed as it stands.
    fn entries(&self, key: &RunKey, number: u32) -> Vec<(ReceiptsOf, ReceiptPlace)> {
        let Some(run) = self.runs.get(key) else { return Vec::new() };
        let Some(receipt) = run.receipts.get(&number) else { return Vec::new() };
        let mut workers = vec![None];
        workers.extend(receipt.worker.clone().map(Some));
        let of = |worker: &Option<Arc<str>>, status| ReceiptsOf {
            tenant: key.tenant.clone(),
            worker: worker.clone(),
            status,
        };
        let both = workers.iter().flat_map(|worker| [of(worker, None), of(worker, Some(receipt.status))]);
        both.map(|of| (of, place(run, receipt))).collect()
    }
}

impl StoredRun {
    fn put_receipt(&mut self, receipt: Receipt) {
        self.received.insert(receipt.event_id.clone(), receipt.number);
        self.receipts.insert(receipt.number, receipt);
    }
}

fn place(run: &StoredRun, receipt: &Receipt) -> ReceiptPlace {
    ReceiptPlace { received: receipt.received_at, run: run.number, number: receipt.number }
}
