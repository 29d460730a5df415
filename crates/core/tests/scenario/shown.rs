//! The transcript: each input, and what was decided.

use flowline_core::decide::{DecideInput, Decision, Job, OtherJobs};
use flowline_core::receipt::ReceiptChange;

use super::Scenario;

impl Scenario {
    pub(super) fn show_input(&self, input: &DecideInput) -> String {
        let name = |step: &u32, attempt: &u32| format!("{}#{attempt}", self.plan.step(*step).name);
        match input {
            DecideInput::Start(start) => format!("start {}", start.input),
            DecideInput::Started { step, attempt, .. } => format!("started {}", name(step, attempt)),
            DecideInput::Done { step, attempt, result, emits } => {
                let emits: String =
                    emits.iter().map(|(name, payload)| format!(" {name}={payload}")).collect();
                format!("done {} {result}{emits}", name(step, attempt))
            }
            DecideInput::Failed { step, attempt, failure } => {
                let code = failure.code.as_deref().unwrap_or("-");
                format!("failed {} {code} {:?}", name(step, attempt), failure.retry)
            }
            DecideInput::LeaseLost { step, attempt, released } => {
                format!("{} {}", if *released { "released" } else { "lost" }, name(step, attempt))
            }
            DecideInput::EmitNow { step, attempt, name: event, payload } => {
                format!("emit_now {} {event}={payload}", name(step, attempt))
            }
            DecideInput::External { name, payload, .. } => format!("send {name}={payload}"),
            DecideInput::TimerDue { timer, .. } => format!("timer {timer}"),
            DecideInput::Cancel { reason } => format!("cancel {}", reason.as_deref().unwrap_or_default()),
            DecideInput::Finish(finish) => format!("finish {finish:?}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    pub(super) fn show(&mut self, decision: &Decision) {
        let out = &mut self.transcript;
        for event in &decision.events {
            let of = event.of.as_ref().map(|of| format!(" {}#{}", of.step, of.attempt)).unwrap_or_default();
            let data = event.data.as_ref().map(|data| format!(" {data}")).unwrap_or_default();
            *out += &format!("  {}{of}{data}\n", event.kind);
        }
        for add in &decision.add {
            let name = match add.job {
                Job::Step(step) => &*self.plan.step(step).name,
                Job::RunTimeout => "(time-out)",
                Job::Begin => "(begin)",
                Job::Timer(_) => "(timer)",
            };
            let after = add.due.since(self.now).as_millis();
            let after = if after > 0 { format!(" in {after}ms") } else { String::new() };
            let held = if add.held { " held" } else { "" };
            *out += &format!("  + {name}#{} {}{after}{held}\n", add.attempt, add.priority.as_str());
        }
        for (job, attempt) in &decision.drop {
            let name = match job {
                Job::Step(step) => &*self.plan.step(*step).name,
                _ => "(timer)",
            };
            *out += &format!("  - {name}#{attempt}\n");
        }
        for ReceiptChange { number, status, outcome, .. } in &decision.receipts {
            let outcome = outcome.as_ref().map(|outcome| format!(" {outcome}")).unwrap_or_default();
            *out += &format!("  event {number}: {status:?}{outcome}\n");
        }
        if decision.others != OtherJobs::Leave {
            *out += &format!("  others: {:?}\n", decision.others);
        }
        *out += &format!("  = {}\n", decision.state.status());
    }
}
