//! Plays a page: its script in a folder of its own, on stores of its own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pages::page;
use crate::pages::script::{self, Surroundings};

/// No page takes a tenth of this; a machine may be busy.
const LONGEST_SECONDS: &str = "300";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// Runs the blocks of a page, or fails with the line and all that was printed until then.
pub fn page(path: &str) {
    let text = std::fs::read_to_string(root().join(path)).expect("the page is there");
    let wrong = |said: String| -> ! { panic!("{path}:{said}") };
    let blocks = page::blocks(&text).unwrap_or_else(|said| wrong(said));
    if blocks.iter().all(|block| block.directive("skip").is_some()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let around = Surroundings { known: known(path, folder.path()), doctests: doctests(path), example };
    let (script, files) = script::of(&blocks, &around).unwrap_or_else(|said| wrong(said));
    for (name, text) in files {
        write(&folder.path().join(name), &text);
    }
    let own = folder.path().join(".page.sh");
    write(&own, &format!("{}\n{script}", include_str!("prelude.sh")));
    let log = std::fs::File::create(folder.path().join(".page.log")).expect("a log");
    let bin = Path::new(env!("CARGO_BIN_EXE_flowline")).parent().expect("a folder");
    let path_variable = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LONGEST_SECONDS, "bash"]).arg(&own).current_dir(folder.path());
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("FLOWLINE_")) {
        command.env_remove(variable);
    }
    for (name, value) in &around.known {
        command.env(name.trim_start_matches('$'), value);
    }
    command
        .env("PATH", path_variable)
        .env("FLOWLINE_STORE", around.known("$SQLITE"))
        .env("FLOWLINE_LISTEN", format!("127.0.0.1:{}", around.known("$PORT")))
        .env("ROOT", root())
        .env("EXAMPLES", bin.join("examples"))
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log);
    let status = command.status().expect("bash and timeout are there");
    if !status.success() {
        let log = std::fs::read(folder.path().join(".page.log")).expect("the log");
        let log = String::from_utf8_lossy(&log);
        let at = log.lines().rev().find_map(|line| line.strip_prefix("--- ")).unwrap_or_default();
        panic!("{path}: the block at line {at} ({status})\n{log}");
    }
}

impl Surroundings {
    fn known(&self, name: &str) -> &str {
        self.known.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }
}

/// Stores of this page's own, and ports that nobody has.
fn known(path: &str, folder: &Path) -> Vec<(&'static str, String)> {
    let name: String = path.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("page_{}_{}", name.to_lowercase(), std::process::id());
    let [port, other] = [free_port(), free_port()];
    let mut known = vec![
        ("$SQLITE", format!("sqlite:{}", folder.join(".flowline/flowline.db").display())),
        ("$NAME", name.clone()),
        ("$PORT", port.to_string()),
        ("$OTHER_PORT", other.to_string()),
    ];
    for (word, variable, option) in [
        ("$POSTGRES", "FLOWLINE_TEST_POSTGRES_URL", Some("schema")),
        ("$POSTGRES_SERVER", "FLOWLINE_TEST_POSTGRES_URL", None),
        ("$REDIS", "FLOWLINE_TEST_REDIS_URL", Some("prefix")),
        ("$REDIS_SERVER", "FLOWLINE_TEST_REDIS_URL", None),
        ("$REDIS_CLUSTER", "FLOWLINE_TEST_REDIS_CLUSTER_URL", Some("prefix")),
    ] {
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!(
                "{variable} is not set; run the tests with `cargo xtask test`, or start servers with \
                 eval \"$(cargo xtask services start)\""
            )
        });
        known.push((word, option.map_or(server.clone(), |option| format!("{server}?{option}={name}"))));
    }
    known
}

/// Below those that the system gives out by itself, so that no other test is given it meanwhile.
fn free_port() -> u16 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = now.subsec_nanos() ^ std::process::id();
    (0..1000u32)
        .map(|turn| 10_000 + (seed.wrapping_add(turn.wrapping_mul(7919)) % 20_000) as u16)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("one of 20,000 ports is free")
}

/// Whether the crate that users add has the page among its doctests.
fn doctests(path: &str) -> bool {
    let text =
        std::fs::read_to_string(root().join("crates/flowline/src/lib.rs")).expect("the crate is there");
    text.contains(&format!("include_str!(\"../../../{path}\")"))
}

fn example(name: &str) -> Result<String, String> {
    let path = format!("crates/cli/examples/{name}.rs");
    std::fs::read_to_string(root().join(&path)).map_err(|error| format!("0: {path}: {error}"))
}

/// A file that begins with `#!` is a program.
fn write(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, text).expect("written");
    if text.starts_with("#!") {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    }
}
