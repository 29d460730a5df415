//! The connection: one server or a cluster, the same to the rest of the crate.
//!
//! A request whose outcome is unknown is never sent again from here: that is for those who can decide again. Only what
//! the server surely did not do (the key lives elsewhere, the server still loads) is.

use std::time::{Duration, Instant};

use flowline_store::StoreError;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{Client, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use crate::address::Address;

/// How long opening a connection may take: a wrong address must show soon.
const CONNECT: Duration = Duration::from_millis(2_500);
/// How long an answer may take before its outcome counts as unknown.
const ANSWER: Duration = Duration::from_secs(4);
/// How long a server that cannot serve just now is asked again.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(25);

/// What to do where a server takes no writes.
pub(crate) const REPLICA: &str = "it's a replica; name the primary, or wait for the failover to end";

#[derive(Clone)]
pub(crate) enum Link {
    One(ConnectionManager),
    Cluster(ClusterConnection),
}

impl Link {
    pub(crate) async fn open(address: &Address) -> Result<Link, StoreError> {
        // The first of the two stores that use TLS sets it for the process; both choose the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let opened = tokio::time::timeout(CONNECT, connect(address)).await;
        match opened {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => Err(refused(address, &error)),
            Err(_) => Err(StoreError::Unavailable(format!(
                "{} didn't answer within {} s; check the address, the port and whether it {}",
                address.shown(),
                CONNECT.as_secs_f32(),
                if address.tls() {
                    "supports TLS (if not, write redis://)"
                } else {
                    "requires TLS (rediss://)"
                }
            ))),
        }
    }

    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = match self.clone() {
                Link::One(mut link) => link.req_packed_command(command).await,
                Link::Cluster(mut link) => link.req_packed_command(command).await,
            };
            let answer = answer.and_then(Value::extract_error);
            match answer {
                Err(error) if not_now(&error) && Instant::now() < until => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    /// Asks several things of one shard in one go.
    pub(crate) async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let count = commands.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let answers = match self.clone() {
                Link::One(mut link) => link.req_packed_commands(commands, 0, count).await,
                Link::Cluster(mut link) => link.req_packed_commands(commands, 0, count).await,
            };
            let answers = answers.and_then(|all| all.into_iter().map(Value::extract_error).collect());
            match answers {
                Err(error) if not_now(&error) && Instant::now() < until => tokio::time::sleep(PAUSE).await,
                answers => return answers.map_err(|error: RedisError| failed(&error)),
            }
        }
    }
}

async fn connect(address: &Address) -> Result<Link, RedisError> {
    if address.cluster {
        // No retries of the library's own: it would send a commit again whose outcome is unknown.
        let client = ClusterClientBuilder::new(address.nodes.iter().map(String::as_str))
            .retries(0)
            .connection_timeout(CONNECT)
            .response_timeout(ANSWER)
            .build()?;
        return client.get_async_connection().await.map(Link::Cluster);
    }
    let client = Client::open(address.nodes[0].as_str())?;
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(1)
        .set_min_delay(Duration::from_millis(50))
        .set_max_delay(Duration::from_secs(1))
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(ANSWER));
    ConnectionManager::new_with_config(client, config).await.map(Link::One)
}

/// Whether the server did nothing and may do it a moment later.
fn not_now(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Ask | BusyLoading | ClusterDown | MasterDown | Moved | TryAgain))
}

/// What a failed request means to the contract.
pub(crate) fn failed(error: &RedisError) -> StoreError {
    let text = error.to_string();
    let remedy = match error.code().unwrap_or_default() {
        "OOM" => "it has reached maxmemory; raise that, or remove old runs with `flowline retain`",
        "MISCONF" => "it can't save to disk; see its log",
        "READONLY" => REPLICA,
        // A script that may not use a command says so without the code.
        code if code == "NOPERM" || text.contains("The user executing the script") => {
            "the user lacks a permission; docs/redis.md lists those it needs"
        }
        "NOREPLICAS" => "too few replicas are connected (min-replicas-to-write)",
        "BUSY" => "it's busy with someone else's script",
        _ => return StoreError::Unavailable(text),
    };
    StoreError::CannotWrite(format!("{text}; {remedy}"))
}

/// Why a store could not be opened, with what to do about it.
pub(crate) fn refused(address: &Address, error: &RedisError) -> StoreError {
    let shown = address.shown();
    let text = error.to_string();
    let denied = error.kind() == ErrorKind::AuthenticationFailed
        || ["WRONGPASS", "NOAUTH", "invalid username-password", "Password authentication failed"]
            .iter()
            .any(|sign| text.contains(sign));
    if denied {
        return StoreError::Incompatible(format!(
            "{shown} rejected the user name or password ({text}); put them in the URL: redis://user:password@host"
        ));
    }
    if text.contains("NOPERM") || text.contains("no permissions") {
        return StoreError::Incompatible(format!(
            "this user lacks permissions on {shown} ({text}); grant those that docs/redis.md lists"
        ));
    }
    if text.contains("DB index") || text.contains("SELECT") || text.contains("database") {
        return StoreError::Incompatible(format!(
            "{shown} doesn't have that database ({text}); use a lower number after the last '/', or none"
        ));
    }
    let remedy = if error.is_connection_refusal() {
        "nothing is listening there; check host and port, and that the server is running"
    } else if address.tls() {
        "check that the server supports TLS on this port (if not, write redis://) and that its certificate is trusted here"
    } else {
        "check the address, and whether the server requires TLS (rediss://)"
    };
    StoreError::Unavailable(format!("{shown}: {text}; {remedy}"))
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Link::One(_) => "Link::One",
            Link::Cluster(_) => "Link::Cluster",
        })
    }
}
