//! The table of settings. A setting is one entry here: its flag, its environment variable, its key in the settings file,
//! `flowline config` and its row in docs/cli.md follow from it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use flowline::Quotas;
use flowline::core::Tenant;
use flowline::reconcile::Mode;
use flowline::runner::http::Allow;
use flowline_server::otlp::{Endpoint, Headers};
use flowline_server::serve::Origins;
use serde_json::Value;
use tracing_subscriber::filter::Targets;

use super::kinds::*;
use super::spec::{SettingGroup, Spec, kebab};
use super::{Lookup, Setting, SettingSource};
use crate::failure::CliError;

macro_rules! maybe {
    () => {
        None
    };
    ($given:literal) => {
        Some($given)
    };
}

/// Makes the struct, its reader and the descriptions out of entries: the help, and then the name, type, kind, commands and
/// default. After that comes what is unusual; see the fields of [`Spec`].
macro_rules! settings {
    ($(
        $(#[doc = $help:literal])+
        $name:ident: $type:ty, $kind:ident, $group:ident, $default:literal
            $(, flag $flag:literal)? $(, usually $usually:literal)? $(, also $also:literal)? $(, see $see:literal)?;
    )+) => {
        /// The settings in force, each with where it comes from.
        #[derive(Debug, Clone)]
        pub struct Settings {
            $( $(#[doc = $help])+ pub $name: Setting<$type>, )+
        }

        impl Settings {
            /// Reads each setting from the first place that has it.
            pub(super) fn look_up(lookup: &Lookup) -> Result<Settings, CliError> {
                let [$( $name ),+] = &SPECS;
                Ok(Settings { $( $name: lookup.find($name, $kind.read)?, )+ })
            }

            /// Each setting as `flowline config` shows it, in the order of the table.
            pub fn rows(&self) -> Vec<(&'static str, Value, &SettingSource)> {
                let shown = [$( (($kind.show)(&self.$name.value), &self.$name.source), )+];
                SPECS.iter().zip(shown).map(|(spec, (value, source))| (spec.name, value, source)).collect()
            }
        }

        /// Every setting there is.
        pub static SPECS: [Spec; [$( stringify!($name) ),+].len()] = [$( Spec {
            id: concat!("setting ", stringify!($name)),
            name: {
                const NAME: &[u8] = &kebab::<{ stringify!($name).len() }>(stringify!($name));
                match std::str::from_utf8(NAME) { Ok(name) => name, Err(_) => "" }
            },
            flag: maybe!($($flag)?),
            value: $kind.value,
            group: SettingGroup::$group,
            default: $default,
            usually: maybe!($($usually)?),
            also: maybe!($($also)?),
            help: concat!($($help),+),
            #[cfg(test)]
            see: maybe!($($see)?),
        }, )+];

        /// Their names.
        pub static NAMES: [&str; SPECS.len()] = {
            let mut names = [""; SPECS.len()];
            let mut at = 0;
            while at < names.len() {
                names[at] = SPECS[at].name;
                at += 1;
            }
            names
        };
    };
}

settings! {
    /// Store to use: sqlite:PATH, postgres://…, redis://… or memory:
    store: String, STORE, Global, "sqlite:.flowline/flowline.db";
    /// Use this server instead of a store: http://HOST:PORT. To name several instances on one store, separate them with commas
    server: Option<String>, SERVER, Global, "", see "#at-a-server";
    /// API token for the server. Prefer FLOWLINE_TOKEN: arguments are visible to other users
    token: Option<String>, TOKEN, Global, "", see "server.md#tokens";
    /// Tenant to work in
    tenant: Tenant, TENANT, Global, "default";
    /// When to use colours: auto, always or never
    color: Color, COLOR, Global, "auto", also ", NO_COLOR";

    /// Address to listen on
    listen: SocketAddr, ADDRESS, Serve, "127.0.0.1:7400";
    /// Whether to require API tokens: auto (not on loopback), none or tokens
    auth: Auth, AUTH, Serve, "auto", see "server.md#tokens";
    /// How many wrong or expired tokens an address may send per minute before more are refused with 429; valid ones still work
    max_wrong_tokens: usize, COUNT, Serve, "300", see "server.md#tokens";
    /// If the store isn't reachable at startup, wait this long for it, then exit with 3
    store_patience: Duration, DURATION, Unattended, "30s", see "operations.md#starting-before-the-store-is-up";
    /// Time without progress after which the metrics count a run as stuck
    stuck_after: Duration, DURATION, Serve, "15m", see "metrics.md#stuck-runs";
    /// Log level: error, warn, info, debug or trace, optionally per module (info,flowline::drive=debug)
    log: Targets, LOG, Serve, "info", see "deploying.md#logs";
    /// Log format: pretty or json
    log_format: LogFormat, LOG_FORMAT, Serve, "auto",
        usually "pretty on a terminal and in `dev`, otherwise json", see "deploying.md#logs";
    /// Send spans to this OpenTelemetry collector with OTLP over HTTP (http://127.0.0.1:4318)
    otlp_endpoint: Option<Endpoint>, COLLECTOR, Serve, "", see "deploying.md#traces";
    /// Headers to send to the collector: NAME=VALUE, comma-separated. Set secrets in the environment
    otlp_headers: Headers, HEADERS, Serve, "", see "deploying.md#traces";
    /// Directory of definitions to register
    flows: Option<PathBuf>, FOLDER, Serve, "";
    /// Serve TLS with this certificate chain (PEM)
    tls_cert: Option<PathBuf>, FILE, Serve, "", see "server.md#settings";
    /// Private key of the certificate (PEM)
    tls_key: Option<PathBuf>, FILE, Serve, "";
    /// Connections to accept at once; others wait
    max_connections: usize, COUNT, Serve, "10000";
    /// URL at which others can reach this server, for callbacks of http steps
    public_url: Option<String>, PUBLIC_URL, Serve, "",
        usually "the address it listens on", see "http-steps.md#callbacks";
    /// Origins whose web pages may use the API, comma-separated (https://HOST)
    cors_origins: Origins, ORIGINS, Serve, "", usually "none", see "server.md#web-pages";

    /// Attempts to run at once in each queue
    slots: usize, COUNT, Work, "256";
    /// Attempts to run at once in this queue, 0 for none; repeatable
    queues: BTreeMap<String, usize>, QUEUES, Work, "", flag "queue", also ", comma-separated";
    /// What each tenant may have and start at most: runs=N (that haven't ended), starts=N (per second), or for one tenant
    /// TENANT.runs=N; repeatable
    quotas: Quotas, QUOTAS, Work, "", flag "quota", usually "no limits", also ", comma-separated", see "server.md#quotas";
    /// How long a lease lasts without a heartbeat
    lease: Duration, LEASE, Work, "30s", see "operations.md#leases";
    /// How long running steps get to finish after a signal
    drain: Duration, DURATION, Work, "10s", see "operations.md#stopping";
    /// How long to keep a run's events after it ends
    keep_events: Duration, DURATION, Work, "7d",
        usually "7d, or --keep-runs if that's shorter", see "operations.md#growth";
    /// How long to keep a run after it ends
    keep_runs: Duration, DURATION, Work, "30d", see "operations.md#growth";
    /// Name of this instance in leases, events, logs and metrics; a random suffix is added
    instance_name: Option<String>, INSTANCE, Work, "", usually "host name and process id";
    /// Check all runs against their logs in the background, on one instance at a time: off, report (in logs and metrics) or
    /// repair
    reconcile: Option<Mode>, RECONCILE, Work, "off", see "operations.md#is-it-right";
    /// How often --reconcile checks
    reconcile_every: Duration, LEASE, Work, "1h";
    /// Largest allowed input, event payload, emit, result or state value
    max_payload: usize, SIZE, Work, "1MiB", see "file-format.md#limits";
    /// Largest allowed input of a step that joins several events, and largest total of a run's results
    max_join: usize, SIZE, Work, "16MiB",
        usually "16MiB, or twice --max-payload if that's more", see "file-format.md#limits";
    /// Largest allowed context of a machine's run
    max_context: usize, SIZE, Work, "64KiB",
        usually "64KiB, or --max-payload if that's less", see "file-format.md#limits";
    /// How much one attempt may log; what it logs beyond that is discarded
    max_log: usize, SIZE, Work, "16MiB", see "file-format.md#limits";
    /// How much all attempts of a run may log together
    max_run_log: usize, SIZE, Work, "256MiB", see "file-format.md#limits";
    /// What http steps may call besides public addresses: none, private (loopback and private networks), or a list of
    /// networks and host names
    http_allow: Allow, HOSTS, Work, "private",
        usually "private; none for serve", see "http-steps.md#allowed-addresses";
}
