//! A write-ahead log whose tail is torn off: what was committed before the tear is there, and nothing of what came after.

use std::path::{Path, PathBuf};

use flowline::store::StoreError;
use flowline_sqlite::OpenMode;

use crate::kit::dice::{Dice, seed};
use crate::kit::dump::Dump;
use crate::kit::ledger;

const OFFSETS: u64 = 1_000;

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens a file as an engine does. A process that another test is just forking holds the lock of the last one for a moment.
fn open(path: &Path) -> Result<Dump, StoreError> {
    loop {
        match Dump::read(path, OpenMode::Engine) {
            Err(StoreError::InUse(_)) => std::thread::yield_now(),
            other => return other,
        }
    }
}

#[test]
fn a_torn_log_gives_what_was_committed_before_the_tear() {
    let mut dice = Dice(seed());
    let here = ledger::here();
    let path = here.path(".flowline/flowline.db");
    for n in 0..4 {
        here.start(&["hit.yaml", "--input", &n.to_string()]);
    }
    let mut worker = here.spawn(&["work"]);
    // The log stays behind a worker that is killed.
    while Dump::read(&path, OpenMode::Client)
        .unwrap()
        .runs
        .values()
        .map(|run| run.events.len())
        .sum::<usize>()
        < 60
    {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    let (file, log) = (std::fs::read(&path).unwrap(), std::fs::read(with_suffix(&path, "-wal")).unwrap());
    assert!(!log.is_empty());
    let whole = Dump::read(&path, OpenMode::Client).unwrap();
    // A thousand openings sync thousands of times; in memory that costs nothing.
    let folder = tempfile::TempDir::new_in("/dev/shm").or_else(|_| tempfile::TempDir::new()).unwrap();
    let torn = folder.path().join("torn.db");
    let (mut refused, mut lengths) = (0, std::collections::BTreeSet::new());
    for at in 0..OFFSETS {
        // Spread over the log, at any byte.
        let share = log.len() as u64 / OFFSETS;
        let cut = (at * log.len() as u64 / OFFSETS + dice.roll(share.max(1))) as usize;
        std::fs::write(&torn, &file).unwrap();
        std::fs::write(with_suffix(&torn, "-wal"), &log[..cut]).unwrap();
        let _ = std::fs::remove_file(with_suffix(&torn, "-shm"));
        let dump = match open(&torn) {
            Ok(dump) => dump,
            Err(error) => {
                println!("torn at {cut}: {error}");
                refused += 1;
                continue;
            }
        };
        assert_eq!(dump.check(), [], "torn at {cut} of {}", log.len());
        for (key, run) in &dump.runs {
            let events = &whole.runs[key].events;
            assert!(events.starts_with(&run.events), "torn at {cut}: {key} is not what it was");
        }
        lengths.insert(dump.runs.values().map(|run| run.events.len()).sum::<usize>());
    }
    println!(
        "{OFFSETS} tears of a log of {} bytes: {refused} refused, {} different pasts",
        log.len(),
        lengths.len()
    );
    assert_eq!(refused, 0, "the file itself is whole");
    assert!(lengths.len() > 10, "the tears missed the commits: {lengths:?}");
}
