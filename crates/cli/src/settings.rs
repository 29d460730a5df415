//! Settings and where each comes from: a flag, an environment variable, a key of `flowline.toml`, or the default, in
//! this order. Every setting has one name in all of them.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flowline::core::Tenant;
use flowline::core::ids::check_name;
use flowline::core::limits::{Limits, format_bytes, parse_bytes};
use flowline::reconcile::{Mode, Reconciling};
use flowline::runner::http::Allow;
use flowline::store::row::Retention;
use flowline_server::filter::duration;
use flowline_server::otlp::{Endpoint, Headers};
use flowline_server::serve::Origins;
use serde::Deserialize;
use tracing_subscriber::filter::Targets;

use crate::failure::Failure;

/// The file read where `--config` names none.
pub const CONFIG_FILE: &str = "flowline.toml";
const STORE: &str = "sqlite:.flowline/flowline.db";
const LISTEN: &str = "127.0.0.1:7400";
const SLOTS: usize = 256;
const MAX_CONNECTIONS: usize = 10_000;
/// Long enough for a database that starts together with this process.
const STORE_PATIENCE: Duration = Duration::from_secs(30);
const STUCK_AFTER: Duration = Duration::from_secs(15 * 60);
const LEASE: Duration = Duration::from_secs(30);
/// Short: whoever interrupts a command waits for it.
const DRAIN: Duration = Duration::from_secs(10);
const RECONCILE_EVERY: Duration = Duration::from_secs(3600);
const KEEP_EVENTS: &str = "7d";
const KEEP_RUNS: &str = "30d";
/// Whoever runs a flow on their own machine can reach its ports and network anyway.
const HTTP_ALLOW: &str = "private";
const LONGEST_INSTANCE_NAME: usize = 100;
/// Below this a heartbeat delayed by a busy machine costs the lease.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

/// Whether a server asks for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Auth {
    /// On addresses that others can reach.
    Auto,
    None,
    Tokens,
}

/// How the log of a server is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Pretty on a terminal and in `dev`, JSON otherwise.
    Auto,
    Pretty,
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Flag,
    Env(String),
    File(PathBuf),
    Default,
}

impl Source {
    /// How far from the command: what is nearer counts.
    fn distance(&self) -> u8 {
        match self {
            Source::Flag => 0,
            Source::Env(_) => 1,
            Source::File(_) => 2,
            Source::Default => 3,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Env(name) => write!(f, "environment {name}"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Setting<T> {
    pub value: T,
    pub source: Source,
}

/// What the flags of a command say; `None` where they are silent.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub store: Option<String>,
    pub store_patience: Option<String>,
    pub server: Option<String>,
    pub token: Option<String>,
    pub tenant: Option<String>,
    pub color: Option<String>,
    pub slots: Option<String>,
    pub queues: Option<String>,
    pub lease: Option<String>,
    pub drain: Option<String>,
    pub keep_events: Option<String>,
    pub keep_runs: Option<String>,
    pub instance_name: Option<String>,
    pub reconcile: Option<String>,
    pub reconcile_every: Option<String>,
    pub max_payload: Option<String>,
    pub max_join: Option<String>,
    pub max_context: Option<String>,
    pub listen: Option<String>,
    pub auth: Option<String>,
    pub flows: Option<PathBuf>,
    pub tls_cert: Option<String>,
    pub tls_key: Option<String>,
    pub max_connections: Option<String>,
    pub http_allow: Option<String>,
    pub public_url: Option<String>,
    pub cors_origins: Option<String>,
    pub stuck_after: Option<String>,
    pub log: Option<String>,
    pub log_format: Option<String>,
    pub otlp_endpoint: Option<String>,
    pub otlp_headers: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub store: Setting<String>,
    /// How long a store that is away at the start is waited for.
    pub store_patience: Setting<Duration>,
    /// Asked in place of the store, where there is one.
    pub server: Setting<Option<String>>,
    /// Shown to the server. A secret.
    pub token: Setting<Option<String>>,
    pub tenant: Setting<Tenant>,
    pub color: Setting<Color>,
    pub slots: Setting<usize>,
    pub queues: Setting<BTreeMap<String, usize>>,
    pub lease: Setting<Duration>,
    pub drain: Setting<Duration>,
    /// How long the events of a run are kept after its end, and the run itself.
    pub keep_events: Setting<Duration>,
    pub keep_runs: Setting<Duration>,
    /// What the name of this instance begins with; host name and process id where there is none.
    pub instance_name: Setting<Option<String>>,
    /// Whether one engine of the store holds runs against their logs by itself, and how often.
    pub reconcile: Setting<Option<Mode>>,
    pub reconcile_every: Setting<Duration>,
    /// How large payloads may be; see [`Limits`].
    pub max_payload: Setting<usize>,
    pub max_join: Setting<usize>,
    pub max_context: Setting<usize>,
    pub listen: Setting<SocketAddr>,
    pub auth: Setting<Auth>,
    /// A folder with definitions.
    pub flows: Setting<Option<PathBuf>>,
    pub tls_cert: Setting<Option<PathBuf>>,
    pub tls_key: Setting<Option<PathBuf>>,
    pub max_connections: Setting<usize>,
    /// Whom http steps may call beside public addresses.
    pub http_allow: Setting<Allow>,
    /// Where a server is reached from outside.
    pub public_url: Setting<Option<String>>,
    /// Web pages of elsewhere that may use the API.
    pub cors_origins: Setting<Origins>,
    /// Without progress for so long a run counts as stuck.
    pub stuck_after: Setting<Duration>,
    pub log: Setting<Targets>,
    pub log_format: Setting<LogFormat>,
    /// A collector that takes spans.
    pub otlp_endpoint: Setting<Option<Endpoint>>,
    pub otlp_headers: Setting<Headers>,
}

/// `flowline.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileSettings {
    store: Option<String>,
    store_patience: Option<String>,
    server: Option<String>,
    token: Option<String>,
    tenant: Option<String>,
    color: Option<String>,
    slots: Option<usize>,
    queues: Option<BTreeMap<String, usize>>,
    lease: Option<String>,
    drain: Option<String>,
    keep_events: Option<String>,
    keep_runs: Option<String>,
    instance_name: Option<String>,
    reconcile: Option<String>,
    reconcile_every: Option<String>,
    max_payload: Option<String>,
    max_join: Option<String>,
    max_context: Option<String>,
    listen: Option<String>,
    auth: Option<String>,
    flows: Option<String>,
    tls_cert: Option<String>,
    tls_key: Option<String>,
    max_connections: Option<usize>,
    http_allow: Option<String>,
    public_url: Option<String>,
    cors_origins: Option<String>,
    stuck_after: Option<String>,
    log: Option<String>,
    log_format: Option<String>,
    otlp_endpoint: Option<String>,
    otlp_headers: Option<String>,
}

impl Settings {
    pub fn read(flags: Flags) -> Result<Settings, Failure> {
        if flags.store.is_some() && flags.server.is_some() {
            return Err(Failure::usage("--store and --server can't be combined")
                .help("drop one of them: a server has its own store"));
        }
        let (path, file) = read_file(flags.config.as_deref())?;
        let lookup = Lookup { path };
        let folder = flags.flows.map(|folder| folder.display().to_string());
        let queues = file.queues.map(|queues| {
            queues.iter().map(|(queue, slots)| format!("{queue}={slots}")).collect::<Vec<_>>().join(",")
        });
        let mut keep_events =
            lookup.find("keep-events", flags.keep_events, file.keep_events, KEEP_EVENTS, duration)?;
        let keep_runs = lookup.find("keep-runs", flags.keep_runs, file.keep_runs, KEEP_RUNS, duration)?;
        if keep_events.value > keep_runs.value {
            if keep_events.source != Source::Default {
                let what = "keep-events (--events) is longer than keep-runs (--runs)";
                return Err(Failure::usage(format!("{what}, but a run's events can't outlive the run"))
                    .help("keep runs at least as long as their events"));
            }
            keep_events.value = keep_runs.value;
        }
        let max_payload = lookup.find(
            "max-payload",
            flags.max_payload,
            file.max_payload,
            &format_bytes(Limits::default().payload),
            size,
        )?;
        // Unless they are set, the other limits follow this one.
        let usual = Limits::of_payload(max_payload.value);
        let max_join =
            lookup.find("max-join", flags.max_join, file.max_join, &format_bytes(usual.join), size)?;
        let max_context = lookup.find(
            "max-context",
            flags.max_context,
            file.max_context,
            &format_bytes(usual.context),
            size,
        )?;
        let limits = Limits { payload: max_payload.value, join: max_join.value, context: max_context.value };
        limits.check().map_err(Failure::usage)?;
        Ok(Settings {
            store: lookup.find("store", flags.store, file.store, STORE, |text| Ok(text.to_owned()))?,
            store_patience: lookup.find(
                "store-patience",
                flags.store_patience,
                file.store_patience,
                &text_of(STORE_PATIENCE),
                duration,
            )?,
            server: lookup.find("server", flags.server, file.server, "", if_any)?,
            token: lookup.find("token", flags.token, file.token, "", if_any)?,
            tenant: lookup.find("tenant", flags.tenant, file.tenant, "default", |text| {
                Tenant::new(text).map_err(|error| error.to_string())
            })?,
            color: lookup.find("color", flags.color, file.color, "auto", color)?,
            slots: lookup.find(
                "slots",
                flags.slots,
                file.slots.map(|n| n.to_string()),
                &SLOTS.to_string(),
                slots,
            )?,
            queues: lookup.find("queues", flags.queues, queues, "", read_queues)?,
            lease: lookup.find("lease", flags.lease, file.lease, &text_of(LEASE), lease)?,
            drain: lookup.find("drain", flags.drain, file.drain, &text_of(DRAIN), duration)?,
            keep_events,
            keep_runs,
            instance_name: lookup.find(
                "instance-name",
                flags.instance_name,
                file.instance_name,
                "",
                instance_name,
            )?,
            reconcile: lookup.find("reconcile", flags.reconcile, file.reconcile, "off", reconcile)?,
            reconcile_every: lookup.find(
                "reconcile-every",
                flags.reconcile_every,
                file.reconcile_every,
                &text_of(RECONCILE_EVERY),
                reconcile_every,
            )?,
            max_payload,
            max_join,
            max_context,
            listen: lookup.find("listen", flags.listen, file.listen, LISTEN, address)?,
            auth: lookup.find("auth", flags.auth, file.auth, "auto", auth)?,
            flows: lookup.find("flows", folder, file.flows, "", file_name)?,
            tls_cert: lookup.find("tls-cert", flags.tls_cert, file.tls_cert, "", file_name)?,
            tls_key: lookup.find("tls-key", flags.tls_key, file.tls_key, "", file_name)?,
            max_connections: lookup.find(
                "max-connections",
                flags.max_connections,
                file.max_connections.map(|n| n.to_string()),
                &MAX_CONNECTIONS.to_string(),
                slots,
            )?,
            http_allow: lookup.find(
                "http-allow",
                flags.http_allow,
                file.http_allow,
                HTTP_ALLOW,
                str::parse,
            )?,
            public_url: lookup.find("public-url", flags.public_url, file.public_url, "", public_url)?,
            cors_origins: lookup.find(
                "cors-origins",
                flags.cors_origins,
                file.cors_origins,
                "",
                Origins::parse,
            )?,
            stuck_after: lookup.find(
                "stuck-after",
                flags.stuck_after,
                file.stuck_after,
                &text_of(STUCK_AFTER),
                duration,
            )?,
            log: lookup.find("log", flags.log, file.log, "info", log_filter)?,
            log_format: lookup.find("log-format", flags.log_format, file.log_format, "auto", log_format)?,
            otlp_endpoint: lookup.find(
                "otlp-endpoint",
                flags.otlp_endpoint,
                file.otlp_endpoint,
                "",
                |text| (!text.is_empty()).then(|| text.parse()).transpose(),
            )?,
            otlp_headers: lookup.find(
                "otlp-headers",
                flags.otlp_headers,
                file.otlp_headers,
                "",
                str::parse,
            )?,
        })
    }

    pub fn retention(&self) -> Retention {
        Retention { events: self.keep_events.value, runs: self.keep_runs.value }
    }

    pub fn reconciling(&self) -> Option<Reconciling> {
        self.reconcile.value.map(|mode| Reconciling { mode, every: self.reconcile_every.value })
    }

    pub fn limits(&self) -> Limits {
        let (payload, join) = (self.max_payload.value, self.max_join.value);
        Limits { payload, join, context: self.max_context.value }
    }

    /// The server to ask, unless a store is named nearer to the command.
    pub fn server(&self) -> Option<&str> {
        let nearer = self.server.source.distance() <= self.store.source.distance();
        self.server.value.as_deref().filter(|_| nearer)
    }
}

struct Lookup {
    path: Option<PathBuf>,
}

impl Lookup {
    /// The first place that has the setting decides; what stands there must be right.
    fn find<T>(
        &self,
        name: &str,
        flag: Option<String>,
        file: Option<String>,
        default: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Setting<T>, Failure> {
        let variable = format!("FLOWLINE_{}", name.to_uppercase().replace('-', "_"));
        let from_env = env::var(&variable).ok().filter(|text| !text.is_empty());
        let (text, source) = match (flag, from_env, file, &self.path) {
            (Some(text), ..) => (text, Source::Flag),
            (None, Some(text), ..) => (text, Source::Env(variable)),
            (None, None, Some(text), Some(path)) => (text, Source::File(path.clone())),
            _ => (default.to_owned(), Source::Default),
        };
        match read(&text) {
            Ok(value) => Ok(Setting { value, source }),
            Err(problem) => Err(Failure::usage(format!("{name} (from {source}): {problem}"))),
        }
    }
}

fn read_file(named: Option<&Path>) -> Result<(Option<PathBuf>, FileSettings), Failure> {
    let path = named.unwrap_or(Path::new(CONFIG_FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((None, FileSettings::default()));
        }
        Err(error) => {
            return Err(Failure::usage(format!("can't read {}: {error}", path.display()))
                .help("name an existing settings file with --config, or drop --config"));
        }
    };
    let file = toml::from_str(&text).map_err(|error| {
        Failure::usage(format!("{}: {}", path.display(), error.to_string().trim_end()))
            .help("`flowline config` lists the keys")
    })?;
    Ok((Some(path.to_owned()), file))
}

fn if_any(text: &str) -> Result<Option<String>, String> {
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// It goes into leases and labels, and gets a suffix.
fn instance_name(text: &str) -> Result<Option<String>, String> {
    if text.len() > LONGEST_INSTANCE_NAME {
        return Err(format!(
            "{text:?} is too long; a name can have up to {LONGEST_INSTANCE_NAME} characters"
        ));
    }
    let name = if_any(text)?;
    name.as_deref().map_or(Ok(()), |name| check_name("instance", name)).map_err(|error| error.to_string())?;
    Ok(name)
}

fn color(text: &str) -> Result<Color, String> {
    <Color as clap::ValueEnum>::from_str(text, true)
        .map_err(|_| format!("{text:?} isn't valid; use auto, always or never"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} isn't ADDRESS:PORT (127.0.0.1:7400, 0.0.0.0:7400, [::1]:7400)"))
}

fn auth(text: &str) -> Result<Auth, String> {
    <Auth as clap::ValueEnum>::from_str(text, true)
        .map_err(|_| format!("{text:?} isn't valid; use auto, none or tokens"))
}

/// A level, or levels by part of the program: `info,flowline::drive=debug`.
fn log_filter(text: &str) -> Result<Targets, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let wrong = || {
        format!(
            "{text:?} isn't a log level ({}) or a list of levels per module (info,flowline::drive=debug)",
            LEVELS.join(", ")
        )
    };
    let is_level = |part: &str| LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
    // A bare word that is no level would be read as the name of a part, and log nothing.
    if !text.split(',').all(|part| is_level(part.rsplit('=').next().unwrap_or_default().trim())) {
        return Err(wrong());
    }
    text.parse().map_err(|_| wrong())
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    <LogFormat as clap::ValueEnum>::from_str(text, true)
        .map_err(|_| format!("{text:?} isn't valid; use auto, pretty or json"))
}

fn public_url(text: &str) -> Result<Option<String>, String> {
    match text.starts_with("http://") || text.starts_with("https://") {
        true => Ok(Some(text.to_owned())),
        false if text.is_empty() => Ok(None),
        false => Err(format!("{text:?} isn't a URL (https://flows.example)")),
    }
}

fn slots(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("{text:?} isn't a number above 0"))
}

fn size(text: &str) -> Result<usize, String> {
    parse_bytes(text).ok_or_else(|| format!("{text:?} isn't a size (65536, 512KiB, 4MiB)"))
}

fn file_name(text: &str) -> Result<Option<PathBuf>, String> {
    Ok((!text.is_empty()).then(|| text.into()))
}

/// `mail=2,reports=1`.
fn read_queues(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let one = |part: &str| {
        let (queue, slots) =
            part.split_once('=').ok_or_else(|| format!("{part:?} isn't QUEUE=SLOTS (mail=2)"))?;
        check_name("queue", queue).map_err(|error| error.to_string())?;
        let slots = slots.parse().map_err(|_| format!("{slots:?} isn't a number of slots"))?;
        Ok((queue.to_owned(), slots))
    };
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(one).collect()
}

fn reconcile(text: &str) -> Result<Option<Mode>, String> {
    match text {
        "off" => Ok(None),
        "report" => Ok(Some(Mode::Report)),
        "repair" => Ok(Some(Mode::Repair)),
        _ => Err(format!("{text:?} isn't valid; use off, report or repair")),
    }
}

fn reconcile_every(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < SHORTEST_LEASE => Err(format!("{text} is too short; the minimum is 1s")),
        every => Ok(every),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < SHORTEST_LEASE => Err(format!("{text} is too short; the minimum is 1s")),
        lease => Ok(lease),
    }
}

fn text_of(duration: Duration) -> String {
    flowline::core::time::format_duration(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_filter_is_a_level_or_levels_by_part() {
        for right in ["info", "DEBUG", "warn,flowline::drive=debug", "off"] {
            assert!(log_filter(right).is_ok(), "{right}");
        }
        for wrong in ["", "verbose", "flowline", "flowline=loud", "info,"] {
            assert!(log_filter(wrong).unwrap_err().contains("info, debug"), "{wrong}");
        }
    }

    #[test]
    fn queues_are_read_from_a_list_and_refused_with_the_part_that_is_wrong() {
        let read = read_queues("mail=2, reports=0").unwrap();
        assert_eq!(read.into_iter().collect::<Vec<_>>(), [("mail".to_owned(), 2), ("reports".to_owned(), 0)]);
        assert!(read_queues("mail").unwrap_err().contains("mail"));
        assert!(read_queues("ma il=1").is_err());
        assert!(read_queues("mail=-1").is_err());
    }

    #[test]
    fn an_instance_is_named_as_other_things_are() {
        assert_eq!(instance_name(""), Ok(None));
        assert_eq!(instance_name("blue-1"), Ok(Some("blue-1".to_owned())));
        assert!(instance_name("blue 1").unwrap_err().contains("blue 1"));
        assert!(instance_name(&"x".repeat(101)).unwrap_err().contains("100 characters"));
    }

    #[test]
    fn a_lease_shorter_than_a_second_is_refused() {
        assert!(lease("999ms").is_err());
        assert_eq!(lease("1s"), Ok(Duration::from_secs(1)));
    }
}
