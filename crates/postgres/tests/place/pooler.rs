//! A PgBouncer of a test's own.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A PgBouncer in front of the server at `url`. Gone with this.
pub struct Pooler {
    url: String,
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
    pub fn start(url: &str, mode: &str, more: &str) -> Pooler {
        use std::os::unix::fs::PermissionsExt;

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
        let pooler = Pooler {
            url: url.to_owned(),
            process: process.expect("pgbouncer starts"),
            port,
            _folder: folder,
        };
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "pgbouncer does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        pooler
    }

    /// The URL of a schema behind it.
    pub fn url(&self, schema: &str) -> String {
        let (user, rest) = self.url.split_once('@').expect("a user");
        let database = rest.split_once('/').expect("a database").1;
        let joint = if database.contains('?') { '&' } else { '?' };
        format!("{user}@127.0.0.1:{}/{database}{joint}schema={schema}", self.port)
    }
}
