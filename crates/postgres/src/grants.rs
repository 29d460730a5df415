//! Whether the role of the store URL can write here, and what it lacks: told at the door, not by the first write.
//!
//! An engine of today writes and deletes in all tables and draws from all sequences. What a later build will want, such as the
//! right to change a table, is left for that build to ask.

use flowline_store::StoreError;

use crate::fault::PgFault;
use crate::schema::STEPS;
use crate::session::Session;
use crate::target::ServerTarget;

/// Why nothing can be written here, with what to do about it; `format` is that of the store, if there is one.
pub(crate) async fn lacking(
    session: &Session,
    target: &ServerTarget,
    format: Option<u32>,
) -> Result<Option<String>, PgFault> {
    let (place, schema) = (target.place(), &target.schema);
    let sql =
        "select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_user::text";
    let row = session.query_one(sql, &[]).await?;
    let role: &str = row.try_get(2)?;
    if row.try_get(0)? {
        return Ok(Some(format!(
            "{place} is a standby, which doesn't accept writes; name the primary in the store URL"
        )));
    }
    if row.try_get(1)? {
        return Ok(Some(format!(
            "{place} is read-only for role {role:?}; set default_transaction_read_only to off for the role, the \
             database or the server, or name another in the store URL"
        )));
    }
    Ok(match format {
        None => may_not_create(session, target).await?.then(|| {
            format!(
                "role {role:?} can't create the schema {schema} or tables in it at {place}; grant the role CREATE on the \
                 database, or create the schema for it (`create schema {schema} authorization {role}`)"
            )
        }),
        Some(_) => out_of_reach(session, schema).await?.map(|what| {
            format!(
                "role {role:?} can't write to {what} in the schema {schema} of {place}; grant it the missing permissions: `grant \
                 select, insert, update, delete on all tables in schema {schema} to {role}; grant usage, select, update on all \
                 sequences in schema {schema} to {role}`"
            )
        }),
    })
}

/// Refuses a schema that the role may not look into: its tables would seem not to be there.
pub(crate) async fn refuse_shut(session: &Session, target: &ServerTarget) -> Result<(), PgFault> {
    let sql = "select has_schema_privilege($1, 'usage'), has_table_privilege(c.oid, 'select') from pg_class c
        join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = 'cells'";
    let Some(row) = session.query_opt(sql, &[&target.schema]).await? else { return Ok(()) };
    if row.try_get(0)? && row.try_get(1)? {
        return Ok(());
    }
    let (schema, place, user) = (&target.schema, target.place(), target.user());
    Err(StoreError::Incompatible(format!(
        "user {user:?} may not read the schema {schema} of {place}; grant the role USAGE on the schema and SELECT on its \
         tables, or name another user in the store URL"
    ))
    .into())
}

async fn may_not_create(session: &Session, target: &ServerTarget) -> Result<bool, PgFault> {
    let sql = "select not coalesce(
        (select has_schema_privilege(oid, 'create') from pg_namespace where nspname = $1),
        has_database_privilege(current_database(), 'create'))";
    Ok(session.query_one(sql, &[&target.schema]).await?.try_get(0)?)
}

/// The tables and sequences of the store that the role may not write to.
async fn out_of_reach(session: &Session, schema: &str) -> Result<Option<String>, PgFault> {
    let sql = "select string_agg(c.relname, ', ' order by c.relname)
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1 and c.relname = any($2) and case c.relkind
            when 'S' then not has_sequence_privilege(c.oid, 'usage')
            when 'r' then not (has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'insert')
                and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete'))
            else false end";
    Ok(session.query_one(sql, &[&schema, &made()]).await?.try_get(0)?)
}

/// The names of all that the steps of the schema make and engines write to.
fn made() -> Vec<&'static str> {
    let after = |word| move |step: &&'static str| step.split(word).skip(1).collect::<Vec<_>>();
    let tables = STEPS.iter().flat_map(after("create table "));
    let sequences = STEPS.iter().flat_map(after("create sequence "));
    let name = |text: &'static str| text.split([' ', ';', '(']).next().unwrap_or_default();
    tables.chain(sequences).map(name).chain(["cells"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_engines_write_to_is_known() {
        let made = made();
        assert_eq!(made.len(), 21, "{made:?}");
        for name in ["flow_runs", "writers", "receipts", "reports", "run_ids", "job_rewinds"] {
            assert!(made.contains(&name), "{name} is missing in {made:?}");
        }
    }
}
