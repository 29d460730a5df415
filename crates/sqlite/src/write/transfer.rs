//! Being filled with another store's content.

use flowline_core::RunKey;
use flowline_store::rule::StoredJob;
use flowline_store::{
    CommitError, Filling, NewRun, Restored, RestoredEvent, RestoredRun, StateSpace, StateValue, StoreError,
};
use rusqlite::params;

use super::Writer;
use super::live::LiveRuns;
use crate::code;
use crate::fault::Fault;
use crate::names::NameNumbers;
use crate::schema;

/// Everything but the cells.
const TABLES: [&str; 19] = [
    "tenants",
    "flows",
    "definitions",
    "runs",
    "progress",
    "labels",
    "counters",
    "log",
    "slots",
    "purges",
    "lanes",
    "paused_queues",
    "jobs",
    "leases",
    "kv",
    "locks",
    "documents",
    "receipts",
    "reports",
];

impl Writer<'_> {
    pub(crate) fn begin_filling(&mut self) -> Result<Filling, Fault> {
        let there = "select exists (select 1 from definitions) or exists (select 1 from paused_queues)
            or exists (select 1 from documents where expires is null or expires > ?1)
            or exists (select 1 from kv where expires is null or expires > ?1)";
        if schema::is_filling(self.conn)? {
            for table in TABLES {
                self.conn.execute(&format!("delete from {table}"), [])?;
            }
            self.live = LiveRuns::default();
            self.names = NameNumbers::load(self.conn)?;
        } else if self.conn.query_row(there, [self.clock.now().millis()], |row| row.get(0))? {
            return Ok(Filling::NotEmpty);
        }
        self.conn.execute("insert or replace into cells (name, value) values ('filling', 1)", [])?;
        Ok(Filling::Begun)
    }

    pub(crate) fn end_filling(&mut self) -> Result<(), Fault> {
        self.conn.execute("delete from cells where name = 'filling'", [])?;
        Ok(())
    }

    pub(crate) fn restore(&mut self, parts: &[Restored]) -> Result<Result<(), CommitError>, Fault> {
        for part in parts {
            let refused = match part {
                Restored::Definition(definition) => self.insert_definition(definition).map(Ok)?,
                Restored::Run(run) => self.restore_run(run)?,
                Restored::Events { run, events } => self.restore_events(run, events)?,
                Restored::Receipts { run, receipts } => self.restore_receipts(run, receipts)?,
                Restored::Values { space, values } => self.restore_values(space, values).map(Ok)?,
                Restored::Documents { collection, documents } => {
                    self.restore_documents(collection, documents).map(Ok)?
                }
            };
            if refused.is_err() {
                return Ok(refused);
            }
        }
        Ok(Ok(()))
    }

    fn restore_run(&mut self, restored: &RestoredRun) -> Result<Result<(), CommitError>, Fault> {
        let RestoredRun { row, state, last, jobs, token, reports } = restored;
        if self.find(&row.key())?.is_some() {
            return Ok(Err(CommitError::Exists));
        }
        let tenant = self.names.tenant(self.conn, &row.tenant)?;
        let Some(definition) = self.names.definition(tenant, &row.definition) else {
            return Ok(Err(CommitError::UnknownDefinition(row.definition.clone())));
        };
        let flow = self.names.flow(self.conn, tenant, &row.flow_name)?;
        let new = NewRun::of_row(row);
        let id = self.insert_start([tenant, flow, definition], &row.run_id, row.created_at, &new)?;
        let failure = row.failure.as_ref();
        let insert =
            "insert or rollback into progress (run, tenant, flow, status, version, seq, ms, started_at,
            completed_at, completed_steps, failed_steps, retries, events_trimmed, trimmed_to, failure_error,
            failure_step, state, machine_state, retain)
            values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";
        self.conn.prepare_cached(insert)?.execute(params![
            id,
            tenant,
            flow,
            code::status_number(row.status),
            row.version as i64,
            row.events as i64,
            last.millis(),
            row.started_at.map(|time| time.millis()),
            row.completed_at.map(|time| time.millis()),
            row.completed_steps,
            row.failed_steps,
            row.retries,
            row.events_trimmed,
            if row.events_trimmed { row.events as i64 } else { 0 },
            failure.map(|failure| &failure.error),
            failure.and_then(|failure| failure.step.as_deref()),
            state,
            row.state,
            row.retain.map(|retain| retain.code()),
        ])?;
        if let Some(reports) = reports {
            let keep = "insert or rollback into reports (run, digests) values (?1, ?2)";
            self.conn.prepare_cached(keep)?.execute(params![id, reports.encode()])?;
        }
        self.count(flow, row.status, row.state.clone(), 1);
        for job in jobs {
            let lane = self.names.lane(self.conn, tenant, &job.lane())?;
            self.last.job += 1;
            self.insert_job(id, job.key, &StoredJob::restored(self.last.job, job, lane, *token))?;
        }
        Ok(Ok(()))
    }

    fn restore_events(
        &mut self,
        run: &RunKey,
        events: &[RestoredEvent],
    ) -> Result<Result<(), CommitError>, Fault> {
        let Some(id) = self.find(run)? else {
            let early = format!("events of run {run} come before the run itself");
            return Ok(Err(StoreError::Invalid(early).into()));
        };
        for same in RestoredEvent::by_date(events) {
            let first = &same[0].event;
            self.run(id)?.seq = first.seq - 1;
            let new: Vec<_> = same.iter().map(RestoredEvent::undated).collect();
            self.log(id, first.ts, &new)?;
        }
        // What is in mind of it stands in the middle of its log; the file knows better.
        self.live.forget(id);
        Ok(Ok(()))
    }

    fn restore_values(&mut self, space: &StateSpace, values: &[StateValue]) -> Result<(), Fault> {
        if values.is_empty() {
            return Ok(());
        }
        let of = self.owner_number(space)?;
        for StateValue { key, value, expires } in values {
            self.put_value(&space.owner, of, key, Some(value), *expires)?;
        }
        Ok(())
    }
}
