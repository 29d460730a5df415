//! Calls about what is kept beside runs and jobs (named locks, documents, receipts), and how long runs are.

use std::time::Duration;

use flowline_core::definition::Retain;
use flowline_core::report::ReportDigests;
use flowline_core::{EventType, Json, RunKey, Tenant, json};

use super::{COLLECTIONS, ContractCall, HOUR, LOCK, Maker, WORKERS};
use crate::conformance::given;
use crate::row::Retention;
use crate::{
    DocumentQuery, LockProof, LockRequest, NewDocument, Opened, Order, ReceiptChange, ReceiptQuery,
    ReceiptStatus, Renewal, RunStore, Token,
};

impl Maker {
    pub(super) fn retain(&mut self) -> ContractCall {
        ContractCall::Retain(Retention { events: self.age(), runs: self.age() + self.age() })
    }

    /// What the definition of a run says of how long it is kept.
    pub(super) fn own_retain(&mut self) -> Option<Retain> {
        let (events, runs) = (self.age(), self.age());
        let retain = Retain {
            events: self.rng.percent(70).then_some(events),
            runs: self.rng.percent(70).then_some(runs),
        };
        self.rng.percent(40).then_some(retain)
    }

    fn age(&mut self) -> Duration {
        match self.exact {
            true => Duration::from_millis(self.rng.pick(&[100, 1_000, 4_000])),
            false => self.rng.pick(&[Duration::ZERO, HOUR]),
        }
    }

    /// Of an event; where it makes a report, with what is digested of one.
    pub(super) fn event_data(&mut self, kind: EventType) -> Option<Json> {
        let data = self.data()?;
        if !ReportDigests::KINDS.contains(&kind) {
            return Some(data);
        }
        let name = json::string(self.rng.pick(given::STRANGE));
        let (name, data) = (Some(&name), Some(&data));
        Some(json::object([("name", name), ("error", name), ("payload", data), ("result", data)]))
    }

    pub(super) fn define(&mut self, tenant: Tenant) -> ContractCall {
        let hash = format!("hash-{}", 1 + self.rng.below(4));
        let mut definition = given::definition(&tenant, given::FLOW, &hash);
        definition.origin = self.rng.percent(50).then(|| "/somewhere".to_owned());
        match self.rng.below(5) {
            0 => ContractCall::SetLatest(tenant, self.rng.percent(70).then_some(hash)),
            1 | 2 => ContractCall::Define(definition),
            _ => ContractCall::Definitions(tenant),
        }
    }

    /// One name and three tokens, so that calls meet.
    pub(super) fn lock(&mut self, tenant: Tenant) -> ContractCall {
        let token = Token(1 + self.rng.below(3) as u128);
        let (owner, ttl) = (self.rng.pick(given::STRANGE).to_owned(), self.ttl());
        match self.rng.below(8) {
            0..4 => ContractCall::Acquire(LockRequest { tenant, name: LOCK.to_owned(), owner, token, ttl }),
            4 => ContractCall::RenewLock(LockProof::new(&tenant, LOCK, token), Renewal::Extend(ttl)),
            5 | 6 => ContractCall::RenewLock(LockProof::new(&tenant, LOCK, token), Renewal::Release),
            _ => ContractCall::Locks(tenant),
        }
    }

    /// A few ids, so that calls meet.
    pub(super) fn document(&mut self) -> ContractCall {
        let collection = self.rng.pick(&COLLECTIONS);
        let id = format!("d{}", self.rng.below(6));
        match self.rng.below(8) {
            0..4 => {
                let create = self.rng.percent(40);
                let ttl = self.rng.percent(50).then(|| self.ttl());
                let body = given::json(self.rng.below(100).into());
                let new = NewDocument::new(collection, &id, body, ttl);
                ContractCall::PutDocument(if create { new.if_absent() } else { new })
            }
            4 | 5 => ContractCall::DeleteDocument(collection, id),
            6 => ContractCall::Document(collection, id),
            _ => {
                let order = self.rng.pick(&[Order::Ascending, Order::Descending]);
                let limit = 1 + self.rng.below(4);
                ContractCall::Documents(
                    collection,
                    DocumentQuery { order, limit, ..DocumentQuery::default() },
                )
            }
        }
    }

    /// New ones under the next number, and changes of those that are there; seldom of one that is not.
    pub(super) async fn receipt_changes(&mut self, run: &RunKey) -> Vec<ReceiptChange> {
        let of_run =
            ReceiptQuery { run: Some(run.run.clone()), limit: 1_000, ..ReceiptQuery::of(run.tenant.clone()) };
        let there = self.model.receipts(of_run).await.map(|page| page.items).unwrap_or_default();
        let next = there.first().map_or(0, |newest| newest.number + 1);
        let mut numbers: Vec<(u32, bool)> = Vec::new();
        for receipt in &there {
            if self.rng.percent(25) {
                numbers.push((receipt.number, false));
            }
        }
        let new = if self.rng.percent(35) { 1 + self.rng.below(3) as u32 } else { 0 };
        numbers.extend((next..next + new).map(|number| (number, true)));
        if self.rng.percent(3) {
            numbers.push((next + 100, false));
        }
        let mut changes = Vec::new();
        for (number, opened) in numbers {
            let (event_id, name) = (format!("e{number}").into(), self.rng.pick(given::STRANGE).into());
            let opened = opened.then(|| Opened { event_id, name, sender: self.data() });
            changes.push(ReceiptChange {
                number,
                opened,
                status: self.rng.pick(&ReceiptStatus::ALL),
                worker: self.rng.percent(50).then(|| self.rng.pick(&WORKERS).into()),
                outcome: self.data().filter(|_| self.rng.percent(50)),
            });
        }
        changes
    }

    pub(super) fn receipts(&mut self, run: RunKey) -> ContractCall {
        if self.rng.percent(20) {
            return ContractCall::Receipt(run, format!("e{}", self.rng.below(4)));
        }
        ContractCall::Receipts(ReceiptQuery {
            run: self.rng.percent(30).then_some(run.run),
            status: if self.rng.percent(50) { Some(self.rng.pick(&ReceiptStatus::ALL)) } else { None },
            worker: self.rng.percent(40).then(|| self.rng.pick(&WORKERS).to_owned()),
            limit: 1 + self.rng.below(4),
            ..ReceiptQuery::of(run.tenant)
        })
    }
}
