//! The kinds of values that settings have: how each is read from text, and how `flowline config` shows it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use flowline::core::Tenant;
use flowline::core::ids::check_name;
use flowline::core::limits::{format_bytes, parse_bytes};
use flowline::core::time::format_duration;
use flowline::reconcile::Mode;
use flowline::runner::http::Allow;
use flowline::{Quota, Quotas};
use flowline_server::filter::duration;
use flowline_server::otlp::{Endpoint, Headers};
use flowline_server::serve::Origins;
use serde_json::{Value, json};
use tracing_subscriber::filter::Targets;

use crate::open::shown;

const LONGEST_INSTANCE_NAME: usize = 100;
/// Below this a heartbeat delayed by a busy machine costs the lease.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// A kind of value.
#[derive(Debug)]
pub struct Form<T> {
    /// What stands for it in help.
    pub value: &'static str,
    pub read: fn(&str) -> Result<T, String>,
    pub show: fn(&T) -> Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

/// Whether a server asks for tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// On addresses that others can reach.
    Auto,
    None,
    Tokens,
}

/// How the log of a server is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Pretty on a terminal and in `dev`, JSON otherwise.
    Auto,
    Pretty,
    Json,
}

pub const STORE: Form<String> =
    Form { value: "URL", read: |text| Ok(text.to_owned()), show: |url| json!(shown(url)) };
pub const SERVER: Form<Option<String>> =
    Form { value: "URL", read: if_any, show: |url| json!(shown(url.as_deref().unwrap_or_default())) };
pub const TOKEN: Form<Option<String>> =
    Form { value: "TOKEN", read: if_any, show: |token| json!(token.as_ref().map_or("", |_| "***")) };
pub const TENANT: Form<Tenant> = Form {
    value: "NAME",
    read: |text| Tenant::new(text).map_err(|error| error.to_string()),
    show: |tenant| json!(tenant),
};
pub const COLOR: Form<Color> = Form { value: "WHEN", read: one_of, show: word };
pub const AUTH: Form<Auth> = Form { value: "HOW", read: one_of, show: word };
pub const LOG_FORMAT: Form<LogFormat> = Form { value: "FORMAT", read: one_of, show: word };
pub const LOG: Form<Targets> =
    Form { value: "LEVEL", read: log_filter, show: |levels| json!(levels.to_string()) };
pub const ADDRESS: Form<SocketAddr> =
    Form { value: "ADDRESS", read: address, show: |address| json!(address.to_string()) };
pub const DURATION: Form<Duration> = Form { value: "DURATION", read: duration, show: show_duration };
/// Not too short for a heartbeat.
pub const LEASE: Form<Duration> = Form { value: "DURATION", read: lease, show: show_duration };
pub const COUNT: Form<usize> = Form { value: "N", read: count, show: |count| json!(count) };
pub const SIZE: Form<usize> = Form { value: "SIZE", read: size, show: |size| json!(format_bytes(*size)) };
pub const QUEUES: Form<BTreeMap<String, usize>> =
    Form { value: "QUEUE=N", read: read_queues, show: |queues| json!(queues) };
pub const QUOTAS: Form<Quotas> = Form { value: "QUOTA=N", read: read_quotas, show: show_quotas };
pub const FILE: Form<Option<PathBuf>> = Form { value: "FILE", read: file_name, show: |file| json!(file) };
pub const FOLDER: Form<Option<PathBuf>> = Form {
    value: "DIR",
    read: file_name,
    show: |folder| json!(folder.as_ref().map_or(String::new(), |folder| folder.display().to_string())),
};
pub const INSTANCE: Form<Option<String>> = Form { value: "NAME", read: instance_name, show: text_if_any };
pub const RECONCILE: Form<Option<Mode>> = Form {
    value: "MODE",
    read: reconcile,
    show: |mode| match mode {
        None => json!("off"),
        Some(Mode::Report) => json!("report"),
        Some(Mode::Repair) => json!("repair"),
    },
};
pub const HOSTS: Form<Allow> =
    Form { value: "HOSTS", read: str::parse, show: |allow| json!(allow.to_string()) };
pub const PUBLIC_URL: Form<Option<String>> = Form { value: "URL", read: public_url, show: text_if_any };
pub const ORIGINS: Form<Origins> =
    Form { value: "ORIGINS", read: Origins::parse, show: |origins| json!(origins.list().join(",")) };
pub const COLLECTOR: Form<Option<Endpoint>> = Form {
    value: "URL",
    read: |text| (!text.is_empty()).then(|| text.parse()).transpose(),
    show: |url| json!(url.as_ref().map_or(String::new(), ToString::to_string)),
};
/// Their values may be secrets.
pub const HEADERS: Form<Headers> = Form {
    value: "HEADERS",
    read: str::parse,
    show: |headers| json!(headers.names().map(|name| format!("{name}=***")).collect::<Vec<_>>().join(",")),
};

fn if_any(text: &str) -> Result<Option<String>, String> {
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn text_if_any(text: &Option<String>) -> Value {
    json!(text.as_deref().unwrap_or_default())
}

fn show_duration(duration: &Duration) -> Value {
    json!(format_duration(*duration))
}

fn one_of<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, true).map_err(|_| {
        let words: Vec<Value> = T::value_variants().iter().map(word).collect();
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        let (last, others) = words.split_last().unwrap_or((&"", &[]));
        format!("{text:?} isn't valid; use {} or {last}", others.join(", "))
    })
}

fn word<T: ValueEnum>(value: &T) -> Value {
    json!(value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned()))
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

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} isn't ADDRESS:PORT (127.0.0.1:7400, 0.0.0.0:7400, [::1]:7400)"))
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

fn public_url(text: &str) -> Result<Option<String>, String> {
    match text.starts_with("http://") || text.starts_with("https://") {
        true => Ok(Some(text.to_owned())),
        false if text.is_empty() => Ok(None),
        false => Err(format!("{text:?} isn't a URL (https://flows.example)")),
    }
}

fn count(text: &str) -> Result<usize, String> {
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

/// `runs=1000,starts=50,acme.runs=100`.
fn read_quotas(text: &str) -> Result<Quotas, String> {
    let mut quotas = Quotas::default();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong =
            || format!("{part:?} isn't a quota (runs=1000, starts=50, or for one tenant acme.runs=100)");
        let (name, most) = part.split_once('=').ok_or_else(wrong)?;
        let most = most.parse().map_err(|_| wrong())?;
        let (tenant, name) =
            name.rsplit_once('.').map_or((None, name), |(tenant, name)| (Some(tenant), name));
        let quota = match tenant.map(Tenant::new).transpose().map_err(|error| error.to_string())? {
            Some(tenant) => quotas.tenants.entry(tenant).or_default(),
            None => &mut quotas.each,
        };
        match name {
            "runs" => quota.runs = Some(most),
            "starts" if most > 0 => quota.starts = Some(most),
            _ => return Err(wrong()),
        }
    }
    Ok(quotas)
}

fn show_quotas(quotas: &Quotas) -> Value {
    let of = |quota: &Quota| {
        let said = [("runs", quota.runs), ("starts", quota.starts)].into_iter();
        said.filter_map(|(name, most)| Some((name.to_owned(), json!(most?))))
            .collect::<serde_json::Map<_, _>>()
    };
    let mut shown = of(&quotas.each);
    shown.extend(quotas.tenants.iter().map(|(tenant, quota)| (tenant.to_string(), of(quota).into())));
    shown.into()
}

fn reconcile(text: &str) -> Result<Option<Mode>, String> {
    match text {
        "off" => Ok(None),
        "report" => Ok(Some(Mode::Report)),
        "repair" => Ok(Some(Mode::Repair)),
        _ => Err(format!("{text:?} isn't valid; use off, report or repair")),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < SHORTEST_LEASE => Err(format!("{text} is too short; the minimum is 1s")),
        lease => Ok(lease),
    }
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
    fn quotas_are_read_for_each_tenant_and_for_one() {
        let read = read_quotas("runs=10, starts=5, acme.runs=3").unwrap();
        assert_eq!(show_quotas(&read), json!({ "runs": 10, "starts": 5, "acme": { "runs": 3 } }));
        for wrong in ["runs", "runs=many", "starts=0", "walks=1", "a b.runs=1"] {
            assert!(read_quotas(wrong).is_err(), "{wrong}");
        }
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
