//! Key-value state. A named scope has its rows under its tenant, each key behind the scope's name and a `/`, which no name
//! has.

use std::sync::Arc;

use flowline_core::{RunKey, Tenant, Time};
use flowline_store::{StateOwner, StatePage, StateQuery, StateSpace, StateValue};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params};

use super::Reader;
use crate::code;
use crate::fault::Fault;

impl Reader<'_> {
    pub(crate) fn states(
        &self,
        space: &StateSpace,
        query: &StateQuery,
        now: Time,
    ) -> Result<StatePage, Fault> {
        let owner = &space.owner;
        let Some(id) = self.owner(space)? else { return Ok(StatePage::default()) };
        // `0` is the character after `/`. No text is as large as a blob.
        let end: Value = match owner {
            StateOwner::Named(name) => Value::Text(format!("{name}0")),
            _ => Value::Blob(Vec::new()),
        };
        let (compare, key) = match (&query.key, &query.after) {
            (Some(key), _) => ("=", key.as_str()),
            (None, Some(after)) => (">", after.as_str()),
            (None, None) => (">=", ""),
        };
        let mut statement = self.conn.prepare_cached(&format!(
            "select key, value, expires from kv where scope = ?1 and owner = ?2 and key {compare} ?5 and key < ?6
                and (expires is null or expires > ?3) order by key limit ?4"
        ))?;
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX - 1) + 1;
        let key = code::kv_key(owner, key);
        let values = params![code::scope_number(owner), id, now.millis(), limit, key, end];
        let found = statement.query_and_then(values, |row| {
            let key: String = row.get(0)?;
            Ok(StateValue {
                key: code::state_key(owner, key),
                value: code::json(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?)?,
                expires: row.get::<_, Option<i64>>(2)?.map(Time::from_millis),
            })
        })?;
        StatePage::fill(found, query.limit)
    }

    pub(crate) fn scopes(&self, tenant: &Tenant, now: Time) -> Result<Vec<Arc<str>>, Fault> {
        let Some(id) = self.tenant(tenant)? else { return Ok(Vec::new()) };
        let mut statement = self.conn.prepare_cached(
            "select key from kv where scope = ?1 and owner = ?2 and key >= ?3
                and (expires is null or expires > ?4) order by key limit 1",
        )?;
        let (mut found, mut from) = (Vec::new(), String::new());
        loop {
            let next = params![code::NAMED, id, from, now.millis()];
            let first: Option<String> = statement.query_row(next, |row| row.get(0)).optional()?;
            let Some((name, _)) = first.as_deref().and_then(|key| key.split_once('/')) else { break };
            from = format!("{name}0");
            found.push(Arc::from(name));
        }
        // `-` and `.` come before `/`: behind it keys are sorted otherwise than names.
        found.sort();
        Ok(found)
    }

    fn owner(&self, StateSpace { tenant, owner }: &StateSpace) -> Result<Option<i64>, Fault> {
        match owner {
            StateOwner::Run(run) => self.run(&RunKey::new(tenant.clone(), run.clone())),
            StateOwner::Tenant | StateOwner::Named(_) => self.tenant(tenant),
            StateOwner::Flow(flow) => {
                let Some(of) = self.tenant(tenant)? else { return Ok(None) };
                let mut statement =
                    self.conn.prepare_cached("select id from flows where tenant = ?1 and name = ?2")?;
                Ok(statement.query_row(params![of, flow], |row| row.get(0)).optional()?)
            }
        }
    }
}
