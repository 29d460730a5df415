//! Programs that the tests need: found where they are, installed with apt where they are not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Service;

/// Where Debian and Ubuntu keep the programs of a Postgres version.
const POSTGRES: &str = "/usr/lib/postgresql";
/// The oldest Postgres that the store works with.
const POSTGRES_FROM: u32 = 15;

/// What the pages of the documentation and generated clients are run with, and the packages that it comes in.
const TOOLS: &[(&str, &str)] = &[
    ("curl", "curl"),
    ("jq", "jq"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("psql", "postgresql-client"),
    ("python3", "python3"),
    ("redis-cli", "redis-tools"),
    ("sqlite3", "sqlite3"),
];

/// Installs what the services and the tests need and the machine lacks.
pub(super) fn missing(services: &[Service]) -> Result<()> {
    let tools = TOOLS.iter().filter(|(program, _)| on_path(program).is_none());
    let mut packages: Vec<&str> = tools.map(|(_, package)| *package).collect();
    if services.iter().any(|service| *service != Service::Postgres)
        && (on_path("redis-server").is_none() || on_path("redis-cli").is_none())
    {
        packages.push("redis-server");
    }
    if services.contains(&Service::Postgres) && postgres_folder().is_none() {
        packages.push("postgresql");
    }
    // Tests put it in front of that server.
    if services.contains(&Service::Postgres) && pgbouncer().is_none() {
        packages.push("pgbouncer");
    }
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    let variables: Vec<_> = services.iter().map(|service| service.variable()).collect();
    let mut remedy = format!("install them by hand ({names})");
    if !variables.is_empty() {
        remedy += &format!(", or give the URLs of servers in {}", variables.join(", "));
    }
    install(&packages, &remedy)
}

/// The browser that the console is tested in, installed if there is none.
pub(crate) fn browser() -> Result<PathBuf> {
    let found = || ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(on_path);
    if found().is_none() {
        install(&["chromium"], "install it by hand (chromium)")?;
    }
    found().context("chromium isn't on the path")
}

fn install(packages: &[&str], remedy: &str) -> Result<()> {
    let names = packages.join(" ");
    if on_path("apt-get").is_none() {
        bail!("{names}: not installed, and there is no apt-get here; {remedy}");
    }
    eprintln!("==> installing {names}");
    if apt(&["install"], packages).is_ok() {
        return Ok(());
    }
    // Most often the lists of packages are missing or old.
    apt(&["update"], &[]).and_then(|()| apt(&["install"], packages)).with_context(|| {
        format!("{names}: not installed, and apt-get could not install them (it needs root); {remedy}")
    })
}

fn apt(verb: &[&str], packages: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    // The servers that the packages bring are not wanted, only their programs.
    command.env("RUNLEVEL", "1");
    command.args(["-q", "-y", "--no-install-recommends"]).args(verb).args(packages);
    super::finish(&mut command).map(drop)
}

/// A program's full path.
pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Debian keeps it where the path of ordinary users does not lead.
fn pgbouncer() -> Option<PathBuf> {
    on_path("pgbouncer").or_else(|| Some(PathBuf::from("/usr/sbin/pgbouncer")).filter(|file| file.is_file()))
}

/// The folder with `initdb`, `pg_ctl` and `postgres` of the newest version that is new enough.
pub(super) fn postgres_folder() -> Option<PathBuf> {
    let versions = Path::new(POSTGRES).read_dir().into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|version| *version >= POSTGRES_FROM)
        .max();
    let packaged = newest.map(|version| Path::new(POSTGRES).join(version.to_string()).join("bin"));
    let whole =
        |folder: &PathBuf| ["initdb", "pg_ctl", "postgres"].iter().all(|name| folder.join(name).is_file());
    packaged.filter(whole).or_else(|| Some(on_path("initdb")?.parent()?.to_path_buf()).filter(whole))
}
