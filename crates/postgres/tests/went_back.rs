//! A store that an older backup was put in the place of, under those who work on it; and one that answers no more.
//!
//! Needs the server that `cargo xtask test` starts and names in `FLOWLINE_TEST_POSTGRES_URL`.

#[allow(dead_code)]
mod place;

use std::time::{Duration, Instant};

use flowline_core::RunKey;
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::conformance::{Fixture, given};
use flowline_store::{Catalog, RunStore, StoreError};

/// All tables of a schema, copied aside.
async fn back_up(schema: &place::Schema) {
    let name = &schema.name;
    let copy = format!(
        "create schema {name}_copy;
         do $$ declare t text; begin
            for t in select tablename from pg_tables where schemaname = '{name}' loop
                execute format('create table {name}_copy.%I as table {name}.%I', t, t);
            end loop;
         end $$"
    );
    place::connect(&schema.url).await.batch_execute(&copy).await.expect("is copied");
}

/// What was copied takes the place of what is there, while everybody stays connected.
async fn restore(schema: &place::Schema) {
    let name = &schema.name;
    let back = format!(
        "do $$ declare t text; begin
            for t in select tablename from pg_tables where schemaname = '{name}' loop
                execute format('truncate {name}.%I', t);
                execute format('insert into {name}.%I overriding system value select * from {name}_copy.%I', t, t);
            end loop;
         end $$;
         drop schema {name}_copy cascade"
    );
    place::connect(&schema.url).await.batch_execute(&back).await.expect("is restored");
}

/// That everything is refused, as the store went back in time.
async fn halted(store: &PostgresStore, run: &RunKey) {
    let error = store.commit(vec![given::next(run, 1)]).await.expect_err("the commit is refused");
    assert!(matches!(&error, StoreError::WentBack(why) if why.contains("flowline verify")), "{error}");
    assert!(!error.is_transient() && error.nothing_written());
    let asked = [
        store.load(std::slice::from_ref(run)).await.map(drop),
        store.sweep(10).await.map(drop),
        store.claim(given::claim(&[1])).await.map(drop),
        store.check().await.map(drop),
    ];
    for answer in asked {
        assert!(matches!(answer, Err(StoreError::WentBack(_))), "{answer:?}");
    }
}

async fn open() -> (std::sync::Arc<PostgresStore>, Fixture, place::Schema) {
    let (store, schema) = place::open().await;
    (store.clone(), Fixture::waiting(store), schema)
}

async fn anew(schema: &place::Schema) -> (std::sync::Arc<PostgresStore>, Fixture) {
    let url = format!("{}?schema={}", schema.url, schema.name);
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    (store.clone(), Fixture::waiting(store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_backup_is_noticed_by_who_saw_the_newer_one_and_writes_halt() {
    let (store, f, schema) = open().await;
    let run = f.started("r", vec![]).await;
    back_up(&schema).await;
    let later = f.started("later", vec![]).await;
    restore(&schema).await;

    halted(&store, &run).await;
    let (fresh, g) = anew(&schema).await;
    assert_eq!(g.row(&run).await.version, 1, "nothing was written on top");
    assert_eq!(g.try_row(&later).await, None);
    let landed = fresh.commit(vec![given::next(&run, 1)]).await.expect("who starts anew takes what is there");
    assert!(landed[0].is_ok(), "{landed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_noticed_however_much_others_have_written_since() {
    let (store, f, schema) = open().await;
    let run = f.started("r", vec![]).await;
    back_up(&schema).await;
    f.started("later", vec![]).await;
    restore(&schema).await;
    let (_, g) = anew(&schema).await;
    for n in 0..20 {
        g.started(&format!("new-{n}"), vec![]).await;
    }
    halted(&store, &run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_noticed_by_who_wrote_nothing_and_only_swept() {
    let (store, f, schema) = open().await;
    let run = f.started("r", vec![]).await;
    let (idle, _) = anew(&schema).await;
    idle.sweep(10).await.expect("sweeps");
    back_up(&schema).await;
    f.pass(Duration::from_millis(1_100)).await;
    idle.sweep(10).await.expect("sweeps, and counts on");
    restore(&schema).await;
    f.pass(Duration::from_millis(1_100)).await;
    let swept = idle.sweep(10).await;
    assert!(matches!(swept, Err(StoreError::WentBack(_))), "{swept:?}");
    halted(&idle, &run).await;
    // Nothing that this one has written is lost.
    let landed = store.commit(vec![given::next(&run, 1)]).await.expect("answers");
    assert!(landed[0].is_ok(), "{landed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_silent_is_reported_within_five_seconds() {
    let (url, schema) = place::fresh();
    let server =
        schema.url.split('@').nth(1).and_then(|rest| rest.split('/').next()).expect("a server").to_owned();
    let gate = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = gate.local_addr().expect("an address").port();
    let (silence, open) = tokio::sync::watch::channel(false);
    let to = server.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = gate.accept().await {
            let (to, open) = (to.clone(), open.clone());
            tokio::spawn(async move {
                let far = tokio::net::TcpStream::connect(to).await.expect("connects");
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::join!(pass(near_in, far_out, open.clone()), pass(far_in, near_out, open));
            });
        }
    });
    let through = url.replace(&server, &format!("127.0.0.1:{port}"));
    let store = PostgresStore::open(&through, IfMissing::Make).await.expect("opens");
    let f = Fixture::waiting(store.clone());
    let run = f.started("r", vec![]).await;
    silence.send(true).expect("is heard");
    let soon = |began: Instant| assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // More callers than there are connections, and more than one batch.
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..12 {
        let (store, run) = (store.clone(), run.clone());
        asked.spawn(async move {
            let began = Instant::now();
            tokio::time::sleep(Duration::from_millis(n * 20)).await;
            let answer = match n % 3 {
                0 => store.commit(vec![given::next(&run, 1)]).await.map(drop),
                1 => store.load(std::slice::from_ref(&run)).await.map(drop),
                _ => store.claim(given::claim(&[1])).await.map(drop),
            };
            (answer, began)
        });
    }
    while let Some(done) = asked.join_next().await {
        let (answer, began) = done.expect("no panic");
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        soon(began);
    }
    silence.send(false).expect("is heard");
    let until = Instant::now() + Duration::from_secs(10);
    while store.load(std::slice::from_ref(&run)).await.is_err() {
        assert!(Instant::now() < until, "it is back");
    }
}

/// Hands bytes on, unless nothing is to come through.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut silent: tokio::sync::watch::Receiver<bool>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if silent.wait_for(|silent| !silent).await.is_err() || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
