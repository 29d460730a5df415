//! `flowline config`: the settings in force and where each comes from.

use serde_json::{Value, json};

use super::CommandContext;
use crate::failure::{Exit, Outcome};
use crate::output;
use crate::settings::SettingSource;

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

pub fn run(context: &CommandContext) -> Outcome {
    let rows = context.settings.rows();
    if context.json {
        let one = |(name, value, source): &(&str, Value, &SettingSource)| {
            ((*name).to_owned(), json!({ "value": value, "source": source.to_string() }))
        };
        output::json(&rows.iter().map(one).collect::<serde_json::Map<_, _>>())?;
        return Ok(Exit::Fine);
    }
    let cells = |(name, value, source): &(&str, Value, &SettingSource)| {
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
