//! `flowline doctor --store redis://…|postgres://…`: whatever is wrong with a server or its URL is told clearly and soon,
//! and no message shows a password.
//!
//! Needs the servers that `cargo xtask test` starts and names in `FLOWLINE_TEST_…_URL`, and `redis-server` itself.

#[cfg(unix)]
#[path = "../../postgres/tests/place/pooler.rs"]
mod pooler;
#[allow(dead_code)]
#[path = "../../redis/tests/place/server.rs"]
pub mod server;

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::kit::place::Here;
use serde_json::Value;
use server::Server;

/// The password that must not be shown.
const SECRET: &str = "s3cret";
/// What an operator waits for at most.
const SOON: Duration = Duration::from_secs(5);

/// What the doctor says of a store: its exit code and each finding as `verdict check message`.
fn examined(url: &str) -> (i32, Vec<String>) {
    let here = Here::new();
    let began = Instant::now();
    let said = here.flowline(&["doctor", "--store", url, "--json"]);
    let took = began.elapsed();
    assert!(took < SOON, "{url} took {took:?}");
    assert!(!said.out.contains(SECRET) && !said.err.contains(SECRET), "{said:?}");
    let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let word = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = answer["checks"].as_array().unwrap().iter();
    let findings = findings.map(|finding| {
        format!("{} {} {}", word(finding, "verdict"), word(finding, "check"), word(finding, "message"))
    });
    (said.exit, findings.collect())
}

/// A store that cannot be opened: the message has these words.
#[track_caller]
fn refused(url: &str, words: &[&str]) {
    let (exit, findings) = examined(url);
    let bad: Vec<_> = findings.iter().filter(|finding| finding.starts_with("bad open")).collect();
    assert!(exit == 1 && bad.len() == 1, "{url}: {exit} {findings:?}");
    for word in words {
        assert!(bad[0].contains(word), "{url}: {word:?} is missing in {}", bad[0]);
    }
}

/// A port that nobody listens on.
fn nobody() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr()).expect("a port").port()
}

#[test]
fn a_redis_that_evicts_is_refused() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    refused(&server.url(), &["maxmemory-policy allkeys-lru", "noeviction"]);
}

#[test]
fn a_redis_without_a_file_is_told_what_it_can_lose() {
    let server = Server::start(&["--appendonly", "no"]);
    let (exit, findings) = examined(&server.url());
    assert_eq!(exit, 0, "{findings:?}");
    let warned = findings.iter().any(|finding| {
        finding.starts_with("warn server")
            && finding.contains("append-only")
            && finding.contains("appendonly yes")
    });
    assert!(warned, "{findings:?}");
}

#[test]
fn a_redis_replica_is_bad_and_still_read() {
    let (here, server) = (Here::new(), Server::start(&[]));
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#, "--store", &server.url()]);
    let replica = server.replica();
    unwritable(&replica.url(), &["replica", "name the primary"]);
    let listed = here.json(0, &["runs", "--store", &replica.url()]);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    let verified = here.json(0, &["verify", "--store", &replica.url()]);
    assert_eq!(verified["runs"], 1, "{verified}");
    for writes in [&["work", "--until-idle"][..], &["retain"]] {
        let refused = here.json(3, &[writes, &["--store", &replica.url()]].concat());
        assert_eq!(refused["error"]["code"], "store-cannot-write", "{refused}");
    }
}

#[test]
fn a_redis_user_as_the_page_makes_it_can_do_all() {
    let page = include_str!("../../../docs/redis.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER")).expect("a line of the page");
    let line = line.replace("PASSWORD", SECRET);
    let (here, server) = (Here::new(), Server::start(&[]));
    assert_eq!(server.ask(&line.split_whitespace().collect::<Vec<_>>()), "OK");
    let url = format!("redis://flowline:{SECRET}@127.0.0.1:{}/1", server.port);
    let run = ["run", "order.yaml", "--input", r#"{"total": 1}"#];
    for words in [&run[..], &["retain"], &["verify"], &["runs"], &["stats"], &["reconcile"]] {
        here.json(0, &[words, &["--store", &url]].concat());
    }
    here.json(0, &["move", "--from", &url, "--to", "sqlite:there.db"]);
    let (exit, findings) = examined(&url);
    assert_eq!(exit, 0, "{findings:?}");
    assert!(findings.iter().any(|finding| finding.contains("appendfsync always")), "{findings:?}");
    // What a client calls itself is told where it can be told.
    let log = server.ask(&["acl", "log"]);
    let mut objects = log.lines().zip(log.lines().skip(1)).filter(|(key, _)| *key == "object");
    assert!(objects.all(|(_, denied)| denied == "client|setinfo"), "{log}");
}

#[test]
fn a_redis_without_a_store_or_with_one_of_another_format_is_told_so() {
    let server = Server::start(&[]);
    let (exit, findings) = examined(&server.url());
    let told = |words: &str| findings.iter().any(|finding| finding.starts_with(words));
    assert!(exit == 0 && told("ok server redis") && told("warn store there is no store"), "{findings:?}");
    assert_eq!(findings.iter().filter(|finding| finding.contains(" store ")).count(), 1, "{findings:?}");
    assert_eq!(server.ask(&["dbsize"]), "0");
    server.ask(&["hset", "{flowline:0}:meta", "format", "9", "shards", "1"]);
    refused(&server.url(), &["format 9"]);
}

#[test]
fn a_wrong_redis_url_is_told_by_what_is_wrong() {
    let server = Server::start(&["--requirepass", SECRET]);
    let at = format!("127.0.0.1:{}", server.port);
    refused(&format!("redis://:{SECRET}-not@{at}"), &[&at, "password"]);
    refused(&format!("redis://{at}"), &[&at, "password"]);
    refused(&format!("redis://:{SECRET}@{at}/99"), &[&at, "database"]);
    refused(&format!("rediss://:{SECRET}@{at}"), &[&at, "write redis://"]);
    Here::new().json(2, &["runs", "--store", "redis://127.0.0.1:1700x"]);
    refused(&format!("redis+cluster://:{SECRET}@{at}"), &[&at, "cluster"]);
    refused(&format!("redis://:{SECRET}@127.0.0.1:{}", nobody()), &["nothing is listening there"]);
    let (exit, findings) = examined(&format!("redis://:{SECRET}@{at}"));
    assert_eq!(exit, 0, "the right one is fine: {findings:?}");
}

#[test]
fn an_old_redis_is_refused_by_its_version() {
    refused(&crate::old::redis(), &["Redis 6.2.14", "version 7"]);
}

/// The test server's URL with another user, server or database.
fn postgres(user: Option<&str>, port: Option<u16>, database: Option<&str>, query: &str) -> String {
    let url = std::env::var("FLOWLINE_TEST_POSTGRES_URL").expect(
        "FLOWLINE_TEST_POSTGRES_URL is not set; run the tests with `cargo xtask test`, or start servers with \
         `cargo xtask services start`",
    );
    let rest = url.split_once("://").expect("a URL").1;
    let (who, rest) = rest.split_once('@').expect("a user");
    let (server, place) = rest.split_once('/').expect("a database");
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let server = port.map_or_else(|| server.to_owned(), |port| format!("{host}:{port}"));
    let place = place.split('?').next().unwrap_or(place);
    format!("postgres://{}@{server}/{}{query}", user.unwrap_or(who), database.unwrap_or(place))
}

#[test]
fn a_wrong_postgres_url_is_told_by_what_is_wrong() {
    let none = nobody();
    refused(&postgres(None, Some(none), None, ""), &[&none.to_string(), "check host and port"]);
    let absent = postgres(None, None, Some("no_such_database"), "");
    refused(&absent, &["no_such_database", "createdb"]);
    Here::new().json(3, &["runs", "--store", &absent]);
    let user = format!("nobody_here:{SECRET}");
    refused(&postgres(Some(&user), None, None, ""), &["nobody_here"]);
    refused(&postgres(None, None, None, "?sslmode=require"), &["TLS", "sslmode"]);
    refused(&postgres(None, None, None, "?sslmode=perhaps"), &["sslmode", "perhaps"]);
}

#[test]
fn a_postgres_without_a_store_is_looked_at_and_left_alone() {
    let url = postgres(None, None, None, &format!("?schema=doctor_{}", std::process::id()));
    for _ in 0..2 {
        let told = Here::new().json(3, &["runs", "--store", &url]);
        assert_eq!(told["error"]["code"], "store-missing", "{told}");
        let (exit, findings) = examined(&url);
        assert_eq!(exit, 0, "{findings:?}");
        assert!(findings.iter().any(|finding| finding.starts_with("ok server postgres 1")), "{findings:?}");
        let of_store: Vec<&String> = findings.iter().filter(|finding| finding.contains(" store ")).collect();
        assert!(
            of_store.len() == 1 && of_store[0].starts_with("warn store there is no store here yet"),
            "{findings:?}"
        );
    }
}

/// What the server's owner says with `psql`.
fn owner_says(sql: &str) {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql]).arg(postgres(None, None, None, ""));
    let done = psql.output().expect("psql runs");
    assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
}

/// That the doctor finds a store that can be read and not written, for a reason with these words.
#[track_caller]
fn unwritable(url: &str, words: &[&str]) {
    let (exit, findings) = examined(url);
    let bad: Vec<_> = findings.iter().filter(|finding| finding.starts_with("bad")).collect();
    assert!(exit == 1 && bad.len() == 1 && bad[0].starts_with("bad writable"), "{url}: {exit} {findings:?}");
    for word in words {
        assert!(bad[0].contains(word), "{url}: {word:?} is missing in {}", bad[0]);
    }
}

#[test]
fn a_postgres_that_cannot_be_written_is_bad_and_still_read() {
    let schema = format!("doctor_still_{}", std::process::id());
    let (here, url) = (Here::new(), postgres(None, None, None, &format!("?schema={schema}")));
    let still = format!("{url}&options=-c%20default_transaction_read_only%3Don");
    unwritable(&still, &["read-only", "default_transaction_read_only"]);
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#, "--store", &url]);
    unwritable(&still, &["read-only", "default_transaction_read_only"]);
    assert_eq!(here.json(0, &["runs", "--store", &still])["items"].as_array().map(Vec::len), Some(1));
    here.json(0, &["verify", "--store", &still]);
    for writes in [&["work", "--until-idle"][..], &["retain"]] {
        let refused = here.json(3, &[writes, &["--store", &still]].concat());
        assert_eq!(refused["error"]["code"], "store-cannot-write", "{refused}");
    }
    owner_says(&format!("drop schema {schema} cascade"));
}

#[test]
fn a_postgres_role_without_rights_is_bad_before_and_after_there_is_a_store() {
    let name = format!("doctor_weak_{}", std::process::id());
    let (here, query) = (Here::new(), format!("?schema={name}"));
    let (url, theirs) = (postgres(None, None, None, &query), postgres(Some(&name), None, None, &query));
    owner_says(&format!("create role {name} login"));
    unwritable(&theirs, &["CREATE", &name]);
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#, "--store", &url]);
    refused(&theirs, &["USAGE", &name]);
    owner_says(&format!(
        "grant usage on schema {name} to {name}; grant select on all tables in schema {name} to {name};
         grant select on all sequences in schema {name} to {name}"
    ));
    unwritable(&theirs, &["flow_runs", "grant"]);
    here.json(0, &["runs", "--store", &theirs]);
    owner_says(&format!("drop schema {name} cascade; drop role {name}"));
}

#[test]
fn an_old_postgres_is_refused_by_its_version() {
    refused(&crate::old::postgres(), &["PostgreSQL 14.9", "15 or newer"]);
}

#[test]
fn settings_and_messages_show_no_password() {
    let here = Here::new();
    let url = format!("redis://me:{SECRET}@127.0.0.1:{}/1?prefix=p", nobody());
    for arguments in
        [&["config"][..], &["config", "--json"], &["runs"], &["doctor"], &["work", "--until-idle"]]
    {
        let said = here.flowline(&[arguments, &["--store", &url]].concat());
        assert!(!said.out.contains(SECRET) && !said.err.contains(SECRET), "{arguments:?}: {said:?}");
    }
    let shown = here.flowline(&["config", "--json", "--store", &url]).out;
    assert!(shown.contains("redis://me:***@127.0.0.1"), "{shown}");
    let unknown = here.flowline(&["runs", "--store", &format!("mysql://me:{SECRET}@db/x")]);
    assert!(unknown.exit == 2 && !unknown.err.contains(SECRET), "{unknown:?}");
    let moved = here.flowline(&["move", "--from", &url, "--to", "sqlite:x.db", "--json"]);
    assert!(moved.exit == 3 && !moved.out.contains(SECRET) && !moved.err.contains(SECRET), "{moved:?}");
}

#[cfg(unix)]
#[test]
fn a_pooler_by_transaction_is_named_with_the_remedy_and_one_by_session_passes() {
    let url = std::env::var("FLOWLINE_TEST_POSTGRES_URL").expect("`cargo xtask services start` names it");
    let schema = format!("doctor_pooler_{}", std::process::id());
    let by_transaction = pooler::Pooler::start(&url, "transaction", "");
    let remedy = ["transaction mode", "pool_mode = session", "the server's own address"];
    refused(&by_transaction.url(&schema), &remedy);
    let by_session = pooler::Pooler::start(&url, "session", "");
    let (exit, findings) = examined(&by_session.url(&schema));
    assert!(exit == 0 && findings.iter().all(|finding| !finding.starts_with("bad")), "{findings:?}");
    // With a store there it is the same.
    let here = Here::new();
    here.start(&["order.yaml", "--input", r#"{"total": 1}"#, "--store", &by_session.url(&schema)]);
    let (exit, findings) = examined(&by_session.url(&schema));
    assert!(exit == 0 && findings.iter().all(|finding| !finding.starts_with("bad")), "{findings:?}");
    refused(&by_transaction.url(&schema), &remedy);
    owner_says(&format!("drop schema {schema} cascade"));
}
