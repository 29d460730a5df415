//! Being filled with another store's content.

use std::collections::BTreeSet;

use flowline_core::{RunKey, Tenant, Time};

use super::rows::{LoggedEvent, Memory, StoredRun};
use crate::commit::CommitError;
use crate::error::StoreError;
use crate::row::StoredDefinition;
use crate::rule::StoredJob;
use crate::state::{StateOwner, StateSpace};
use crate::transfer::{Filling, Restored, RestoredEvent, RestoredRun};

impl Memory {
    pub fn tenants(&self, now: Time) -> Vec<Tenant> {
        let defined = self.definitions.keys().map(|(tenant, _)| tenant);
        let own = |space: &&StateSpace| matches!(space.owner, StateOwner::Tenant | StateOwner::Named(_));
        let stateful = self.live_spaces(now).filter(own).map(|space| &space.tenant);
        let paused = self.paused.iter().map(|(tenant, _)| tenant);
        let all: BTreeSet<&Tenant> = defined.chain(paused).chain(stateful).collect();
        all.into_iter().cloned().collect()
    }

    pub fn begin_filling(&mut self, now: Time) -> Filling {
        let empty = self.tenants(now).is_empty() && self.collections(now).is_empty();
        if !self.filling && !empty {
            return Filling::NotEmpty;
        }
        *self = Memory { filling: true, ..Memory::default() };
        Filling::Begun
    }

    pub fn end_filling(&mut self) {
        self.filling = false;
    }

    pub fn restore(&mut self, parts: Vec<Restored>) -> Result<(), CommitError> {
        for part in parts {
            match part {
                Restored::Definition(definition) => self.restore_definition(definition),
                Restored::Run(run) => self.restore_run(*run)?,
                Restored::Events { run, events } => self.restore_events(&run, events)?,
                Restored::Receipts { run, receipts } => self.restore_receipts(&run, receipts)?,
                Restored::Values { values, .. } if values.is_empty() => {}
                Restored::Values { space, values } => {
                    let kept = self.states.entry(space).or_default();
                    kept.extend(values.into_iter().map(|value| (value.key.clone(), value)));
                }
                Restored::Documents { documents, .. } if documents.is_empty() => {}
                Restored::Documents { collection, documents } => {
                    let kept = self.documents.entry(collection).or_default();
                    kept.extend(documents.into_iter().map(|document| (document.id.clone(), document)));
                }
            }
        }
        Ok(())
    }

    fn restore_definition(&mut self, definition: StoredDefinition) {
        let key = (definition.tenant.clone(), definition.hash.clone());
        self.last_definition += 1;
        self.definitions.insert(key, (self.last_definition, definition));
    }

    fn restore_run(&mut self, restored: RestoredRun) -> Result<(), CommitError> {
        let RestoredRun { row, state, last, jobs, token, reports } = restored;
        let key = row.key();
        if self.runs.contains_key(&key) {
            return Err(CommitError::Exists);
        }
        if !self.definitions.contains_key(&(row.tenant.clone(), row.definition.clone())) {
            return Err(CommitError::UnknownDefinition(row.definition));
        }
        self.last_run += 1;
        let run = StoredRun { reports, ..StoredRun::new(self.last_run, row, state, last) };
        self.runs.insert(key.clone(), run);
        for job in jobs {
            self.last_job += 1;
            self.put_job(&key, job.key, StoredJob::restored(self.last_job, &job, job.lane(), token));
        }
        self.list(&key);
        Ok(())
    }

    fn restore_events(&mut self, key: &RunKey, events: Vec<RestoredEvent>) -> Result<(), CommitError> {
        let early = || StoreError::Invalid(format!("events of run {key} come before the run itself"));
        let run = self.runs.get_mut(key).ok_or_else(early)?;
        for RestoredEvent { event, slot } in events {
            self.last_event += 1;
            self.feed.insert(self.last_event, (key.clone(), event.seq));
            if let Some(slot) = slot {
                run.slots.entry(slot).or_insert(event.seq);
            }
            run.log.insert(event.seq, LoggedEvent { event, number: self.last_event });
        }
        Ok(())
    }
}
