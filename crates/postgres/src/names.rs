//! Lanes and definitions that are known to be stored. Neither ever goes, so what is here is true for good.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowline_core::Tenant;
use flowline_store::Lane;

use crate::code;
use crate::fault::PgFault;
use crate::session::Session;

#[derive(Debug, Default)]
pub(crate) struct StoredNames(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    lanes: HashMap<(Tenant, Lane), i32>,
    lane_names: HashMap<i32, (Tenant, Lane)>,
    definitions: HashSet<(Tenant, Arc<str>)>,
}

impl StoredNames {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lane(&self, tenant: &Tenant, lane: &Lane) -> Result<i32, PgFault> {
        let id = self.known().lanes.get(&(tenant.clone(), lane.clone())).copied();
        id.ok_or_else(|| PgFault::damaged(&format!("lane {lane:?} has no number")))
    }

    pub(crate) fn lane_name(&self, id: i32) -> Result<Lane, PgFault> {
        let name = self.known().lane_names.get(&id).map(|(_, lane)| lane.clone());
        name.ok_or_else(|| PgFault::damaged(&format!("lane {id} has no name")))
    }

    /// Gives every lane a number, for all instances the same.
    pub(crate) async fn enter_lanes(
        &self,
        session: &Session,
        mut missing: BTreeSet<(Tenant, Lane)>,
    ) -> Result<(), PgFault> {
        missing.retain(|lane| !self.known().lanes.contains_key(lane));
        if missing.is_empty() {
            return Ok(());
        }
        let tenants: Vec<&str> = missing.iter().map(|(tenant, _)| tenant.as_str()).collect();
        let queues: Vec<_> = missing.iter().map(|(_, lane)| code::shut(&lane.queue)).collect();
        let needs: Vec<_> = missing.iter().map(|(_, lane)| code::shut(&lane.need)).collect();
        let add =
            "insert into lanes (tenant, queue, need) select * from unnest($1::text[], $2::text[], $3::text[])
            on conflict do nothing";
        session.execute(add, &[&tenants, &queues, &needs]).await?;
        self.load_lanes(session).await
    }

    pub(crate) async fn load_lanes(&self, session: &Session) -> Result<(), PgFault> {
        let rows = session.query("select id, tenant, queue, need from lanes", &[]).await?;
        for row in rows {
            let lane =
                Lane { queue: code::open(row.try_get(2)?).into(), need: code::open(row.try_get(3)?).into() };
            self.enter_lane(row.try_get(0)?, code::tenant(row.try_get(1)?)?, lane);
        }
        Ok(())
    }

    pub(crate) fn enter_lane(&self, id: i32, tenant: Tenant, lane: Lane) {
        let mut known = self.known();
        known.lane_names.insert(id, (tenant.clone(), lane.clone()));
        known.lanes.insert((tenant, lane), id);
    }

    /// A store that is emptied takes them with it.
    pub(crate) fn forget_definitions(&self) {
        self.known().definitions.clear();
    }

    /// Those of the definitions that are not stored.
    pub(crate) async fn missing_definitions(
        &self,
        session: &Session,
        mut missing: BTreeSet<(Tenant, Arc<str>)>,
    ) -> Result<BTreeSet<(Tenant, Arc<str>)>, PgFault> {
        missing.retain(|definition| !self.known().definitions.contains(definition));
        if missing.is_empty() {
            return Ok(missing);
        }
        let tenants: Vec<&str> = missing.iter().map(|(tenant, _)| tenant.as_str()).collect();
        let hashes: Vec<&str> = missing.iter().map(|(_, hash)| &**hash).collect();
        let sql = "select d.tenant, d.hash from unnest($1::text[], $2::text[]) u(tenant, hash)
            join definitions d on d.tenant = u.tenant and d.hash = u.hash";
        for row in session.query(sql, &[&tenants, &hashes]).await? {
            let found = (code::tenant(row.try_get(0)?)?, Arc::from(row.try_get::<_, &str>(1)?));
            missing.remove(&found);
            self.known().definitions.insert(found);
        }
        Ok(missing)
    }
}
