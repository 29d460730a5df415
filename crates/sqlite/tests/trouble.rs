//! When the disk says no: nothing half-written, reads go on, writes come back by themselves.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use flowline_core::RunKey;
use flowline_sqlite::{Options, SqliteStore};
use flowline_store::conformance::given;
use flowline_store::{Catalog, Commit, EventQuery, RunStore, StoreError};

fn engine(path: &Path) -> Arc<SqliteStore> {
    SqliteStore::open(path, Options::default()).expect("the engine opens")
}

async fn begin(store: &SqliteStore) -> RunKey {
    let run = given::run("r");
    store.put_definition(given::definition(&run.tenant, given::FLOW, given::HASH)).await.unwrap();
    store.commit(vec![given::start(&run)]).await.unwrap().remove(0).unwrap();
    run
}

/// A small file system in memory, where this user may mount one.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount(bytes: u32) -> Option<Disk> {
        let folder = tempfile::tempdir().ok()?;
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(folder.path())
            .output()
            .ok()?;
        done.status.success().then_some(Disk(folder))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_whole_and_recovers_without_a_restart() {
    let Some(disk) = Disk::mount(4 << 20) else {
        eprintln!("not shown here: mounting a small file system needs root");
        return;
    };
    let path = disk.0.path().join("f.db");
    let store = engine(&path);
    let run = begin(&store).await;
    let ballast = disk.0.path().join("ballast");
    // Takes what is left.
    let _ = std::fs::write(&ballast, vec![0u8; 4 << 20]);

    let mut at = 1;
    let error = loop {
        let big = Commit { events: given::log_events(1_000), ..given::next(&run, at) };
        match store.commit(vec![big]).await {
            Ok(answers) => {
                assert!(answers[0].is_ok());
                at += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::CannotWrite(_)), "{error:?}");
    assert!(error.is_transient() && error.nothing_written());
    let found = store.load(std::slice::from_ref(&run)).await.unwrap().remove(0).unwrap();
    assert_eq!(found.row.version, at, "nothing of the refused commit is there");
    let log =
        store.events(&run, EventQuery { after: found.row.events, ..EventQuery::default() }).await.unwrap();
    assert!(log.events.is_empty());
    assert!(
        store.check().await.unwrap().problems.iter().any(|problem| problem.contains("last write failed"))
    );

    std::fs::remove_file(&ballast).unwrap();
    store.sweep(1).await.unwrap();
    assert!(store.check().await.unwrap().problems.is_empty(), "a sweep has written");
    store.commit(vec![given::next(&run, at)]).await.unwrap().remove(0).unwrap();
    assert!(store.check().await.unwrap().problems.is_empty());
}

#[tokio::test]
async fn a_file_at_its_bound_refuses_writes_whole_and_goes_on_when_it_may_grow() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = SqliteStore::open(&path, Options { max_bytes: Some(1 << 20), ..Options::default() }).unwrap();
    let run = begin(&store).await;
    let mut at = 1;
    let error = loop {
        let big = Commit { events: given::log_events(1_000), ..given::next(&run, at) };
        match store.commit(vec![big]).await {
            Ok(_) => at += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, StoreError::CannotWrite(text) if text.contains("full")), "{error:?}");
    let found = store.load(std::slice::from_ref(&run)).await.unwrap().remove(0).unwrap();
    assert_eq!((found.row.version, found.row.events), (at, (at - 1) * 1_000 + 1));
    // A small one still fits, and carries on where the log ended.
    store.commit(vec![given::next(&run, at)]).await.unwrap().remove(0).unwrap();
    drop(store);
    let store = engine(&path);
    let big = Commit { events: given::log_events(1_000), ..given::next(&run, at + 1) };
    assert_eq!(store.commit(vec![big]).await.unwrap().remove(0).unwrap().first_seq, found.row.events + 1);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let not_a_folder = folder.path().join("file");
    std::fs::write(&not_a_folder, "").unwrap();
    let error = SqliteStore::open(not_a_folder.join("f.db"), Options::default()).expect_err("refused");
    assert!(error.to_string().contains("file"), "{error}");
}

#[tokio::test]
async fn a_lock_held_by_another_program_is_reported_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let run = begin(&store).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let waiting = tokio::spawn({
        let (store, run) = (store.clone(), run.clone());
        async move { store.commit(vec![given::next(&run, 1)]).await }
    });
    // Reads do not wait for it.
    assert!(store.load(std::slice::from_ref(&run)).await.unwrap()[0].is_some());
    other.execute_batch("rollback").unwrap();
    waiting.await.unwrap().unwrap().remove(0).unwrap();
}
