//! A Redis server that a test has for itself, to break it.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub struct Server {
    pub port: u16,
    pub folder: TempDir,
    options: Vec<String>,
    child: Option<Child>,
}

impl Server {
    pub fn start(options: &[&str]) -> Server {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let options = options.iter().map(|option| option.to_string()).collect();
        let mut server =
            Server { port, folder: tempfile::tempdir().expect("a folder"), options, child: None };
        server.again();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts on what is in the folder.
    pub fn again(&mut self) {
        let child = Command::new("redis-server")
            .current_dir(self.folder.path())
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            .args(&self.options)
            .stdout(Stdio::null())
            .spawn();
        self.child =
            Some(child.expect("redis-server is installed; `cargo xtask services start` installs it"));
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < until, "the server answers");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal, such as `-STOP` and `-CONT`: a server that stands still accepts connections and answers nothing.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill runs").success());
    }

    /// A server that follows this one, as soon as it has all that is here.
    #[allow(dead_code)]
    pub fn replica(&self) -> Server {
        let replica = Server::start(&["--replicaof", "127.0.0.1", &self.port.to_string()]);
        let until = Instant::now() + Duration::from_secs(20);
        while !replica.ask(&["info", "replication"]).contains("master_link_status:up") {
            assert!(Instant::now() < until, "the replica follows");
            std::thread::sleep(Duration::from_millis(20));
        }
        replica
    }

    /// Asks the server by hand.
    pub fn ask(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(words).output();
        String::from_utf8_lossy(&output.expect("redis-cli runs").stdout).trim().to_owned()
    }

    pub fn files(&self) -> std::path::PathBuf {
        self.folder.path().join("appendonlydir")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}
