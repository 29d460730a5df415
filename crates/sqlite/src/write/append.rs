//! Lines of running attempts, fenced by their leases, and changes of key-value state.

use flowline_core::{Json, RunId, RunKey, Time};
use flowline_store::rule::{self, FencedLines};
use flowline_store::{Append, AppendError, StateChange, StateEdit, StateOwner, StateSpace, StoreError};

use super::Writer;
use crate::code;
use crate::fault::Fault;

impl Writer<'_> {
    /// Answers for each append how many lines of its attempt are in the log now.
    pub(crate) fn append(&mut self, batch: &[Append]) -> Result<Vec<Result<u32, AppendError>>, Fault> {
        let now = self.clock.now();
        batch.iter().map(|append| self.append_one(append, now)).collect()
    }

    fn append_one(&mut self, append: &Append, now: Time) -> Result<Result<u32, AppendError>, Fault> {
        let found = self.find(&append.run)?;
        let job = found.and_then(|id| self.live.get(id)).and_then(|run| run.jobs.get(&append.key));
        let FencedLines { new, total } = match rule::fence(append, job) {
            Ok(lines) => lines,
            Err(refused) => return Ok(Err(refused)),
        };
        let Some(id) = found.filter(|_| !new.is_empty()) else { return Ok(Ok(total)) };
        for change in new.iter().filter_map(|line| line.state.as_ref()) {
            self.change_state(id, &append.run.run, change, now)?;
        }
        let ts = self.date(id, now)?;
        self.log(id, ts, new.iter().map(|line| &line.event))?;
        let run = self.run(id)?;
        let (seq, ms, started_at) = (run.seq as i64, run.ms, run.started_at);
        self.sql.advance_log.execute((id, seq, ms, started_at))?;
        self.add_lines(id, append.key, new.len() as u32)?;
        Ok(Ok(total))
    }

    fn change_state(&mut self, id: i64, run: &RunId, change: &StateChange, now: Time) -> Result<(), Fault> {
        let StateChange { scope, edit: StateEdit { key, value, ttl } } = change;
        let found = self.run(id)?;
        // The row has the flow's number; its name is not needed.
        let owner = scope.of(run, &"".into());
        let of = match owner {
            StateOwner::Run(_) => id,
            StateOwner::Flow(_) => found.flow,
            StateOwner::Tenant | StateOwner::Named(_) => found.tenant,
        };
        self.put_value(&owner, of, key, value.as_ref(), ttl.map(|ttl| now + ttl))
    }

    /// A change from outside of any run.
    pub(crate) fn change_state_of(&mut self, space: &StateSpace, edit: &StateEdit) -> Result<(), Fault> {
        let StateEdit { key, value, ttl } = edit;
        let now = self.clock.now();
        let of = self.owner_number(space)?;
        self.put_value(&space.owner, of, key, value.as_ref(), ttl.map(|ttl| now + ttl))
    }

    /// The number that the values of an owner are kept under. A run must exist.
    pub(super) fn owner_number(&mut self, space: &StateSpace) -> Result<i64, Fault> {
        let tenant = self.names.tenant(self.conn, &space.tenant)?;
        Ok(match &space.owner {
            StateOwner::Run(run) => {
                let run = RunKey::new(space.tenant.clone(), run.clone());
                let early = || StoreError::Invalid(format!("values of run {run} come before the run itself"));
                self.find(&run)?.ok_or_else(early)?
            }
            StateOwner::Flow(flow) => self.names.flow(self.conn, tenant, flow)?,
            StateOwner::Tenant | StateOwner::Named(_) => tenant,
        })
    }

    /// Writes a value, or with none deletes it.
    pub(super) fn put_value(
        &mut self,
        owner: &StateOwner,
        of: i64,
        key: &str,
        value: Option<&Json>,
        expires: Option<Time>,
    ) -> Result<(), Fault> {
        let (scope, key) = (code::scope_number(owner), code::kv_key(owner, key));
        match value {
            Some(value) => {
                let expires = expires.map(|time| time.millis());
                self.sql.put_kv.execute((scope, of, key, value.get(), expires))?;
            }
            None => {
                self.sql.delete_kv.execute((scope, of, key))?;
            }
        }
        Ok(())
    }
}
