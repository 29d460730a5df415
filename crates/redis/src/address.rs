//! Store URLs: `redis://`, `rediss://` (TLS), `redis+cluster://`, `rediss+cluster://`.
//!
//! A cluster names one node or several, parted by commas. Our own options stand in the query: `prefix` sets the keys
//! of two stores on one server apart, `shards` says how many parts a cluster's store has when it is made.

use flowline_store::StoreError;

/// What all keys begin with where the URL names nothing.
const PREFIX: &str = "flowline";
/// Parts of a store on a cluster: several per node, so that nodes can be added.
const CLUSTER_SHARDS: u32 = 16;
const MOST_SHARDS: u32 = 256;

/// A store URL, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// URLs as the client library reads them, one per node.
    pub(crate) nodes: Vec<String>,
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    pub(crate) shards: u32,
}

impl Address {
    pub(crate) fn read(url: &str) -> Result<Address, StoreError> {
        let refuse = |problem: &str| {
            Err(StoreError::Invalid(format!(
                "store {:?} {problem}; write redis://[user:password@]host[:port][/db], rediss:// for TLS, \
                 redis+cluster://host:port,host:port for a cluster",
                without_password(url)
            )))
        };
        let Some((scheme, rest)) = url.split_once("://") else { return refuse("has no scheme") };
        let (scheme, cluster) = match scheme {
            "redis" | "rediss" => (scheme, false),
            "redis+cluster" => ("redis", true),
            "rediss+cluster" => ("rediss", true),
            _ => return refuse("has a scheme other than redis, rediss and redis+cluster"),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, hosts) = match rest.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), rest),
        };
        let mut address = Address {
            nodes: Vec::new(),
            cluster,
            prefix: PREFIX.to_owned(),
            shards: if cluster { CLUSTER_SHARDS } else { 1 },
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", name)) if is_prefix(name) => address.prefix = name.to_owned(),
                Some(("prefix", _)) => {
                    return refuse(
                        "has a prefix with characters other than letters, digits, '.', '_' and '-'",
                    );
                }
                Some(("shards", text)) if cluster => match text.parse() {
                    Ok(count @ 1..=MOST_SHARDS) => address.shards = count,
                    _ => return refuse("has an invalid number of shards; use 1 to 256"),
                },
                _ => return refuse("has an unknown option; use `prefix` or, for a cluster, `shards`"),
            }
        }
        let hosts: Vec<&str> = if cluster { hosts.split(',').collect() } else { vec![hosts] };
        if hosts.iter().any(|host| host.is_empty() || host.starts_with('/')) {
            return refuse("names no host");
        }
        for host in &hosts {
            let (place, database) = host.split_once('/').unwrap_or((host, ""));
            // The colons of an IPv6 address stand in brackets.
            let (_, port) =
                place.rsplit(']').next().and_then(|end| end.split_once(':')).unwrap_or(("", "6379"));
            if !port.parse::<u16>().is_ok_and(|port| port > 0) {
                return refuse("has an invalid port; use 1 to 65535");
            }
            if !database.is_empty() && database.parse::<u32>().is_err() {
                return refuse("has a database that isn't a number");
            }
        }
        address.nodes = hosts.into_iter().map(|host| format!("{scheme}://{credentials}{host}")).collect();
        Ok(address)
    }

    pub(crate) fn tls(&self) -> bool {
        self.nodes.iter().any(|node| node.starts_with("rediss://"))
    }

    /// The first node as a person may see it.
    pub(crate) fn shown(&self) -> String {
        let all: Vec<String> = self.nodes.iter().map(|node| without_password(node)).collect();
        all.join(", ")
    }
}

fn is_prefix(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Passwords must not reach logs and messages.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, hosts))) => format!("{scheme}://{hosts}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_whole() {
        let plain = Address::read("redis://u:p@h:1/3?prefix=a.b").unwrap();
        assert_eq!(
            (plain.nodes, plain.prefix, plain.shards),
            (vec!["redis://u:p@h:1/3".into()], "a.b".into(), 1)
        );
        let cluster = Address::read("rediss+cluster://:p@a:1,b:2?shards=4").unwrap();
        assert_eq!(cluster.nodes, ["rediss://:p@a:1", "rediss://:p@b:2"]);
        assert_eq!((cluster.cluster, cluster.shards), (true, 4));
        for fine in ["redis://h", "redis://h:1", "redis://[::1]", "redis://[::1]:7000/2", "redis://u:p@h/"] {
            assert!(Address::read(fine).is_ok(), "{fine}");
        }
        assert_eq!(Address::read("redis+cluster://a:1").unwrap().shards, CLUSTER_SHARDS);
    }

    #[test]
    fn bad_urls_are_refused_without_showing_the_password() {
        for bad in [
            "redis:h",
            "http://h",
            "redis://",
            "redis:///1",
            "redis://u:secret@h?prefix=a:b",
            "redis://u:secret@h?shards=3",
            "redis+cluster://u:secret@a:1,?x=1",
            "redis+cluster://a?shards=0",
            "redis://127.0.0.1:1700x",
            "redis://u:secret@h:70000/1",
            "redis://h:0",
            "redis://[::1]:x",
            "redis+cluster://a:1,b:",
            "redis://h:1/first",
        ] {
            let error = Address::read(bad).unwrap_err().to_string();
            assert!(error.contains("redis+cluster://host") && !error.contains("secret"), "{error}");
        }
    }
}
