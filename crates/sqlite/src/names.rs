//! Names and their numbers, kept by the writer so that no commit looks them up in the file.
//!
//! Whatever is here is also in the file or in the open transaction; after a rollback it is loaded again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use flowline_core::Tenant;
use flowline_store::Lane;
use rusqlite::{Connection, params};

use crate::fault::Fault;

#[derive(Debug, Default)]
pub(crate) struct NameNumbers {
    tenants: HashMap<Tenant, i64>,
    tenant_names: HashMap<i64, Tenant>,
    flows: HashMap<i64, HashMap<Arc<str>, i64>>,
    definitions: HashMap<i64, HashMap<Arc<str>, i64>>,
    lanes: HashMap<i64, HashMap<Lane, i64>>,
    /// In the order in which claims go round.
    pub(crate) lane_order: BTreeMap<(Tenant, Lane), LaneAt>,
    lane_names: HashMap<i64, Lane>,
    paused: HashMap<i64, HashSet<Arc<str>>>,
}

/// A lane's number and its tenant's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneAt {
    pub(crate) lane: i64,
    pub(crate) tenant: i64,
}

impl NameNumbers {
    pub(crate) fn load(conn: &Connection) -> Result<NameNumbers, Fault> {
        let mut names = NameNumbers::default();
        each(conn, "select id, name from tenants", |row| {
            let tenant = tenant_of(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?)?;
            names.enter_tenant(row.get(0)?, tenant);
            Ok(())
        })?;
        each(conn, "select id, tenant, name from flows", |row| {
            names.flows.entry(row.get(1)?).or_default().insert(row.get(2)?, row.get(0)?);
            Ok(())
        })?;
        each(conn, "select id, tenant, hash from definitions", |row| {
            names.definitions.entry(row.get(1)?).or_default().insert(row.get(2)?, row.get(0)?);
            Ok(())
        })?;
        each(conn, "select id, tenant, queue, need from lanes", |row| {
            names.enter_lane(row.get(0)?, row.get(1)?, Lane { queue: row.get(2)?, need: row.get(3)? });
            Ok(())
        })?;
        each(conn, "select tenant, queue from paused_queues", |row| {
            names.paused.entry(row.get(0)?).or_default().insert(row.get(1)?);
            Ok(())
        })?;
        Ok(names)
    }

    pub(crate) fn known_tenant(&self, tenant: &Tenant) -> Option<i64> {
        self.tenants.get(tenant).copied()
    }

    pub(crate) fn tenant_name(&self, tenant: i64) -> Result<&Tenant, Fault> {
        self.tenant_names.get(&tenant).ok_or_else(|| Fault::damaged(&format!("tenant {tenant} has no name")))
    }

    pub(crate) fn tenant(&mut self, conn: &Connection, tenant: &Tenant) -> Result<i64, Fault> {
        if let Some(id) = self.known_tenant(tenant) {
            return Ok(id);
        }
        conn.execute("insert into tenants (name) values (?1)", [tenant.as_str()])?;
        let id = conn.last_insert_rowid();
        self.enter_tenant(id, tenant.clone());
        Ok(id)
    }

    pub(crate) fn flow(&mut self, conn: &Connection, tenant: i64, flow: &Arc<str>) -> Result<i64, Fault> {
        if let Some(id) = self.flows.get(&tenant).and_then(|flows| flows.get(flow)) {
            return Ok(*id);
        }
        conn.execute("insert into flows (tenant, name) values (?1, ?2)", params![tenant, flow])?;
        let id = conn.last_insert_rowid();
        self.flows.entry(tenant).or_default().insert(flow.clone(), id);
        Ok(id)
    }

    pub(crate) fn definition(&self, tenant: i64, hash: &str) -> Option<i64> {
        self.definitions.get(&tenant)?.get(hash).copied()
    }

    pub(crate) fn enter_definition(&mut self, tenant: i64, hash: Arc<str>, id: i64) {
        self.definitions.entry(tenant).or_default().insert(hash, id);
    }

    pub(crate) fn lane(&mut self, conn: &Connection, tenant: i64, lane: &Lane) -> Result<i64, Fault> {
        if let Some(id) = self.lanes.get(&tenant).and_then(|lanes| lanes.get(lane)) {
            return Ok(*id);
        }
        let sql = "insert into lanes (tenant, queue, need) values (?1, ?2, ?3)";
        conn.execute(sql, params![tenant, lane.queue, lane.need])?;
        let id = conn.last_insert_rowid();
        self.enter_lane(id, tenant, lane.clone());
        Ok(id)
    }

    pub(crate) fn lane_name(&self, lane: i64) -> Result<&Lane, Fault> {
        self.lane_names.get(&lane).ok_or_else(|| Fault::damaged(&format!("lane {lane} has no name")))
    }

    pub(crate) fn is_paused(&self, tenant: i64, queue: &str) -> bool {
        self.paused.get(&tenant).is_some_and(|queues| queues.contains(queue))
    }

    pub(crate) fn set_paused(&mut self, tenant: i64, queue: &str, paused: bool) {
        let queues = self.paused.entry(tenant).or_default();
        match paused {
            true => queues.insert(queue.into()),
            false => queues.remove(queue),
        };
    }

    fn enter_tenant(&mut self, id: i64, tenant: Tenant) {
        self.tenant_names.insert(id, tenant.clone());
        self.tenants.insert(tenant, id);
    }

    fn enter_lane(&mut self, id: i64, tenant: i64, lane: Lane) {
        if let Some(name) = self.tenant_names.get(&tenant) {
            self.lane_order.insert((name.clone(), lane.clone()), LaneAt { lane: id, tenant });
        }
        self.lane_names.insert(id, lane.clone());
        self.lanes.entry(tenant).or_default().insert(lane, id);
    }
}

pub(crate) fn tenant_of(text: &str) -> Result<Tenant, Fault> {
    Tenant::new(text).map_err(|error| Fault::damaged(&error.to_string()))
}

fn each(
    conn: &Connection,
    sql: &str,
    mut take: impl FnMut(&rusqlite::Row<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}
