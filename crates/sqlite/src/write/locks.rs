//! Named locks. One whose time is over counts as gone; its row is taken over, or goes with the next retention.

use flowline_core::Time;
use flowline_store::{Acquired, LockProof, LockRequest, Renewal};
use rusqlite::{OptionalExtension, params};

use super::Writer;
use crate::code;
use crate::fault::Fault;

impl Writer<'_> {
    pub(crate) fn acquire_lock(&mut self, request: &LockRequest) -> Result<Acquired, Fault> {
        let tenant = self.names.tenant(self.conn, &request.tenant)?;
        let now = self.clock.now();
        let until = now + request.ttl;
        let token = code::token_bytes(request.token);
        let look =
            "select owner, token, since, until from locks where tenant = ?1 and name = ?2 and until > ?3";
        let mut look = self.conn.prepare_cached(look)?;
        let held = look.query_row(params![tenant, request.name, now.millis()], |row| {
            let (owner, holder): (String, Vec<u8>) = (row.get(0)?, row.get(1)?);
            Ok((owner, holder, Time::from_millis(row.get(2)?), Time::from_millis(row.get(3)?)))
        });
        let since = match held.optional()? {
            Some((owner, holder, _, until)) if holder != token => return Ok(Acquired::Held { owner, until }),
            Some((_, _, since, _)) => since,
            None => self.next_grant(now)?,
        };
        self.conn.execute(
            "insert or replace into locks (tenant, name, owner, token, since, until) values (?1, ?2, ?3, ?4, ?5, ?6)",
            params![tenant, request.name, request.owner, token, since.millis(), until.millis()],
        )?;
        Ok(Acquired::Granted { since, until })
    }

    /// Now, or just after the last grant where the clock was set back or stands still.
    fn next_grant(&self, now: Time) -> Result<Time, Fault> {
        let sql = "insert into cells (name, value) values ('last_lock', ?1)
            on conflict (name) do update set value = max(excluded.value, value + 1) returning value";
        Ok(Time::from_millis(self.conn.query_row(sql, [now.millis()], |row| row.get(0))?))
    }

    pub(crate) fn renew_lock(&mut self, lock: &LockProof, renewal: Renewal) -> Result<Option<Time>, Fault> {
        let Some(tenant) = self.names.known_tenant(&lock.tenant) else { return Ok(None) };
        let now = self.clock.now();
        let token = code::token_bytes(lock.token);
        let (end, held) = match renewal {
            Renewal::Extend(ttl) => {
                let until = now + ttl;
                let extend = "update locks set until = ?5 where tenant = ?1 and name = ?2 and token = ?3 and until > ?4";
                let of = params![tenant, lock.name, token, now.millis(), until.millis()];
                (until, self.conn.execute(extend, of)?)
            }
            Renewal::Release => {
                let release =
                    "delete from locks where tenant = ?1 and name = ?2 and token = ?3 and until > ?4";
                (now, self.conn.execute(release, params![tenant, lock.name, token, now.millis()])?)
            }
        };
        Ok((held > 0).then_some(end))
    }
}
