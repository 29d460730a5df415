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
        self.conn.execute(
            "insert into definitions (tenant, flow, hash, body, origin, created_at, latest)
             values (?1, ?2, ?3, ?4, ?5, ?6, 1)",
            params![
                tenant,
                flow,
                definition.hash,
                definition.body,
                definition.origin,
                self.clock.now().millis()
            ],
        )?;
        self.names.enter_definition(tenant, definition.hash.clone(), self.conn.last_insert_rowid());
        Ok(true)
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
