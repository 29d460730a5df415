//! Behind PgBouncer: by session all works, by transaction it is said so at the door. Each test starts one of its own.
#![cfg(unix)]

#[allow(dead_code)]
mod place;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flowline_core::{Tenant, Time};
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::lock::{Acquired, LockRequest};
use flowline_store::{Catalog, RunStore, StoreError, Token};

/// A PgBouncer in front of the test server. Gone with this.
struct Pooler {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join("pgbouncer")).find(|file| file.is_file());
    found.expect("pgbouncer is installed by `cargo xtask services start`")
}

impl Pooler {
    async fn start(mode: &str, more: &str) -> Pooler {
        use std::os::unix::fs::PermissionsExt;

        let url = place::url();
        let (_, server) = url.split_once('@').expect("a user");
        let (server, database) = server.split_once('/').expect("a database");
        let (host, server_port) = server.rsplit_once(':').expect("a port");
        let database = database.split('?').next().unwrap_or(database);
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        let folder = tempfile::tempdir().expect("a folder");
        // It does not run as root, and must read this as another user.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("may");
        let users = folder.path().join("users.txt");
        std::fs::write(&users, "\"flowline\" \"\"\n").expect("writes");
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n{database} = host={host} port={server_port} dbname={database}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\n\
             default_pool_size = 20\n{more}\n",
            users.display()
        );
        std::fs::write(&settings, text).expect("writes");
        let mut command = Command::new(program());
        if Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0") {
            command.args(["-u", "nobody"]);
        }
        let process = command.arg("-q").arg(&settings).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let pooler = Pooler { process: process.expect("pgbouncer starts"), port, _folder: folder };
        let until = Instant::now() + Duration::from_secs(30);
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(Instant::now() < until, "pgbouncer does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        pooler
    }

    /// The URL of a schema behind it.
    fn url(&self, schema: &str) -> String {
        let url = place::url();
        let (user, rest) = url.split_once('@').expect("a user");
        let database = rest.split_once('/').expect("a database").1;
        let joint = if database.contains('?') { '&' } else { '?' };
        format!("{user}@127.0.0.1:{}/{database}{joint}schema={schema}", self.port)
    }
}

fn is_told(error: &StoreError) {
    let StoreError::Incompatible(text) = error else { panic!("{error:?}") };
    assert!(text.contains("transaction mode") && text.contains("pool_mode = session"), "{text}");
    assert!(text.contains("the server's own address"), "{text}");
}

#[tokio::test]
async fn behind_a_pooler_by_transaction_the_remedy_is_told() {
    let pooler = Pooler::start("transaction", "").await;
    let schema = place::fresh().1;
    let name = &schema.name;
    for missing in [IfMissing::Make, IfMissing::Refuse, IfMissing::Ignore] {
        is_told(&PostgresStore::open(&pooler.url(name), missing).await.expect_err("refused"));
    }
    // Nothing was made, and nothing is left behind for others.
    let there = format!("select count(*) from pg_namespace where nspname = '{name}'");
    let direct = place::connect(&place::url()).await;
    assert_eq!(direct.query_one(&there, &[]).await.expect("counts").get::<_, i64>(0), 0);
    let others = place::connect(&pooler.url("public").replace("?schema=public", "")).await;
    for _ in 0..3 {
        let left =
            "select coalesce(current_setting('flowline.session', true), ''), current_setting('search_path')";
        let row = others.simple_query(left).await.expect("answers");
        let tokio_postgres::SimpleQueryMessage::Row(row) = &row[1] else { panic!("{row:?}") };
        assert_eq!((row.get(0), row.get(1)), (Some(""), Some("\"$user\", public")));
    }
}

#[tokio::test]
async fn a_pooler_by_transaction_that_takes_connections_in_turn_is_noticed_too() {
    let pooler = Pooler::start("transaction", "server_round_robin = 1\nmin_pool_size = 5").await;
    let schema = place::fresh().1;
    is_told(&PostgresStore::open(&pooler.url(&schema.name), IfMissing::Make).await.expect_err("refused"));
}

#[tokio::test]
async fn behind_a_pooler_by_session_a_store_works() {
    let pooler = Pooler::start("session", "").await;
    let schema = place::fresh().1;
    let one = PostgresStore::open(&pooler.url(&schema.name), IfMissing::Make).await.expect("opens");
    let other = PostgresStore::open(&pooler.url(&schema.name), IfMissing::Expect).await.expect("opens");
    assert!(one.now().await.expect("tells the time") > Time::from_millis(0));
    let ask = |token| LockRequest {
        tenant: Tenant::default(),
        name: "nightly".to_owned(),
        owner: "me".to_owned(),
        token: Token(token),
        ttl: Duration::from_secs(60),
    };
    assert!(matches!(one.acquire_lock(ask(1)).await.expect("answers"), Acquired::Granted { .. }));
    assert!(matches!(other.acquire_lock(ask(2)).await.expect("answers"), Acquired::Held { .. }));
    drop((one, other));
}
