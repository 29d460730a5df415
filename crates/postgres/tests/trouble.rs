//! What goes wrong at the door is said in words, with what to do about it, and soon.

#[allow(dead_code)]
mod place;

use std::time::Duration;

use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::row::Pause;
use flowline_store::{Catalog, StoreError};

/// The error of a URL that cannot be opened.
async fn refused(url: &str) -> StoreError {
    let opening = tokio::time::timeout(Duration::from_secs(5), PostgresStore::open(url, IfMissing::Make));
    opening.await.expect("an answer in time").expect_err("refused")
}

/// The test server's URL with another part in place of one.
fn changed(part: Part, to: &str) -> String {
    let url = place::url();
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (user, rest) = rest.split_once('@').expect("a user");
    let (server, database) = rest.split_once('/').expect("a database");
    let (host, _) = server.rsplit_once(':').unwrap_or((server, ""));
    match part {
        Part::User => format!("{scheme}://{to}@{server}/{database}"),
        Part::Port => format!("{scheme}://{user}@{host}:{to}/{database}"),
        Part::Database => format!("{scheme}://{user}@{server}/{to}"),
    }
}

enum Part {
    User,
    Port,
    Database,
}

#[tokio::test]
async fn a_wrong_port_is_told() {
    // Bound and closed again: nobody listens there.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let error = refused(&changed(Part::Port, &port.to_string())).await;
    let StoreError::Unavailable(text) = &error else { panic!("{error:?}") };
    assert!(text.contains(&port.to_string()) && text.contains("check host and port"), "{text}");
}

#[tokio::test]
async fn a_server_that_does_not_speak_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let error = refused(&changed(Part::Port, &port.to_string())).await;
    assert!(matches!(&error, StoreError::Unavailable(text) if text.contains("in time")), "{error:?}");
}

#[tokio::test]
async fn a_wrong_database_is_told() {
    let error = refused(&changed(Part::Database, "no_such_database")).await;
    let StoreError::Incompatible(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("no_such_database") && text.contains("createdb"), "{text}");
}

#[tokio::test]
async fn a_wrong_user_is_told_and_no_password_shown() {
    let error = refused(&changed(Part::User, "nobody_here:sesame")).await;
    let text = error.to_string();
    assert!(matches!(error, StoreError::Incompatible(_)), "{text}");
    assert!(text.contains("nobody_here") && !text.contains("sesame"), "{text}");
}

/// The servers of `cargo xtask services` ask users named `guarded` for their password.
#[tokio::test]
async fn a_wrong_password_is_told_and_not_shown() {
    let make = "do $$ begin create role guarded login password 'sesame';
        exception when duplicate_object or unique_violation then null; end $$";
    place::connect(&place::url()).await.batch_execute(make).await.expect("makes a role");
    let error = refused(&changed(Part::User, "guarded:open")).await;
    let StoreError::Incompatible(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("password of user \"guarded\"") && !text.contains("open"), "{text}");
    let error = refused(&changed(Part::User, "guarded")).await;
    assert!(error.to_string().contains("put the password in the store URL"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_is_told_where_tls_is_asked_for() {
    let (url, _schema) = place::fresh();
    let error = refused(&format!("{url}&sslmode=require")).await;
    let StoreError::Unavailable(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("the server doesn't support TLS") && text.contains("sslmode"), "{text}");
}

#[tokio::test]
async fn a_schema_of_a_newer_build_is_refused() {
    let (url, schema) = place::fresh();
    drop(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    let client = place::connect(&schema.url).await;
    client.batch_execute(&format!("update {}.cells set value = 99", schema.name)).await.expect("updates");
    let error = refused(&url).await;
    let StoreError::Incompatible(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("format 99") && text.contains("newer flowline"), "{text}");
}

#[tokio::test]
async fn who_only_reads_makes_nothing() {
    let (url, schema) = place::fresh();
    let error = PostgresStore::open(&url, IfMissing::Refuse).await.expect_err("refused");
    assert!(matches!(&error, StoreError::Missing(text) if text.contains(&schema.name)), "{error:?}");
    let client = place::connect(&schema.url).await;
    let sql = "select to_regnamespace($1) is null";
    let none: bool = client.query_one(sql, &[&schema.name]).await.expect("answers").get(0);
    assert!(none);
}

#[tokio::test]
async fn instances_that_start_together_make_the_tables_once() {
    let (url, _schema) = place::fresh();
    let open = |_| {
        let url = url.clone();
        tokio::spawn(async move { PostgresStore::open(&url, IfMissing::Make).await })
    };
    for opened in (0..8).map(open).collect::<Vec<_>>() {
        opened.await.expect("no panic").expect("opens");
    }
}

/// A role of its own, made by the server's owner, and the URL with it. Goes with `dropped`.
async fn role(name: &str, may: &str, url: &str) -> (tokio_postgres::Client, String) {
    let owner = place::connect(&place::url()).await;
    let make = format!("drop role if exists {name}; create role {name} login; {may}");
    owner.batch_execute(&make).await.expect("makes a role");
    (owner, changed(Part::User, name) + url.find('?').map_or("", |at| &url[at..]))
}

async fn dropped(owner: &tokio_postgres::Client, name: &str) {
    owner.batch_execute(&format!("drop owned by {name}; drop role {name}")).await.expect("removes the role");
}

#[tokio::test]
async fn a_database_that_is_read_only_is_for_readers_alone() {
    let (url, schema) = place::fresh();
    drop(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    let (name, own) = (format!("reader_of_{}", schema.name), &schema.name);
    let all = format!(
        "grant usage on schema {own} to {name}; grant all on all tables in schema {own} to {name};
         grant all on all sequences in schema {own} to {name}"
    );
    let (owner, theirs) = role(&name, &all, &url).await;
    drop(PostgresStore::open(&theirs, IfMissing::Make).await.expect("a role with all rights opens it"));
    let set = format!("alter role {name} set default_transaction_read_only to on");
    owner.batch_execute(&set).await.expect("is set");
    for writes in [IfMissing::Make, IfMissing::Expect, IfMissing::Receive] {
        let error = PostgresStore::open(&theirs, writes).await.expect_err("is refused");
        let StoreError::CannotWrite(text) = &error else { panic!("{error:?}") };
        assert!(text.contains("127.0.0.1") && text.contains("default_transaction_read_only"), "{text}");
    }
    let reader = PostgresStore::open(&theirs, IfMissing::Refuse).await.expect("a reader opens it");
    let health = reader.check().await.expect("answers");
    assert!(health.unwritable.is_some_and(|why| why.contains("read-only")));
    dropped(&owner, &name).await;
}

#[tokio::test]
async fn a_role_that_lacks_rights_is_told_which() {
    let (url, schema) = place::fresh();
    let (name, own) = (format!("weak_in_{}", schema.name), &schema.name);
    let (owner, theirs) = role(&name, "", &url).await;
    let error = refused(&theirs).await;
    assert!(matches!(&error, StoreError::CannotWrite(text) if text.contains("CREATE")), "{error:?}");

    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let error = refused(&theirs).await;
    assert!(matches!(&error, StoreError::Incompatible(text) if text.contains("USAGE")), "{error:?}");
    let read = format!(
        "grant usage on schema {own} to {name}; grant select on all tables in schema {own} to {name};
         grant usage on all sequences in schema {own} to {name};
         grant insert, update, delete on all tables in schema {own} to {name};
         revoke delete on {own}.jobs from {name}"
    );
    owner.batch_execute(&read).await.expect("grants");
    let error = refused(&theirs).await;
    assert!(matches!(&error, StoreError::CannotWrite(text) if text.contains("to jobs in")), "{error:?}");

    let weak = PostgresStore::open(&theirs, IfMissing::Refuse).await.expect("a reader opens it");
    owner.batch_execute(&format!("revoke insert on {own}.paused_queues from {name}")).await.expect("revokes");
    let tenant = flowline_core::Tenant::default();
    let error = weak.pause_queue(&tenant, "q", Pause::Paused).await.expect_err("is refused");
    assert!(matches!(&error, StoreError::CannotWrite(text) if text.contains("grant the role")), "{error:?}");
    store.pause_queue(&tenant, "q", Pause::Paused).await.expect("its owner may");
    dropped(&owner, &name).await;
}
