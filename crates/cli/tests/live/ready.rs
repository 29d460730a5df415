//! Whether an instance says that it can work, while its store goes away and comes back.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::kit::server::{self, Kind};
use crate::live::http::{PATIENCE, get};
use crate::live::served::Server;

async fn until_ready_is(server: &Server, status: u16) {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = get(server.address, "/readyz", &[]).await;
        if answer.status == status {
            return;
        }
        assert!(Instant::now() < until, "it still says {answer:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Nobody starts a run meanwhile: whoever sends traffic waits for it to be ready.
async fn an_idle_instance_is_ready_again_when_its_store_is_back(kind: Kind) {
    let mut store = server::Server::start(kind);
    let folder = TempDir::new().unwrap();
    let instance = Server::start(folder.path(), &["--store", &store.place().url]);
    until_ready_is(&instance, 200).await;
    store.kill();
    until_ready_is(&instance, 503).await;
    store.run();
    until_ready_is(&instance, 200).await;
}

#[tokio::test]
async fn on_redis_an_idle_instance_is_ready_again_when_its_store_is_back() {
    an_idle_instance_is_ready_again_when_its_store_is_back(Kind::Redis).await;
}

#[tokio::test]
async fn on_postgres_an_idle_instance_is_ready_again_when_its_store_is_back() {
    an_idle_instance_is_ready_again_when_its_store_is_back(Kind::Postgres).await;
}
