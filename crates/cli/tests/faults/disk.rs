//! Writes that the disk refuses, at every size of file, then the checker.

use std::process::{Command, Stdio};

use flowline::core::{RunId, Tenant};
use flowline_check::{ClientReply, ClientRequest, History};
use flowline_sqlite::OpenMode;

use crate::kit::dump::Dump;
use crate::kit::ledger;
use crate::kit::place::{Here, Said};

/// Runs the binary under a bound on the size of the files that it writes, which needs no privilege.
fn bounded(here: &Here, blocks: usize, arguments: &[&str]) -> Said {
    let script = r#"trap "" XFSZ; ulimit -f "$0"; exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, &blocks.to_string(), env!("CARGO_BIN_EXE_flowline")]).args(arguments);
    Said::of(command.current_dir(here.folder.path()).stdin(Stdio::null()).output().unwrap())
}

#[test]
fn what_a_full_disk_refuses_is_not_there_and_what_it_took_is() {
    let here = ledger::here();
    let mut history = History::default();
    let mut start = |key: &str, said: Said| {
        let outcome = if said.exit == 0 { ClientReply::Acknowledged } else { ClientReply::Refused };
        let run = (said.exit == 0).then(|| RunId::new(said.out.trim()).unwrap());
        let (flow, key, body) = ("hit".into(), Some(key.to_owned()), Some("1".to_owned()));
        history.push(&Tenant::default(), ClientRequest::Start { run, flow, key, body }, outcome);
        outcome
    };
    let arguments = |key: &'static str| ["start", "hit.yaml", "--input", "1", "--idempotency-key", key];
    start("first", here.flowline(&arguments("first")));
    let keys: Vec<&'static str> = (0..40).map(|n| &*format!("key-{n}").leak()).collect();
    let mut refused = 0;
    for (at, key) in keys.iter().enumerate() {
        // The bound bites at every write between not a page and more than a start needs.
        let outcome = start(key, bounded(&here, at * 8, &arguments(key)));
        refused += usize::from(outcome == ClientReply::Refused);
    }
    assert!(0 < refused && refused < keys.len(), "{refused} of {} were refused", keys.len());
    // A worker that cannot write either leaves what it did to the next one.
    let mut worker = Command::new("sh");
    let script = r#"trap "" XFSZ; ulimit -f 300; exec "$0" work --lease 1s"#;
    worker.args(["-c", script, env!("CARGO_BIN_EXE_flowline")]).current_dir(here.folder.path());
    let mut worker = worker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    worker.kill().unwrap();
    worker.wait().unwrap();
    let path = here.path(".flowline/flowline.db");
    Dump::read(&path, OpenMode::Client).unwrap().assert_right(&history, &ledger::read(&here));
    assert_eq!(here.flowline(&["work", "--until-idle", "--lease", "1s"]).exit, 0);
    let dump = Dump::read(&path, OpenMode::Client).unwrap();
    dump.assert_right(&history, &ledger::read(&here));
    assert_eq!(dump.runs.len(), keys.len() + 1 - refused);
}
