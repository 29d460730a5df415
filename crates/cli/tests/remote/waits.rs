//! Processes that start before their store does.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::kit::crowd::Running;
use crate::kit::place::Here;
use crate::kit::server::{Kind, Server};
use crate::kit::wait_for;

#[test]
fn serve_and_work_wait_for_a_store_that_is_away_and_say_so() {
    for kind in [Kind::Redis, Kind::Postgres] {
        let here = Here::new();
        let mut store = Server::start(kind);
        let place = store.place();
        store.kill();
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", &place.url];
        let work = ["work", "--store", &place.url];
        let mut waiting = [("serve", &serve[..]), ("work", &work[..])]
            .map(|(name, arguments)| Running::start(&here, name, arguments));
        let said = |name: &str, what: &str| std::fs::read_to_string(here.path(name)).unwrap().contains(what);
        for name in ["serve", "work"] {
            wait_for("it says what it waits for", || {
                said(name, "waiting up to ") && said(name, &place.address)
            });
        }
        store.run();
        wait_for("it serves", || said("serve", "serving "));
        wait_for("it works", || said("work", "working on "));
        for process in &mut waiting {
            process.signal("TERM");
            assert_eq!(process.wait(), Some(0), "{kind:?}");
        }
    }
}

#[test]
fn a_store_that_stays_away_ends_serve_and_work_with_3() {
    let here = Here::new();
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let url = format!("redis://:s3cret@127.0.0.1:{nobody}");
    for command in ["serve", "dev", "work"] {
        let began = Instant::now();
        let said = here.flowline(&[command, "--store", &url, "--store-patience", "1s", "--json"]);
        assert_eq!(said.exit, 3, "{said:?}");
        assert!(began.elapsed() >= Duration::from_secs(1), "{said:?}");
        assert!(said.err.contains("waiting up to 1s for the store: redis://127.0.0.1"), "{said:?}");
        assert!(said.out.contains("store-unavailable") && !said.err.contains("s3cret"), "{said:?}");
        let said = here.flowline(&[command, "--store", &url, "--store-patience", "0s"]);
        assert!(said.exit == 3 && !said.err.contains("waiting"), "{said:?}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_store() {
    let here = Here::new();
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{nobody}");
    let mut work = Running::start(&here, "work", &["work", "--store", &url, "--store-patience", "10m"]);
    wait_for("it waits", || std::fs::read_to_string(here.path("work")).unwrap().contains("waiting up to"));
    work.signal("TERM");
    assert_eq!(work.wait(), Some(130));
}
