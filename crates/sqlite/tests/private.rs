//! What the store writes can be read by its owner only, whatever the umask. One test: a umask belongs to the process.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flowline_sqlite::{Options, SqliteStore};
use rustix::fs::Mode;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode()
        & 0o777
}

#[tokio::test]
async fn only_the_owner_can_read_a_new_store_whatever_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    for umask in [0o000, 0o022, 0o027, 0o277, 0o777] {
        let (outer, inner) =
            (folder.path().join(format!("u{umask:o}")), folder.path().join(format!("u{umask:o}/in")));
        let path = inner.join("flowline.db");
        let before = rustix::process::umask(Mode::from_raw_mode(umask));
        let opened = SqliteStore::open(&path, Options::default());
        rustix::process::umask(before);
        let store = opened.unwrap_or_else(|error| panic!("umask {umask:03o}: {error}"));
        for made in [&outer, &inner] {
            assert_eq!(mode(made), 0o700, "umask {umask:03o}: {}", made.display());
        }
        for suffix in ["", "-wal", "-shm", ".lock"] {
            let file = format!("{}{suffix}", path.display());
            assert_eq!(mode(Path::new(&file)), 0o600, "umask {umask:03o}: {file}");
        }
        drop(store);
    }
}
