//! Named locks as operators see them.

use flowline_core::{Tenant, Time};
use flowline_store::LockRow;
use rusqlite::params;

use super::Reader;
use crate::fault::Fault;

impl Reader<'_> {
    pub(crate) fn locks(&self, tenant: &Tenant, now: Time) -> Result<Vec<LockRow>, Fault> {
        // A file that no engine of this build has opened yet has none.
        if crate::schema::format(self.conn)? < Some(2) {
            return Ok(Vec::new());
        }
        let Some(tenant) = self.tenant(tenant)? else { return Ok(Vec::new()) };
        let mut statement = self.conn.prepare_cached(
            "select name, owner, since, until from locks where tenant = ?1 and until > ?2 order by name",
        )?;
        let found = statement.query_map(params![tenant, now.millis()], |row| {
            Ok(LockRow {
                name: row.get(0)?,
                owner: row.get(1)?,
                since: Time::from_millis(row.get(2)?),
                until: Time::from_millis(row.get(3)?),
            })
        })?;
        Ok(found.collect::<Result<_, _>>()?)
    }
}
