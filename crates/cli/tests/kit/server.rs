//! The server that instances share: the one that the tests were given, or one of a test's own, to be killed and paused.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Postgres,
}

/// A store on a server: its URL, and the host and port in it, which a proxy stands in for.
#[derive(Debug, Clone)]
pub struct Place {
    pub kind: Kind,
    pub url: String,
    pub address: String,
}

impl Place {
    /// A store of its own on the server that `cargo xtask test` starts, or that was given.
    pub fn shared(kind: Kind) -> Place {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let (variable, name) = match kind {
            Kind::Redis => ("FLOWLINE_TEST_REDIS_URL", "prefix"),
            Kind::Postgres => ("FLOWLINE_TEST_POSTGRES_URL", "schema"),
        };
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`")
        });
        let rest = server.split_once("://").unwrap().1;
        let host = rest.split(['/', '?']).next().unwrap();
        let address = host.rsplit('@').next().unwrap().to_owned();
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let joint = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{joint}{name}=instances_{}_{number}", std::process::id());
        Place { kind, url, address }
    }

    /// The same store by way of another port of this machine.
    pub fn by(&self, port: u16) -> String {
        self.url.replace(&self.address, &format!("127.0.0.1:{port}"))
    }
}

/// A server of a test's own. What it acknowledges survives its death.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

impl Server {
    pub fn start(kind: Kind) -> Server {
        let folder = TempDir::new().unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let mut server = Server { kind, folder, port, child: None };
        if kind == Kind::Postgres {
            server.make_files();
        }
        server.run();
        server
    }

    pub fn place(&self) -> Place {
        let address = format!("127.0.0.1:{}", self.port);
        let url = match self.kind {
            Kind::Redis => format!("redis://{address}"),
            Kind::Postgres => format!("postgres://postgres@{address}/postgres"),
        };
        Place { kind: self.kind, url, address }
    }

    /// Ends it without a chance to tidy up, and starts it on what it left.
    pub fn restart(&mut self) {
        self.kill();
        self.run();
    }

    /// Stops every process of it with SIGSTOP, or lets them go on.
    pub fn pause(&self, paused: bool) {
        let signal = if paused { "-STOP" } else { "-CONT" };
        let pid = match self.kind {
            Kind::Redis => self.child.as_ref().unwrap().id().to_string(),
            Kind::Postgres => {
                let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
                file.lines().next().unwrap().to_owned()
            }
        };
        let children = Command::new("pgrep").args(["-P", &pid]).output().unwrap().stdout;
        let children = String::from_utf8(children).unwrap();
        let all = std::iter::once(pid.as_str()).chain(children.lines());
        // One of them may have ended meanwhile.
        let _ = Command::new("kill").arg(signal).args(all).stderr(Stdio::null()).status();
    }

    pub fn kill(&mut self) {
        if self.kind == Kind::Postgres {
            // All its processes at once, without a checkpoint: it recovers from its log. SIGKILL would leave some of them.
            let mut stop = self.program("pg_ctl");
            let _ = stop.args(["stop", "-m", "immediate", "-s", "-D"]).arg(self.data()).status();
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn run(&mut self) {
        let port = self.port.to_string();
        let mut command = match self.kind {
            Kind::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
                command.args(["--appendfsync", "always", "--dir"]).arg(self.folder.path());
                command
            }
            Kind::Postgres => {
                let mut command = self.program("postgres");
                command.arg("-D").arg(self.data()).args(["-p", &port, "-c", "listen_addresses=127.0.0.1"]);
                command.args(["-c", "unix_socket_directories="]);
                command
            }
        };
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}; {INSTALL}")));
        let until = Instant::now() + Duration::from_secs(60);
        while !self.answers() {
            assert!(Instant::now() < until, "{:?} did not start: {}", self.kind, self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn answers(&self) -> bool {
        match self.kind {
            Kind::Redis => ping(self.port).unwrap_or(false),
            Kind::Postgres => {
                let mut ready = Command::new(binary("pg_isready"));
                ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
                ready.status().is_ok_and(|status| status.success())
            }
        }
    }

    fn make_files(&self) {
        fs::set_permissions(self.folder.path(), Permissions::from_mode(0o777)).unwrap();
        let mut make = self.program("initdb");
        make.args(["-U", "postgres", "--auth", "trust", "--no-sync", "-D"]).arg(self.data());
        let made = make.output().unwrap_or_else(|error| panic!("{make:?}: {error}; {INSTALL}"));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// A program of Postgres, which refuses to run as root: then as the user that its package makes.
    fn program(&self, name: &str) -> Command {
        let root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
        let mut command = match root {
            true => Command::new("runuser"),
            false => Command::new(binary(name)),
        };
        if root {
            command.args(["-u", "postgres", "--"]).arg(binary(name));
        }
        command.current_dir(self.folder.path());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

const INSTALL: &str = "`cargo xtask services start` installs it";

/// Debian keeps the programs of Postgres out of the path.
fn binary(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(program));
    found.filter(|path| path.exists()).max().unwrap_or_else(|| Path::new(program).to_owned())
}

/// Whether Redis answers, and has read its file.
fn ping(port: u16) -> std::io::Result<bool> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    connection.read_exact(&mut answer)?;
    Ok(&answer == b"+PONG")
}
