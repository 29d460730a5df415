//! From a store URL to a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowline::core::time::format_duration;
use flowline::store::memory::MemoryStore;
use flowline::store::{Clock, Store};
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_redis::RedisStore;
use flowline_sqlite::{OpenMode, Options, SqliteStore};

use crate::failure::{CliError, Exit};
use crate::output;

/// The code of a store whose server does not answer.
const AWAY: &str = "store-unavailable";
/// How often a store that is away is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What the opener wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreAccess {
    /// Read and write; made where it is missing.
    Engine,
    /// Read and write what is there already.
    Existing,
    /// Read only, beside an engine or without one.
    Reader,
    /// Read only, and no engine meanwhile: the source of a move.
    Still,
    /// Write what a move brings; made where it is missing.
    Receive,
}

/// A store URL, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    File(PathBuf),
    Memory,
    /// A PostgreSQL server, by its whole URL.
    Postgres(String),
    /// A Redis server or cluster, by its whole URL.
    Redis(String),
}

impl StoreUrl {
    pub fn read(url: &str) -> Result<StoreUrl, CliError> {
        let refuse = |message: String| {
            Err(CliError::usage(message).help(
                "use sqlite:PATH (one file, the default), postgres://USER:PASSWORD@HOST/DATABASE, redis://HOST:PORT, \
                 rediss://, redis+cluster://HOST:PORT,HOST:PORT or memory: (gone when the command ends)",
            ))
        };
        match url.split_once(':') {
            Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
                "" => refuse("the store \"sqlite:\" doesn't name a file".to_owned()),
                path => Ok(StoreUrl::File(path.into())),
            },
            Some(("memory", "")) => Ok(StoreUrl::Memory),
            Some(("postgres" | "postgresql", _)) => Ok(StoreUrl::Postgres(url.to_owned())),
            Some(("redis" | "rediss" | "redis+cluster" | "rediss+cluster", _)) => {
                Ok(StoreUrl::Redis(url.to_owned()))
            }
            Some((scheme, _)) => {
                refuse(format!("store {:?}: {scheme:?} stores aren't supported", shown(url)))
            }
            None => refuse(format!("store {url:?} isn't a store URL")),
        }
    }

    pub fn file(&self) -> Option<&Path> {
        match self {
            StoreUrl::File(path) => Some(path),
            StoreUrl::Memory | StoreUrl::Postgres(_) | StoreUrl::Redis(_) => None,
        }
    }
}

/// A store URL as people and logs may see it: without its password.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite") else {
        return url.to_owned();
    };
    let rest = match rest.rsplit_once('@').and_then(|(who, place)| Some((who.split_once(':')?.0, place))) {
        Some((user, place)) => format!("{user}:***@{place}"),
        None => rest.to_owned(),
    };
    // The client library of PostgreSQL takes one here too.
    let rest = match rest.split_once("password=") {
        Some((before, after)) => {
            let others = after.split_once('&').map_or(String::new(), |(_, others)| format!("&{others}"));
            format!("{before}password=***{others}")
        }
        None => rest,
    };
    format!("{scheme}://{rest}")
}

/// Opens a store, in the runtime that it will live in.
pub async fn open(url: &str, access: StoreAccess) -> Result<Arc<dyn Store>, CliError> {
    let missing = match access {
        StoreAccess::Engine => IfMissing::Make,
        StoreAccess::Receive => IfMissing::Receive,
        StoreAccess::Existing => IfMissing::Expect,
        StoreAccess::Reader | StoreAccess::Still => IfMissing::Refuse,
    };
    let path = match StoreUrl::read(url)? {
        StoreUrl::Memory => return Ok(Arc::new(MemoryStore::new(Clock::system()))),
        StoreUrl::Postgres(url) => return Ok(PostgresStore::open(&url, missing).await?),
        StoreUrl::Redis(url) => return Ok(RedisStore::open(&url, missing).await?),
        StoreUrl::File(path) => path,
    };
    if !matches!(access, StoreAccess::Engine | StoreAccess::Receive) && !path.try_exists().unwrap_or(true) {
        return Err(CliError::new(
            Exit::Store,
            "store-missing",
            format!("there is no store at {} yet", path.display()),
        )
        .help("create one with `flowline run FILE`, or name an existing one with --store sqlite:PATH"));
    }
    let mode = match access {
        StoreAccess::Engine | StoreAccess::Existing => OpenMode::Engine,
        StoreAccess::Reader => OpenMode::Client,
        StoreAccess::Still => OpenMode::Still,
        StoreAccess::Receive => OpenMode::Receive,
    };
    Ok(SqliteStore::open(&path, Options { mode, ..Options::default() })?)
}

/// As [`open`], but a store that is away is waited for, up to `patience`. Says what it waits for, and when that is over.
pub async fn wait(url: &str, access: StoreAccess, patience: Duration) -> Result<Arc<dyn Store>, CliError> {
    let until = Instant::now() + patience;
    let mut told = String::new();
    loop {
        let failure = match open(url, access).await {
            Ok(store) => {
                if !told.is_empty() {
                    output::note("connected to the store");
                }
                return Ok(store);
            }
            Err(failure) => failure,
        };
        let left = until.saturating_duration_since(Instant::now());
        if failure.code != AWAY || left.is_zero() {
            return Err(failure);
        }
        if failure.message != told {
            let why = failure.message.trim_start_matches("the store is unavailable: ");
            output::note(&format!("waiting up to {} for the store: {why}", format_duration(patience)));
            told = failure.message;
        }
        tokio::time::sleep(ASK_AGAIN.min(left)).await;
    }
}

/// Opens a store to look at it and at its server, where there may be no store yet.
pub async fn look(url: &str) -> Result<Arc<dyn Store>, CliError> {
    match StoreUrl::read(url)? {
        StoreUrl::Redis(url) => Ok(RedisStore::open(&url, IfMissing::Ignore).await?),
        StoreUrl::Postgres(url) => Ok(PostgresStore::open(&url, IfMissing::Ignore).await?),
        StoreUrl::File(_) | StoreUrl::Memory => open(url, StoreAccess::Reader).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, expected) in [
            ("postgres://me:s3:cr@t?x@h/db?schema=a", "postgres://me:***@h/db?schema=a"),
            ("redis://:s3cret@h:1/2?prefix=p", "redis://:***@h:1/2?prefix=p"),
            ("redis+cluster://u:s3cret@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
            (
                "postgres://h/db?user=u&password=s3cret&sslmode=require",
                "postgres://h/db?user=u&password=***&sslmode=require",
            ),
            ("postgres://me@h/db", "postgres://me@h/db"),
            ("redis://h:1", "redis://h:1"),
            ("sqlite:a:b@c.db", "sqlite:a:b@c.db"),
            ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ] {
            assert_eq!(shown(url), expected);
        }
        let failure = StoreUrl::read("mysql://me:s3cret@h").unwrap_err();
        assert!(!failure.message.contains("s3cret"), "{}", failure.message);
    }

    #[test]
    fn a_url_names_a_file_a_server_or_memory() {
        assert_eq!(StoreUrl::read("sqlite:a/b.db").unwrap(), StoreUrl::File("a/b.db".into()));
        assert_eq!(StoreUrl::read("sqlite:///a/b.db").unwrap(), StoreUrl::File("/a/b.db".into()));
        assert_eq!(StoreUrl::read("memory:").unwrap(), StoreUrl::Memory);
        let server = "postgres://me@localhost/flows";
        assert_eq!(StoreUrl::read(server).unwrap(), StoreUrl::Postgres(server.into()));
        for url in ["redis://h:1/2?prefix=p", "rediss://h", "redis+cluster://a:1,b:2"] {
            assert_eq!(StoreUrl::read(url).unwrap(), StoreUrl::Redis(url.into()));
        }
        for bad in ["sqlite:", "sqlite://", "memory:x", "mysql://localhost", "a/b.db", ""] {
            let failure = StoreUrl::read(bad).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{bad}");
            assert!(failure.help.unwrap().contains("sqlite:PATH"));
        }
    }
}
