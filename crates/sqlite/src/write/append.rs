//! Lines of running attempts, fenced by their leases.

use flowline_core::Time;
use flowline_store::row::StateScope;
use flowline_store::{Append, AppendError, Line, StateChange};

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
        let stale = Ok(Err(AppendError::StaleLease(append.key)));
        let Some(id) = self.find(&append.run)? else { return stale };
        let job = self.run(id)?.jobs.get(&append.key);
        let lease = job.and_then(|job| job.leased_with(append.attempt, append.token));
        // Lines that the caller believes to be there and that are not: its lease is of another history.
        let Some(there) = lease.map(|lease| lease.lines).filter(|there| append.from_line <= *there) else {
            return stale;
        };
        let known = (there - append.from_line) as usize;
        let new: &[Line] = append.lines.get(known..).unwrap_or_default();
        if new.is_empty() {
            return Ok(Ok(there));
        }
        for change in new.iter().filter_map(|line| line.state.as_ref()) {
            self.change_state(id, change, now)?;
        }
        let ts = self.date(id, now)?;
        self.log(id, ts, new.iter().map(|line| &line.event))?;
        let run = self.run(id)?;
        let (seq, ms, started_at) = (run.seq as i64, run.ms, run.started_at);
        self.sql.advance_log.execute((id, seq, ms, started_at))?;
        self.add_lines(id, append.key, new.len() as u32)?;
        Ok(Ok(there + new.len() as u32))
    }

    fn change_state(&mut self, id: i64, change: &StateChange, now: Time) -> Result<(), Fault> {
        let run = self.run(id)?;
        let owner = match change.scope {
            StateScope::Run => id,
            StateScope::Flow => run.flow,
            StateScope::Tenant => run.tenant,
        };
        let scope = code::scope_number(change.scope);
        match &change.value {
            Some(value) => {
                let expires = change.ttl.map(|ttl| (now + ttl).millis());
                self.sql.put_kv.execute((scope, owner, &change.key, value.get(), expires))?;
            }
            None => {
                self.sql.delete_kv.execute((scope, owner, &change.key))?;
            }
        }
        Ok(())
    }
}
