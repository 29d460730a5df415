//! The writer's statements, prepared once and kept for the life of its connection.
//!
//! `or rollback`: a failure undoes the whole transaction anyway, so SQLite need not be ready to undo one statement.

use rusqlite::{Connection, PrepFlags, Statement};

macro_rules! statements {
    ($($name:ident: $sql:literal,)*) => {
        pub(crate) struct Statements<'c> {
            $(pub(crate) $name: Statement<'c>,)*
        }

        impl<'c> Statements<'c> {
            pub(crate) fn prepare(conn: &'c Connection) -> rusqlite::Result<Statements<'c>> {
                // Kept for long, they are kept out of the room that SQLite has for what it needs for a moment.
                let prepare = |sql| conn.prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_PERSISTENT);
                Ok(Statements { $($name: prepare($sql)?,)* })
            }
        }
    };
}

statements! {
    begin: "begin immediate",
    commit: "commit",

    run_by_name: "select id from runs where tenant = ?1 and run_id = ?2",
    run_by_id: "select p.flow, p.status, p.started_at, p.version, p.seq, p.ms, r.run_id, p.tenant, p.machine_state,
        r.created_at from runs r join progress p on p.run = r.id where r.id = ?1",
    jobs_of_run: "select key, name, attempt, lane, priority, due, held, n, null, null, null, null, null, null
            from jobs where run = ?1
        union all select key, name, attempt, lane, priority, due, 0, n, token, worker, leased_at, expires, lines, released
            from leases where run = ?1",

    insert_run: "insert or rollback into runs (id, tenant, flow, definition, run_id, created_at, step_count, idempotency_key,
        retry_of, input_digest, labels) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    insert_label: "insert or rollback into labels (tenant, key, value, run) values (?1, ?2, ?3, ?4)",
    insert_progress: "insert or rollback into progress (run, version, seq, ms, started_at, completed_steps, failed_steps,
        retries, state, status, completed_at, machine_state, context_seq, tenant, flow)
        values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    // SQLite writes every index that an update names a column of, changed or not: so there are two.
    advance: "update or rollback progress set version = ?2, seq = ?3, ms = ?4, started_at = ?5, completed_steps = ?6,
        failed_steps = ?7, retries = ?8, state = ?9, context_seq = coalesce(?10, context_seq) where run = ?1",
    advance_status: "update or rollback progress set version = ?2, seq = ?3, ms = ?4, started_at = ?5, completed_steps = ?6,
        failed_steps = ?7, retries = ?8, state = ?9, status = ?10, completed_at = coalesce(?11, completed_at),
        machine_state = ?12, context_seq = coalesce(?13, context_seq) where run = ?1",
    advance_log: "update or rollback progress set seq = ?2, ms = ?3, started_at = ?4 where run = ?1",
    set_failure: "update or rollback progress set failure_error = ?2, failure_step = ?3 where run = ?1",
    // Of its own, because few definitions say it.
    set_retain: "update or rollback progress set retain = ?2 where run = ?1",
    insert_log: "insert or rollback into log (n, run, first_seq, ms, count, events) values (?1, ?2, ?3, ?4, ?5, ?6)",
    insert_slot: "insert or ignore into slots (run, slot, n) values (?, ?, ?)",
    insert_8_slots: "insert or ignore into slots (run, slot, n) values (?, ?, ?), (?, ?, ?), (?, ?, ?), (?, ?, ?),
        (?, ?, ?), (?, ?, ?), (?, ?, ?), (?, ?, ?)",
    count: "insert into counters (flow, status, state, n) values (?1, ?2, ?3, ?4)
        on conflict do update set n = n + excluded.n",

    insert_job: "insert or rollback into jobs (run, key, name, attempt, lane, priority, due, held, n)
        values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    delete_job: "delete from jobs where run = ?1 and key = ?2",
    hold_job: "update or rollback jobs set held = ?3 where run = ?1 and key = ?2",
    insert_lease: "insert or rollback into leases (run, key, name, attempt, lane, priority, due, n, token, worker, leased_at,
        expires, lines, released) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    delete_lease: "delete from leases where run = ?1 and key = ?2",
    set_lines: "update or rollback leases set lines = ?3 where run = ?1 and key = ?2",
    set_expiry: "update or rollback leases set expires = ?3, released = ?4 where run = ?1 and key = ?2",
    first_due: "select run, key from jobs where lane = ?1 and priority = ?2 and held = 0 and key >= 0 and due <= ?3
        order by due, n limit 1",
    next_due: "select due from jobs where lane = ?1 and priority = ?2 and held = 0 and key >= 0 and due > ?3
        order by due limit 1",

    open_receipt: "insert or rollback into receipts (run, number, tenant, event_id, name, sender, status, worker,
        received_at, started_at, completed_at, outcome, seq)
        values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    change_receipt: "update or rollback receipts set status = ?3, worker = coalesce(?4, worker),
        started_at = coalesce(started_at, ?5), completed_at = coalesce(completed_at, ?6),
        outcome = coalesce(?7, outcome) where run = ?1 and number = ?2",

    put_kv: "insert or replace into kv (scope, owner, key, value, expires) values (?1, ?2, ?3, ?4, ?5)",
    delete_kv: "delete from kv where scope = ?1 and owner = ?2 and key = ?3",
    clear_kv: "delete from kv where scope = ?1 and owner = ?2",
}

impl std::fmt::Debug for Statements<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Statements")
    }
}
