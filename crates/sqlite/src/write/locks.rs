//! Named locks. One whose time is over counts as gone; its row is taken over, or goes with the next retention.

use std::time::Duration;

use flowline_core::{Tenant, Time};
use flowline_store::{Acquired, LockRequest, Token};
use rusqlite::{OptionalExtension, params};

use super::Writer;
use crate::code;
use crate::fault::Fault;

impl Writer<'_> {
    pub(crate) fn acquire_lock(&mut self, request: &LockRequest) -> Result<Acquired, Fault> {
        let tenant = self.names.tenant(self.conn, &request.tenant)?;
        let now = self.clock.now();
        let until = now + request.ttl;
        // Taken where it is free, kept by who has it: the store decides in the one statement that writes.
        let written = self.conn.execute(
            "insert into locks (tenant, name, owner, token, since, until) values (?1, ?2, ?3, ?4, ?5, ?6)
             on conflict (tenant, name) do update set owner = excluded.owner, token = excluded.token,
                since = iif(until > ?5, since, excluded.since), until = excluded.until
             where until <= ?5 or token = excluded.token",
            params![
                tenant,
                request.name,
                request.owner,
                code::token_bytes(request.token),
                now.millis(),
                until.millis()
            ],
        )?;
        if written > 0 {
            return Ok(Acquired::Granted { until });
        }
        let held = "select owner, until from locks where tenant = ?1 and name = ?2";
        let held = self.conn.query_row(held, params![tenant, request.name], |row| {
            Ok(Acquired::Held { owner: row.get(0)?, until: Time::from_millis(row.get(1)?) })
        });
        held.optional()?.ok_or_else(|| Fault::damaged("a lock vanished within a transaction"))
    }

    pub(crate) fn extend_lock(
        &mut self,
        tenant: &Tenant,
        name: &str,
        token: Token,
        ttl: Duration,
    ) -> Result<Option<Time>, Fault> {
        let Some(tenant) = self.names.known_tenant(tenant) else { return Ok(None) };
        let now = self.clock.now();
        let until = now + ttl;
        let held = self.conn.execute(
            "update locks set until = ?5 where tenant = ?1 and name = ?2 and token = ?3 and until > ?4",
            params![tenant, name, code::token_bytes(token), now.millis(), until.millis()],
        )?;
        Ok((held > 0).then_some(until))
    }

    pub(crate) fn release_lock(&mut self, tenant: &Tenant, name: &str, token: Token) -> Result<bool, Fault> {
        let Some(tenant) = self.names.known_tenant(tenant) else { return Ok(false) };
        let gone = self.conn.execute(
            "delete from locks where tenant = ?1 and name = ?2 and token = ?3 and until > ?4",
            params![tenant, name, code::token_bytes(token), self.clock.now().millis()],
        )?;
        Ok(gone > 0)
    }
}
