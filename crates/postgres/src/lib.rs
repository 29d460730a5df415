//! Flowline's store on PostgreSQL 15 or newer: any number of instances on one database.
//!
//! Writes go through two writers that each put all that is pending into one transaction (`write`); reads, claims and
//! heartbeats use a few connections of their own (`pool`). The tables are in `schema`, explained for people with `psql` at
//! hand in `docs/postgres.md`.
//!
//! Safety rests on versions and tokens that are compared under row locks, never on a clock or on who is alive. What this
//! crate does not do: decide anything about flows, elect a leader, or keep anything in mind that the database might
//! contradict.

mod announce;
mod catalog;
mod code;
mod documents;
mod fault;
mod feed;
mod floor;
mod grants;
mod lease;
mod names;
mod pool;
mod pooler;
mod read;
mod receipts;
mod retain;
mod schema;
mod session;
mod state;
mod store;
mod target;
mod tls;
mod transfer;
mod witness;
mod write;

use std::fmt;
use std::sync::Arc;

use flowline_store::StoreError;
use flowline_store::others::OtherProcesses;
use tokio::sync::{Notify, watch};

use announce::Announcer;
use floor::Floors;
use lease::Rotation;
use names::StoredNames;
use pool::{Pool, timely};
use session::Session;
use target::ServerTarget;
use witness::{Halt, Witness, Witnesses};
use write::{WRITERS, WriterContext, Writers};

pub use flowline_store::IfMissing;
pub use target::SCHEMA;

/// A schema of a PostgreSQL database as a Flowline store. Closed when the last reference goes.
pub struct PostgresStore {
    target: ServerTarget,
    pool: Pool,
    names: Arc<StoredNames>,
    writers: Writers,
    rotation: Rotation,
    floors: Floors,
    /// Of the sweeps.
    witness: Witness,
    changed: watch::Sender<u64>,
    tell: Arc<Notify>,
    _announcer: Announcer,
}

impl PostgresStore {
    /// Opens `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with `schema`, `sslmode` and `sslrootcert` after a `?`. Call
    /// it inside a runtime: connections live there.
    ///
    /// Fails within five seconds, with what to do about it, where the server is not to be reached, refuses the user, is
    /// too old or behind a proxy that pools by transaction, or the schema is of a newer build; and, to who wants to write, where that cannot be done.
    pub async fn open(url: &str, missing: IfMissing) -> Result<Arc<PostgresStore>, StoreError> {
        let target = ServerTarget::read(url)?;
        let halt = Arc::new(Halt::default());
        let first = Session::connect_first(&target).await?;
        let pool = Pool::new(target.clone(), first, halt.clone());
        let names = Arc::new(StoredNames::default());
        {
            let mut seat = pool.take().await?;
            let prepared = schema::prepare(&mut seat, &target, missing).await;
            let there = prepared.map_err(|fault| fault.of_connect(&target))?;
            if there && missing != IfMissing::Receive {
                let whole = timely(schema::refuse_half_moved(&seat, &target)).await;
                whole.map_err(|fault| fault.of_connect(&target))?;
            }
            if there {
                timely(names.load_lanes(&seat)).await.map_err(fault::PgFault::of_read)?;
            }
        }
        let (changed, _) = watch::channel(0);
        let tell = Arc::new(Notify::new());
        let (witnesses, others) = (Witnesses::new(WRITERS), OtherProcesses::new());
        let shared = WriterContext {
            target: target.clone(),
            names: names.clone(),
            changed: changed.clone(),
            tell: tell.clone(),
            halt,
            witnesses: witnesses.clone(),
            others: others.clone(),
        };
        let writers = Writers::start(shared);
        let announcer = Announcer::start(target.clone(), changed.clone(), tell.clone(), others);
        let (rotation, witness) = (Rotation::default(), witnesses.of_sweeps());
        Ok(Arc::new(PostgresStore {
            target,
            pool,
            names,
            writers,
            rotation,
            floors: Floors::default(),
            witness,
            changed,
            tell,
            _announcer: announcer,
        }))
    }

    /// The server, database and schema, without the password.
    pub fn place(&self) -> String {
        format!("{}?schema={}", self.target.place(), self.target.schema)
    }

    /// Wakes watchers here and, soon, elsewhere.
    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
        self.tell.notify_one();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("target", &self.target).finish_non_exhaustive()
    }
}
