//! `flowline config`: the settings in force and where each comes from.

use flowline::core::limits::format_bytes;
use flowline::core::time::format_duration;
use flowline::reconcile::Mode;
use serde_json::{Value, json};

use super::Context;
use crate::failure::{Exit, Outcome};
use crate::open::shown;
use crate::output;
use crate::settings::{Auth, Color, LogFormat, Source};

/// Show all settings and where each comes from
///
/// A flag wins over its environment variable (FLOWLINE_NAME), which wins over the settings file, which wins over the
/// default.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  FLOWLINE_SLOTS=8 flowline config\n\n\
                        Example of a settings file, flowline.toml:\n  store = \"sqlite:/var/lib/flowline/flowline.db\"\n  \
                        tenant = \"default\"\n  slots = 64\n  lease = \"30s\"\n  drain = \"10s\"\n  color = \"auto\"\n  listen = \"127.0.0.1:7400\"\n  flows = \"flows\"\n  http-allow = \"private\"\n\n  \
                        [queues]\n  reports = 1")]
pub struct Args {}

pub fn run(context: &Context) -> Outcome {
    let settings = &context.settings;
    let color = match settings.color.value {
        Color::Auto => "auto",
        Color::Always => "always",
        Color::Never => "never",
    };
    let auth = match settings.auth.value {
        Auth::Auto => "auto",
        Auth::None => "none",
        Auth::Tokens => "tokens",
    };
    let flows = settings.flows.value.as_ref().map_or(String::new(), |folder| folder.display().to_string());
    let log_format = match settings.log_format.value {
        LogFormat::Auto => "auto",
        LogFormat::Pretty => "pretty",
        LogFormat::Json => "json",
    };
    let collector = settings.otlp_endpoint.value.as_ref().map_or(String::new(), ToString::to_string);
    let headers: Vec<String> =
        settings.otlp_headers.value.names().map(|name| format!("{name}=***")).collect();
    let reconcile = match settings.reconcile.value {
        None => "off",
        Some(Mode::Report) => "report",
        Some(Mode::Repair) => "repair",
    };
    let reconcile_every = format_duration(settings.reconcile_every.value);
    let rows: [(&str, Value, &Source); 32] = [
        ("store", json!(shown(&settings.store.value)), &settings.store.source),
        (
            "store-patience",
            json!(format_duration(settings.store_patience.value)),
            &settings.store_patience.source,
        ),
        (
            "server",
            json!(shown(settings.server.value.as_deref().unwrap_or_default())),
            &settings.server.source,
        ),
        ("token", json!(settings.token.value.as_ref().map_or("", |_| "***")), &settings.token.source),
        ("tenant", json!(settings.tenant.value), &settings.tenant.source),
        ("slots", json!(settings.slots.value), &settings.slots.source),
        ("queues", json!(settings.queues.value), &settings.queues.source),
        ("lease", json!(format_duration(settings.lease.value)), &settings.lease.source),
        ("drain", json!(format_duration(settings.drain.value)), &settings.drain.source),
        ("keep-events", json!(format_duration(settings.keep_events.value)), &settings.keep_events.source),
        ("keep-runs", json!(format_duration(settings.keep_runs.value)), &settings.keep_runs.source),
        (
            "instance-name",
            json!(settings.instance_name.value.as_deref().unwrap_or_default()),
            &settings.instance_name.source,
        ),
        ("reconcile", json!(reconcile), &settings.reconcile.source),
        ("reconcile-every", json!(reconcile_every), &settings.reconcile_every.source),
        ("max-payload", json!(format_bytes(settings.max_payload.value)), &settings.max_payload.source),
        ("max-join", json!(format_bytes(settings.max_join.value)), &settings.max_join.source),
        ("max-context", json!(format_bytes(settings.max_context.value)), &settings.max_context.source),
        ("listen", json!(settings.listen.value.to_string()), &settings.listen.source),
        ("auth", json!(auth), &settings.auth.source),
        ("flows", json!(flows), &settings.flows.source),
        ("tls-cert", json!(settings.tls_cert.value), &settings.tls_cert.source),
        ("tls-key", json!(settings.tls_key.value), &settings.tls_key.source),
        ("max-connections", json!(settings.max_connections.value), &settings.max_connections.source),
        ("http-allow", json!(settings.http_allow.value.to_string()), &settings.http_allow.source),
        (
            "public-url",
            json!(settings.public_url.value.as_deref().unwrap_or_default()),
            &settings.public_url.source,
        ),
        ("cors-origins", json!(settings.cors_origins.value.list().join(",")), &settings.cors_origins.source),
        ("stuck-after", json!(format_duration(settings.stuck_after.value)), &settings.stuck_after.source),
        ("log", json!(settings.log.value.to_string()), &settings.log.source),
        ("log-format", json!(log_format), &settings.log_format.source),
        ("otlp-endpoint", json!(collector), &settings.otlp_endpoint.source),
        ("otlp-headers", json!(headers.join(",")), &settings.otlp_headers.source),
        ("color", json!(color), &settings.color.source),
    ];
    if context.json {
        let one = |(name, value, source): &(&str, Value, &Source)| {
            ((*name).to_owned(), json!({ "value": value, "source": source.to_string() }))
        };
        output::json(&rows.iter().map(one).collect::<serde_json::Map<_, _>>())?;
        return Ok(Exit::Fine);
    }
    let cells = |(name, value, source): &(&str, Value, &Source)| {
        let value = match value {
            Value::String(text) => output::clean(text).into_owned(),
            Value::Object(queues) if queues.is_empty() => "all alike".to_owned(),
            Value::Object(queues) => {
                queues.iter().map(|(queue, slots)| format!("{queue}={slots}")).collect::<Vec<_>>().join(",")
            }
            Value::Null => "none".to_owned(),
            other => other.to_string(),
        };
        vec![(*name).to_owned(), value, source.to_string()]
    };
    output::table(&["setting", "value", "from"], rows.iter().map(cells).collect())?;
    Ok(Exit::Fine)
}
