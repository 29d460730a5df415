//! Noticing a store that went back in time: an older backup that was restored, a standby without the last commits that was
//! promoted.
//!
//! Every writer, and the sweep of every instance, has a row of its own in `writers` and counts it on in each transaction,
//! with a look at the others of its process. A count that was acknowledged can only be found, or surpassed; where it is
//! not, this process has seen what the store has lost. Others may have written whatever since: they do not touch these
//! rows. From then on the store answers nothing else.
//!
//! It says nothing to a process that starts afterwards: that one has seen nothing.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use flowline_store::StoreError;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::fault::PgFault;
use crate::session::Session;

/// How often a sweep counts on: so far back at most lies what a process that only reads can miss.
const OFTEN: Duration = Duration::from_secs(1);
/// Rows that nobody counted on for this long go with retention. A process that slept for nearly as long begins anew.
pub(crate) const KEPT_DAYS: i64 = 30;
const SLEPT: Duration = Duration::from_secs(20 * 86_400);

/// What `unbroken` of the schema raises.
pub(crate) const BROKEN: &str = "FLBCK";

/// The rows of `writers` that this process counts on: one per writer, and the last one for its sweeps.
#[derive(Debug)]
pub(crate) struct Witnesses {
    rows: Vec<Count>,
    last: Mutex<Instant>,
}

#[derive(Debug)]
struct Count {
    id: String,
    /// The highest count that is surely in the store.
    known: AtomicI64,
}

/// One of the rows, for whoever counts it on.
#[derive(Debug, Clone)]
pub(crate) struct Witness {
    of: Arc<Witnesses>,
    mine: usize,
}

/// Counts on, or breaks the transaction off where this count or one of the others is not there any more. The first time
/// there is nothing to find.
pub(crate) const COUNT_ON: &str = "
    with mine as (
        insert into writers (id, n, seen_at)
            select $1::text, 1, now_ms() where $2::bigint = 0 or exists (select from writers where id = $1)
        on conflict (id) do update set n = writers.n + 1, seen_at = now_ms() where writers.n >= $2 returning n),
    lost as (
        select from unnest($3::text[], $4::bigint[]) u(id, n)
        where not exists (select from writers w where w.id = u.id and w.n >= u.n))
    select unbroken(case when not exists (select from lost) then (select n from mine) end)";

/// What [`COUNT_ON`] is given.
#[derive(Debug)]
pub(crate) struct CountParams {
    id: String,
    known: i64,
    other_ids: Vec<String>,
    others: Vec<i64>,
}

impl CountParams {
    pub(crate) fn given(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.id, &self.known, &self.other_ids, &self.others]
    }
}

impl Witnesses {
    pub(crate) fn new(writers: usize) -> Arc<Witnesses> {
        let id = || format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let row = |_| Count { id: id(), known: AtomicI64::new(0) };
        Arc::new(Witnesses { rows: (0..=writers).map(row).collect(), last: Mutex::new(Instant::now()) })
    }

    pub(crate) fn of_writer(self: &Arc<Self>, number: usize) -> Witness {
        Witness { of: self.clone(), mine: number }
    }

    pub(crate) fn of_sweeps(self: &Arc<Self>) -> Witness {
        Witness { of: self.clone(), mine: self.rows.len() - 1 }
    }

    fn idle(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

impl Witness {
    pub(crate) fn known(&self) -> CountParams {
        let slept = self.of.idle() > SLEPT;
        let known = |row: &Count| if slept { 0 } else { row.known.load(Ordering::Relaxed) };
        let mine = &self.of.rows[self.mine];
        let others = self.of.rows.iter().filter(|row| row.id != mine.id && known(row) > 0);
        let (other_ids, others) = others.map(|row| (row.id.clone(), known(row))).unzip();
        CountParams { id: mine.id.clone(), known: known(mine), other_ids, others }
    }

    /// What [`COUNT_ON`] answered, once its transaction is durable.
    pub(crate) fn counted(&self, row: Option<&Row>) -> Result<(), PgFault> {
        let count = row.map(|row| row.try_get::<_, i64>(0)).transpose()?;
        self.of.rows[self.mine].known.fetch_max(count.unwrap_or(0), Ordering::Relaxed);
        *self.of.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    /// Counts on by itself, where nothing was counted on lately.
    pub(crate) async fn attend(&self, session: &Session) -> Result<(), PgFault> {
        if self.of.rows[self.mine].known.load(Ordering::Relaxed) > 0 && self.of.idle() < OFTEN {
            return Ok(());
        }
        let row = session.query_opt(COUNT_ON, &self.known().given()).await?;
        self.counted(row.as_ref())
    }
}

/// What a process knows once it has noticed.
#[derive(Debug, Default)]
pub(crate) struct Halt(OnceLock<String>);

impl Halt {
    pub(crate) fn healthy(&self) -> Result<(), StoreError> {
        match self.0.get() {
            Some(why) => Err(StoreError::WentBack(why.clone())),
            None => Ok(()),
        }
    }

    /// Remembers an answer that says so.
    pub(crate) fn heed<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::WentBack(why)) = &answer {
            let _ = self.0.set(why.clone());
        }
        answer
    }
}

/// What people are told.
pub(crate) fn words() -> String {
    "writes of this process are missing: an older backup was restored, or a standby without the last commits took \
     over. This process has stopped writing. Stop every engine, restore the newest data, or accept the loss: start again, then \
     `flowline verify` and `flowline reconcile`"
        .to_owned()
}
