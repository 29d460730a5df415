//! Definitions and paused queues.

use flowline_core::Tenant;
use flowline_store::StoredDefinition;
use flowline_store::row::Pause;
use rusqlite::params;

use super::Writer;
use crate::fault::Fault;

impl Writer<'_> {
    /// True where the hash was new.
    pub(crate) fn put_definition(&mut self, definition: &StoredDefinition) -> Result<bool, Fault> {
        let tenant = self.names.tenant(self.conn, &definition.tenant)?;
        if let Some(id) = self.names.definition(tenant, &definition.hash) {
            let sql = "update definitions set origin = ?2 where id = ?1 and origin is not ?2";
            self.conn.execute(sql, params![id, definition.origin])?;
            return Ok(false);
        }
        let flow = self.names.flow(self.conn, tenant, &definition.flow)?;
        self.conn.execute("update definitions set latest = 0 where flow = ?1 and latest = 1", [flow])?;
        let created_at = self.clock.now();
        self.insert_definition(&StoredDefinition { created_at, latest: true, ..definition.clone() })?;
        Ok(true)
    }

    /// Adds a row as it is given.
    pub(super) fn insert_definition(&mut self, definition: &StoredDefinition) -> Result<(), Fault> {
        let tenant = self.names.tenant(self.conn, &definition.tenant)?;
        let flow = self.names.flow(self.conn, tenant, &definition.flow)?;
        let StoredDefinition { hash, body, origin, created_at, latest, .. } = definition;
        self.conn.execute(
            "insert into definitions (tenant, flow, hash, body, origin, created_at, latest)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![tenant, flow, hash, body, origin, created_at.millis(), latest],
        )?;
        self.names.enter_definition(tenant, hash.clone(), self.conn.last_insert_rowid());
        Ok(())
    }

    /// False where the flow has no such definition.
    pub(crate) fn set_latest(
        &mut self,
        tenant: &Tenant,
        flow: &str,
        hash: Option<&str>,
    ) -> Result<bool, Fault> {
        let changed = self.conn.execute(
            "with one as (select f.id from flows f join tenants t on t.id = f.tenant
                 where t.name = ?1 and f.name = ?2)
             update definitions set latest = hash is ?3 where flow in one
                 and exists (select 1 from definitions d where d.flow in one and (?3 is null or d.hash = ?3))",
            params![tenant.as_str(), flow, hash],
        )?;
        Ok(changed > 0)
    }

    pub(crate) fn pause_queue(&mut self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), Fault> {
        let id = self.names.tenant(self.conn, tenant)?;
        let (sql, paused) = match pause {
            Pause::Paused => ("insert or ignore into paused_queues (tenant, queue) values (?1, ?2)", true),
            Pause::Open => ("delete from paused_queues where tenant = ?1 and queue = ?2", false),
        };
        self.conn.execute(sql, params![id, queue])?;
        self.names.set_paused(id, queue, paused);
        Ok(())
    }
}
