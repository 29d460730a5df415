//! What a move reads beside all else.

use flowline_core::{Tenant, Time};

use super::Reader;
use crate::fault::Fault;
use crate::names::tenant_of;

impl Reader<'_> {
    pub(crate) fn tenants(&self, now: Time) -> Result<Vec<Tenant>, Fault> {
        let mut statement = self.conn.prepare_cached(
            "select name from tenants where id in (select tenant from definitions)
                or id in (select tenant from paused_queues)
                or exists (select 1 from kv where scope in (2, 3) and owner = tenants.id
                    and (expires is null or expires > ?1)) order by name",
        )?;
        let mut rows = statement.query([now.millis()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(tenant_of(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)?);
        }
        Ok(found)
    }
}
