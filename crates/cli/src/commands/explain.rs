//! `flowline explain`: why a run is not further.

use flowline::explain::Explanation;

use super::CommandContext;
use crate::failure::Outcome;
use crate::output;

/// Explain why a run isn't progressing
///
/// Shows for every step which events it's waiting for and which steps emit them, when its next attempt is due, who holds
/// its lease, or that no worker has claimed it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline explain 01890a5d-ac96-774b-bcce-b302099a8057")]
pub struct Args {
    /// The run's id
    run: String,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let run = context.run_key(&args.run)?;
    let explanation = context.operator()?.explain(&run).await?;
    context.answer(&explanation, || tell(&explanation))
}

fn tell(explanation: &Explanation) -> std::io::Result<()> {
    let row = &explanation.row;
    output::line(&format!("run {} of {} is {}", row.run_id, row.flow_name, output::status(row.status)))?;
    output::line(&output::clean(&explanation.summary))?;
    if explanation.steps.is_empty() {
        return Ok(());
    }
    let rows = explanation.steps.iter().map(|step| {
        let attempt = if step.attempt == 0 { String::new() } else { step.attempt.to_string() };
        vec![step.step.to_string(), step.state.to_string(), attempt, output::clean(&step.reason).into_owned()]
    });
    output::line("")?;
    output::table(&["step", "state", "attempt", "why"], rows.collect())
}
