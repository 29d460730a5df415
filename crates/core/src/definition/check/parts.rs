//! Each part of a definition on its own: names, runners, schemas, numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Finding;
use super::context::ContextKeys;
use super::expressions::{self, ExpressionUse, Verdict};
use crate::definition::place::Place;
use crate::definition::{Cleanup, Definition, Retain, Retry, Runner, StepDefinition, Subscribes};
use crate::expr::{self, EXPRESSIONS_WEIGHT};
use crate::ids::check_name;
use crate::limits;
use crate::schema::{PATTERNS, SCHEMAS_BYTES, Schema};
use crate::time::format_duration;

pub(super) fn check(definition: &Definition) -> Vec<Finding> {
    let context = definition.machine.as_ref().map(|machine| ContextKeys::of(definition, machine));
    let mut parts = Parts { context, ..Parts::default() };
    parts.whole(definition);
    match &definition.machine {
        Some(machine) => parts.machine(definition, machine),
        None => parts.flow(definition),
    }
    for step in &definition.steps {
        parts.step(step, definition);
    }
    parts.duplicate_steps(definition);
    parts.findings
}

#[derive(Default)]
pub(super) struct Parts {
    pub(super) findings: Vec<Finding>,
    /// Verdicts on expressions and schemas seen before: generated flows repeat them.
    expressions: BTreeMap<(String, ExpressionUse), Verdict>,
    schemas: BTreeMap<String, Option<String>>,
    /// What was compiled so far, to refuse a definition that would take minutes.
    expression_weight: usize,
    schema_bytes: usize,
    patterns: usize,
    /// What expressions of a machine can read of its context.
    context: Option<ContextKeys>,
}

/// How the parts that flows and machines share are called and judged.
struct Words {
    step: &'static str,
    steps: &'static str,
    accepts: &'static str,
    /// Steps that there may be.
    most: usize,
    condition: ExpressionUse,
    output: ExpressionUse,
}

impl Words {
    fn of(definition: &Definition) -> &'static Words {
        const FLOW: Words = Words {
            step: "step",
            steps: "steps",
            accepts: "accepts",
            most: limits::STEPS,
            condition: ExpressionUse::Condition,
            output: ExpressionUse::Output,
        };
        const MACHINE: Words = Words {
            step: "action",
            steps: "actions",
            accepts: "events",
            most: limits::ACTIONS,
            condition: ExpressionUse::Guard,
            output: ExpressionUse::Context,
        };
        if definition.machine.is_some() { &MACHINE } else { &FLOW }
    }
}

impl Parts {
    /// What only a flow has.
    fn flow(&mut self, definition: &Definition) {
        if definition.steps.is_empty() {
            let message = format!("flow {:?} has no steps", definition.flow);
            let place = Place::root().key("steps");
            self.error("no-steps", place, message, "add at least one step under `steps`");
        }
        for step in definition.steps.iter().filter(|step| !step.after.is_empty() || step.on_error.is_some()) {
            let message = format!("step {:?} has `after` or `on_error`", step.name);
            let help = "those are for actions of machines; steps use `subscribes`";
            self.error("wrong-kind", Place::step(&step.name), message, help);
        }
    }

    fn whole(&mut self, definition: &Definition) {
        let root = Place::root();
        let kind = definition.kind();
        let words = Words::of(definition);
        self.name(kind, &definition.flow, root.key(kind));
        if definition.steps.len() > words.most {
            let message = format!(
                "{kind} {:?} has {} {}; the limit is {}",
                definition.flow,
                definition.steps.len(),
                words.steps,
                words.most
            );
            let help = format!("split it into several {kind}s");
            self.error("too-many-steps", root.key(words.steps), message, &help);
        }
        if let Some(input) = &definition.input {
            self.schema(&format!("the input of the {kind}"), input, root.key("input"));
        }
        for (event, schema) in &definition.accepts {
            let place = root.key(words.accepts).key(event);
            self.event(event, place.clone());
            if let Some(schema) = schema {
                self.schema(&format!("the accepted event {event:?}"), schema, place);
            }
        }
        if let Some(output) = &definition.output {
            self.expression(&format!("the output of the {kind}"), output, words.output, root.key("output"));
        }
        self.timeout(&format!("the {kind}"), definition.timeout, root.key("timeout"));
        if let Cleanup::Ttl(ttl) = definition.state {
            self.whole_milliseconds("the state", ttl, root.key("state").key("ttl"));
        }
        if definition.state == Cleanup::Ttl(Duration::ZERO) {
            let help = "use a TTL such as 7d, or on-complete";
            self.error(
                "zero-duration",
                root.key("state").key("ttl"),
                "the TTL of the state is zero".to_owned(),
                help,
            );
        }
        if let Some(retain) = definition.retain {
            self.retain(retain, &root.key("retain"));
        }
    }

    fn retain(&mut self, retain: Retain, place: &Place) {
        if retain == Retain::default() {
            let message = "`retain` sets neither `events` nor `runs`".to_owned();
            self.error("empty-retain", place.clone(), message, "write {events: 1d, runs: 7d}, or remove it");
        }
        for (key, kept) in [("events", retain.events), ("runs", retain.runs)] {
            let (Some(kept), at) = (kept, place.key(key)) else { continue };
            self.whole_milliseconds("`retain`", kept, at.clone());
            if kept.is_zero() {
                let message =
                    format!("`{key}` of `retain` is zero, so they'd be deleted as soon as a run ends");
                let help = "give a duration such as 1d, or remove it to follow the engine's setting";
                self.error("zero-duration", at, message, help);
            } else if kept > limits::RETAIN {
                let most = format_duration(limits::RETAIN);
                let message =
                    format!("`{key}` of `retain` is {}; the limit is {most}", format_duration(kept));
                let help = format!("to keep them forever, use {most}, a hundred years");
                self.error("retain-too-long", at, message, &help);
            }
        }
        if let Retain { events: Some(events), runs: Some(runs) } = retain
            && events > runs
        {
            let message = "`retain` keeps events longer than the runs they belong to".to_owned();
            let help = "keep runs for at least as long as their events";
            self.error("retain-order", place.key("events"), message, help);
        }
    }

    fn step(&mut self, step: &StepDefinition, definition: &Definition) {
        let words = Words::of(definition);
        let place = definition.place_of(step);
        let who = format!("{} {:?}", words.step, step.name);
        self.name(words.step, &step.name, place.clone());
        self.runner(&who, step, &place);
        if let Some(subscribes) = &step.subscribes {
            self.subscribes(&who, subscribes, place.key("subscribes"));
        }
        for (event, schema) in &step.emits {
            let at = place.key("emits").key(event);
            self.event(event, at.clone());
            self.published(&who, event, definition, &at);
            if let Some(schema) = schema {
                self.schema(&format!("the event {event:?} of {who}"), schema, at);
            }
        }
        if let Some(event) = step.returns.as_ref().filter(|event| !step.emits.contains_key(*event)) {
            self.event(event, place.key("returns"));
            self.published(&who, event, definition, &place.key("returns"));
        }
        if let Some(condition) = &step.condition {
            self.expression(&format!("the condition of {who}"), condition, words.condition, place.key("if"));
        }
        self.timeout(&who, step.timeout, place.key("timeout"));
        self.retry(&who, &step.retry, &place.key("retry"));
    }

    fn runner(&mut self, who: &str, step: &StepDefinition, place: &Place) {
        match &step.runner {
            Runner::Command(argv) => {
                let at = place.key("command");
                if argv.first().is_none_or(|program| program.trim().is_empty()) {
                    let message = format!("the command of {who} is empty");
                    let help = "write the program and its arguments: [./charge.sh, --fast]";
                    self.error("empty-command", at, message, help);
                } else if let Some(index) = argv.iter().position(|argument| argument.contains('\0')) {
                    let message = format!("the command of {who} has an argument with a NUL character");
                    let help = "arguments can't contain NUL; remove it";
                    self.error("bad-command", at.index(index), message, help);
                }
            }
            Runner::Http(request) => self.http(who, request, &place.key("http")),
            Runner::Worker(queue) => {
                self.name("queue", queue, place.key("worker"));
                if step.queue != *queue {
                    let message =
                        format!("{who} is for workers of queue {queue:?}, but its queue is {:?}", step.queue);
                    let help = "`worker` names the queue; remove `queue`";
                    self.error("queue-of-worker", place.key("queue"), message, help);
                }
                return;
            }
            Runner::Function(name) => self.name("function", name, place.key("function")),
            Runner::Start(start) => self.start(who, start, &place.key("start")),
            Runner::Send(send) => self.send(who, send, &place.key("send")),
        }
        self.name("queue", &step.queue, place.key("queue"));
    }

    fn subscribes(&mut self, who: &str, subscribes: &Subscribes, place: Place) {
        match subscribes {
            Subscribes::Event(event) => self.event(event, place),
            // An unknown step is a finding of the graph; this one would be unknown for want of a name.
            Subscribes::Step(name) => self.name("step", name, place),
            Subscribes::All(parts) | Subscribes::Any(parts) if parts.is_empty() => {
                let message = format!("{who} subscribes to an empty list");
                let help = "name an event, or remove `subscribes` to run the step when the run starts";
                self.error("empty-subscribes", place, message, help);
            }
            Subscribes::All(parts) => {
                parts.iter().enumerate().for_each(|(i, part)| self.subscribes(who, part, place.index(i)));
            }
            Subscribes::Any(parts) => {
                let place = place.key("any");
                parts.iter().enumerate().for_each(|(i, part)| self.subscribes(who, part, place.index(i)));
            }
        }
    }

    fn published(&mut self, who: &str, event: &str, definition: &Definition, place: &Place) {
        if definition.accepts.contains_key(event) {
            let message = format!("{who} emits {event:?}, which the flow also accepts as an external event");
            let help = "only the first one counts, so the other would be lost; give them different names";
            self.error("accepted-and-emitted", place.clone(), message, help);
        }
    }

    fn retry(&mut self, who: &str, retry: &Retry, place: &Place) {
        if retry.attempts == 0 || retry.attempts > limits::ATTEMPTS {
            let message = format!("{who} has {} attempts", retry.attempts);
            let help = format!("attempts include the first one: use 1 (no retry) to {}", limits::ATTEMPTS);
            self.error("bad-attempts", place.key("attempts"), message, &help);
        }
        for (index, code) in retry.only.iter().enumerate().filter(|(_, code)| retry.except.contains(code)) {
            let message = format!("{who} has {code:?} in both `only` and `except`");
            let help = "remove it from `only` or from `except`";
            self.error("retry-conflict", place.key("only").index(index), message, help);
        }
        self.whole_milliseconds(who, retry.delay, place.key("delay"));
        self.whole_milliseconds(who, retry.max_delay, place.key("max_delay"));
        if retry.delay > retry.max_delay {
            let message = format!("{who} has a retry delay above its max_delay, which limits it");
            let help = "raise `max_delay` or lower `delay`";
            self.findings.push(Finding::warning("capped-delay", place.key("delay"), message).help(help));
        }
    }

    fn timeout(&mut self, who: &str, timeout: Option<Duration>, place: Place) {
        if timeout == Some(Duration::ZERO) {
            let message = format!("the timeout of {who} is zero, so it can never finish");
            let help = "use a duration such as 5m, or remove the key for no limit";
            self.error("zero-duration", place, message, help);
        }
    }

    /// Only code can ask for less than a millisecond; the file format, and so the stored definition, cannot say it.
    pub(super) fn whole_milliseconds(&mut self, who: &str, duration: Duration, place: Place) {
        if !duration.subsec_nanos().is_multiple_of(1_000_000) {
            let message =
                format!("{who} has a duration of {duration:?}, which isn't a whole number of milliseconds");
            self.error("bad-duration", place, message, "use whole milliseconds");
        }
    }

    fn duplicate_steps(&mut self, definition: &Definition) {
        let mut seen = BTreeSet::new();
        for step in definition.steps.iter().filter(|step| !seen.insert(step.name.as_str())) {
            let message = format!("there are two {} named {:?}", Words::of(definition).steps, step.name);
            self.error("duplicate-step", definition.place_of(step), message, "rename one of them");
        }
    }

    pub(super) fn event(&mut self, name: &str, place: Place) {
        if name.starts_with("step:") {
            let message =
                format!("an event can't be named {name:?}: in a subscription, \"step:\" refers to a step");
            return self.error("bad-name", place, message, "remove the \"step:\"");
        }
        self.name("event", name, place);
    }

    pub(super) fn name(&mut self, what: &'static str, name: &str, place: Place) {
        let Err(error) = check_name(what, name) else { return };
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let instead: String =
            name.chars().take(limits::NAME_BYTES).map(|c| if allowed(c) { c } else { '-' }).collect();
        let instead = instead.trim_matches(['-', '.', '_']);
        let help = match instead {
            "" => "give it another name".to_owned(),
            instead => format!("use {instead:?}, for example"),
        };
        self.error("bad-name", place, error.to_string(), &help);
    }

    pub(super) fn expression(&mut self, what: &str, text: &str, role: ExpressionUse, place: Place) {
        let key = (text.to_owned(), role);
        // A plan parses each of them, also those that are the same.
        self.expression_weight += expr::weight(text);
        let verdict = match self.expression_weight > EXPRESSIONS_WEIGHT {
            true => &mut Err(expressions::too_many()),
            false => self.expressions.entry(key).or_insert_with(|| expressions::judge(text, role)),
        };
        match (verdict, &self.context) {
            (Err((problem, help)), _) => {
                let (message, help) = (format!("{what} {problem}"), help.clone());
                self.error("bad-expression", place, message, &help);
            }
            (Ok(reads), Some(context)) => self.findings.extend(context.judge(what, reads, &place)),
            (Ok(_), None) => {}
        }
    }

    fn schema(&mut self, what: &str, schema: &serde_json::Value, place: Place) {
        let text = schema.to_string();
        if let Some(problem) = self.schemas.get(&text) {
            self.bad_schema(what, problem.clone(), place);
            return;
        }
        self.schema_bytes += text.len();
        let verdict = match self.schema_bytes > SCHEMAS_BYTES || self.patterns > PATTERNS {
            true => Err(format!(
                "the schemas of this definition are over {SCHEMAS_BYTES} bytes or {PATTERNS} patterns together"
            )),
            false => Schema::compile(schema).map(|schema| self.patterns += schema.patterns()),
        };
        self.schemas.insert(text, verdict.clone().err());
        self.bad_schema(what, verdict.err(), place);
    }

    fn bad_schema(&mut self, what: &str, problem: Option<String>, place: Place) {
        let Some(problem) = problem else { return };
        let message = format!("the schema of {what} can't be used: {problem}");
        let help = "fix it; references can only point inside the schema, and a pattern must stay small: limit lengths with \
                    `maxLength` instead of repeating classes of characters";
        self.error("bad-schema", place, message, help);
    }

    pub(super) fn error(&mut self, code: &'static str, place: Place, message: String, help: &str) {
        self.findings.push(Finding::error(code, place, message).help(help));
    }
}
