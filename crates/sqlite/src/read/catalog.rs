//! Definitions, counters, health.

use flowline_core::{Tenant, Time};
use flowline_store::{Counter, StoredDefinition};
use rusqlite::{Params, params};

use super::Reader;
use crate::code;
use crate::fault::Fault;
use crate::names::tenant_of;
use crate::schema;

impl Reader<'_> {
    pub(crate) fn definition(&self, tenant: &Tenant, hash: &str) -> Result<Option<StoredDefinition>, Fault> {
        let Some(id) = self.tenant(tenant)? else { return Ok(None) };
        Ok(self.defined(tenant, "d.tenant = ?1 and d.hash = ?2", params![id, hash])?.pop())
    }

    pub(crate) fn latest(&self, tenant: &Tenant, flow: &str) -> Result<Option<StoredDefinition>, Fault> {
        let Some(id) = self.tenant(tenant)? else { return Ok(None) };
        let wheres = "f.tenant = ?1 and f.name = ?2 and d.latest = 1";
        Ok(self.defined(tenant, wheres, params![id, flow])?.pop())
    }

    pub(crate) fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, Fault> {
        let Some(id) = self.tenant(tenant)? else { return Ok(Vec::new()) };
        self.defined(tenant, "d.tenant = ?1", [id])
    }

    fn defined(
        &self,
        tenant: &Tenant,
        wheres: &str,
        values: impl Params,
    ) -> Result<Vec<StoredDefinition>, Fault> {
        let sql = format!(
            "select f.name, d.hash, d.body, d.origin, d.created_at, d.latest from definitions d
             join flows f on f.id = d.flow where {wheres} order by f.name, d.id desc"
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let found = statement.query_map(values, |row| {
            Ok(StoredDefinition {
                tenant: tenant.clone(),
                flow: row.get(0)?,
                hash: row.get(1)?,
                body: row.get(2)?,
                origin: row.get(3)?,
                created_at: Time::from_millis(row.get(4)?),
                latest: row.get(5)?,
            })
        })?;
        Ok(found.collect::<Result<_, _>>()?)
    }

    pub(crate) fn counters(&self) -> Result<Vec<Counter>, Fault> {
        let state = if self.has(schema::WITH_MACHINES)? { "nullif(c.state, '')" } else { "null" };
        let mut statement = self.conn.prepare_cached(&format!(
            "select t.name, f.name, c.status, c.n, {state} from counters c join flows f on f.id = c.flow
             join tenants t on t.id = f.tenant where c.n > 0"
        ))?;
        let mut rows = statement.query([])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(Counter {
                tenant: tenant_of(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)?,
                flow_name: row.get(1)?,
                status: code::status(row.get(2)?)?,
                state: row.get(4)?,
                count: row.get::<_, i64>(3)? as u64,
            });
        }
        found.sort();
        Ok(found)
    }

    /// What SQLite finds wrong with the file, and bytes in use.
    pub(crate) fn examine(&self) -> Result<(u64, u32, Vec<String>), Fault> {
        let mut statement = self.conn.prepare("pragma quick_check(10)")?;
        let found = statement.query_map([], |row| row.get::<_, String>(0))?;
        let mut problems: Vec<String> = found.collect::<Result<_, _>>()?;
        problems.retain(|line| line != "ok");
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let bytes = number("pragma page_count")? * number("pragma page_size")?;
        let format = crate::schema::format(self.conn)?.unwrap_or(0);
        Ok((bytes as u64, format, problems))
    }
}
