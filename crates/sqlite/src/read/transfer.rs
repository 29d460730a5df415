//! What a move reads beside all else.

use flowline_core::{RunKey, Tenant, Time};
use flowline_store::{StateOwner, StateValue};
use rusqlite::{OptionalExtension, params};

use super::Reader;
use crate::code;
use crate::fault::Fault;
use crate::names::tenant_of;

impl Reader<'_> {
    pub(crate) fn tenants(&self) -> Result<Vec<Tenant>, Fault> {
        let mut statement = self.conn.prepare_cached(
            "select name from tenants where id in (select tenant from definitions)
                or id in (select tenant from paused_queues) order by name",
        )?;
        let mut rows = statement.query([])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(tenant_of(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)?);
        }
        Ok(found)
    }

    pub(crate) fn values(
        &self,
        tenant: &Tenant,
        owner: &StateOwner,
        now: Time,
    ) -> Result<Vec<StateValue>, Fault> {
        let Some(of) = self.tenant(tenant)? else { return Ok(Vec::new()) };
        let id: Option<i64> = match owner {
            StateOwner::Run(run) => self.run(&RunKey::new(tenant.clone(), run.clone()))?,
            StateOwner::Flow(flow) => {
                let mut statement =
                    self.conn.prepare_cached("select id from flows where tenant = ?1 and name = ?2")?;
                statement.query_row(params![of, flow], |row| row.get(0)).optional()?
            }
            StateOwner::Tenant => Some(of),
        };
        let mut statement = self.conn.prepare_cached(
            "select key, value, expires from kv where scope = ?1 and owner = ?2
                and (expires is null or expires > ?3) order by key",
        )?;
        let mut rows = statement.query(params![code::scope_number(owner.scope()), id, now.millis()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(StateValue {
                key: row.get(0)?,
                value: code::json(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?)?,
                expires: row.get::<_, Option<i64>>(2)?.map(Time::from_millis),
            });
        }
        Ok(found)
    }
}
