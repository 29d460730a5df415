//! Each part of a definition on its own: names, runners, expressions, schemas, numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Finding;
use crate::definition::place::Place;
use crate::definition::{
    Cleanup, Definition, HttpRequest, METHODS, Retry, Runner, StepDefinition, Subscribes, suggest,
};
use crate::expr::{Expr, Scope, VARIABLES};
use crate::ids::check_name;
use crate::limits;
use crate::schema::Schema;

// CEL's parser recurses and takes much of a 2 MiB stack per bracket when it is not optimized. What needs more than this
// belongs in a step.
/// An expression, in bytes.
const EXPRESSION_BYTES: usize = 2 << 10;
/// Brackets open at once in an expression.
const EXPRESSION_DEPTH: usize = 8;
/// Conditional operators (`?:`), which nest without brackets.
const EXPRESSION_CHOICES: usize = 16;

pub(super) fn check(definition: &Definition) -> Vec<Finding> {
    let mut parts = Parts::default();
    parts.flow(definition);
    for step in &definition.steps {
        parts.step(step, definition);
    }
    parts.duplicate_steps(definition);
    parts.findings
}

/// Whether a step's condition is false whatever the run: it reads nothing and yields false.
pub(super) fn never_holds(step: &StepDefinition) -> bool {
    let Some(condition) = step.condition.as_deref().filter(|text| text.len() < 64 && !too_complex(text))
    else {
        return false;
    };
    // Cheaper than parsing: an expression that reads the run names one of its variables.
    if VARIABLES.iter().any(|variable| condition.contains(variable)) {
        return false;
    }
    Expr::parse(condition)
        .is_ok_and(|expr| expr.unknown_variables().is_empty() && expr.test(&Scope::default()) == Ok(false))
}

/// Event names that expressions may read, generously: every dotted word and every beginning of one.
pub(super) fn events_read(definition: &Definition) -> BTreeSet<&str> {
    let conditions = definition.steps.iter().filter_map(|step| step.condition.as_deref());
    let mut read = BTreeSet::new();
    for text in conditions.chain(definition.output.as_deref()).filter(|text| text.contains("events")) {
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
            let word = word.strip_prefix("events.").unwrap_or(word);
            read.insert(word);
            read.extend(word.match_indices('.').take(CEL_FIELDS).map(|(at, _)| &word[..at]));
        }
    }
    read
}

/// Fields of one dotted word that are looked at.
const CEL_FIELDS: usize = 16;

/// What is wrong with an expression, and the remedy.
type Problem = (String, String);

#[derive(Default)]
struct Parts {
    findings: Vec<Finding>,
    /// Verdicts on expressions and schemas seen before: generated flows repeat them.
    expressions: BTreeMap<(String, bool), Option<Problem>>,
    schemas: BTreeMap<String, Option<String>>,
}

impl Parts {
    fn flow(&mut self, definition: &Definition) {
        let root = Place::root();
        self.name("flow", &definition.flow, root.key("flow"));
        if definition.steps.is_empty() {
            let message = format!("flow {:?} has no steps", definition.flow);
            self.error("no-steps", root.key("steps"), message, "add at least one step under `steps`");
        }
        if definition.steps.len() > limits::STEPS {
            let message = format!(
                "flow {:?} has {} steps; the limit is {}",
                definition.flow,
                definition.steps.len(),
                limits::STEPS
            );
            self.error("too-many-steps", root.key("steps"), message, "split it into several flows");
        }
        if let Some(input) = &definition.input {
            self.schema("the input of the flow", input, root.key("input"));
        }
        for (event, schema) in &definition.accepts {
            let place = root.key("accepts").key(event);
            self.event(event, place.clone());
            if let Some(schema) = schema {
                self.schema(&format!("the accepted event {event:?}"), schema, place);
            }
        }
        if let Some(output) = &definition.output {
            self.expression("the output of the flow", output, true, root.key("output"));
        }
        self.timeout("the flow", definition.timeout, root.key("timeout"));
        if let Cleanup::Ttl(ttl) = definition.state {
            self.whole_milliseconds("the state", ttl, root.key("state").key("ttl"));
        }
        if definition.state == Cleanup::Ttl(Duration::ZERO) {
            let help = "give a time to live such as 7d, or use on-complete";
            self.error(
                "zero-duration",
                root.key("state").key("ttl"),
                "the ttl of the state is zero".to_owned(),
                help,
            );
        }
    }

    fn step(&mut self, step: &StepDefinition, definition: &Definition) {
        let place = Place::step(&step.name);
        let who = format!("step {:?}", step.name);
        self.name("step", &step.name, place.clone());
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
            self.expression(&format!("the condition of {who}"), condition, false, place.key("if"));
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
                    self.error(
                        "empty-command",
                        at,
                        message,
                        "give the program and its arguments: [./charge.sh, --fast]",
                    );
                } else if let Some(index) = argv.iter().position(|argument| argument.contains('\0')) {
                    let message = format!("an argument of the command of {who} has a NUL character");
                    self.error(
                        "bad-command",
                        at.index(index),
                        message,
                        "no program can be given one; remove it",
                    );
                }
            }
            Runner::Http(request) => self.http(who, request, &place.key("http")),
            Runner::Worker(queue) => {
                self.name("queue", queue, place.key("worker"));
                if step.queue != *queue {
                    let message =
                        format!("{who} is for workers of queue {queue:?} but has queue {:?}", step.queue);
                    self.error(
                        "queue-of-worker",
                        place.key("queue"),
                        message,
                        "`worker` names the queue; remove `queue`",
                    );
                }
                return;
            }
            Runner::Function(name) => self.name("function", name, place.key("function")),
        }
        self.name("queue", &step.queue, place.key("queue"));
    }

    fn http(&mut self, who: &str, request: &HttpRequest, place: &Place) {
        let method = request.method.to_ascii_lowercase();
        if !METHODS.contains(&method.as_str()) || request.method != method.to_ascii_uppercase() {
            let message = format!("{who} has the HTTP method {:?}", request.method);
            self.error("bad-http", place.clone(), message, "use GET, POST, PUT, PATCH or DELETE");
        }
        let rest = request.url.strip_prefix("https://").or(request.url.strip_prefix("http://"));
        let fine = |rest: &str| {
            !rest.starts_with(['/', '?', '#'])
                && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        if !rest.is_some_and(|rest| !rest.is_empty() && fine(rest)) {
            let message = format!("{:?} is not a URL that {who} can call", request.url);
            self.error(
                "bad-url",
                place.key(&method),
                message,
                "give a whole URL such as https://stock.example/reserve",
            );
        }
        for (name, value) in &request.headers {
            let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            if name.is_empty()
                || !name.bytes().all(token)
                || value.contains(|c: char| c.is_control() && c != '\t')
            {
                let message = format!("{who} has a header {name:?} that HTTP does not allow");
                let help = "names are letters, digits and '-'; values are one line";
                self.error("bad-http", place.key("headers").key(name), message, help);
            }
        }
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
            let message = format!("{who} emits {event:?}, which the flow also accepts from outside");
            let help = "the first one wins, so one of them would be lost; give them different names";
            self.error("accepted-and-emitted", place.clone(), message, help);
        }
    }

    fn retry(&mut self, who: &str, retry: &Retry, place: &Place) {
        if retry.attempts == 0 || retry.attempts > limits::ATTEMPTS {
            let message = format!("{who} has {} attempts", retry.attempts);
            let help =
                format!("attempts are counted with the first try: 1 (no retry) to {}", limits::ATTEMPTS);
            self.error("bad-attempts", place.key("attempts"), message, &help);
        }
        for (index, code) in retry.only.iter().enumerate().filter(|(_, code)| retry.except.contains(code)) {
            let message = format!("{who} retries only {code:?} and also never {code:?}");
            self.error(
                "retry-conflict",
                place.key("only").index(index),
                message,
                "remove it from `only` or from `except`",
            );
        }
        self.whole_milliseconds(who, retry.delay, place.key("delay"));
        self.whole_milliseconds(who, retry.max_delay, place.key("max_delay"));
        if retry.delay > retry.max_delay {
            let message = format!("{who} has a retry delay above its max_delay, which caps it");
            let help = "raise `max_delay` or lower `delay`";
            self.findings.push(Finding::warning("capped-delay", place.key("delay"), message).help(help));
        }
    }

    fn timeout(&mut self, who: &str, timeout: Option<Duration>, place: Place) {
        if timeout == Some(Duration::ZERO) {
            let message = format!("the timeout of {who} is zero, so it could never finish");
            self.error(
                "zero-duration",
                place,
                message,
                "give a duration such as 5m, or remove it for no limit",
            );
        }
    }

    /// Only code can ask for less than a millisecond; the file format, and so the stored definition, cannot say it.
    fn whole_milliseconds(&mut self, who: &str, duration: Duration, place: Place) {
        if duration.subsec_nanos() % 1_000_000 != 0 {
            let message = format!("{who} has a duration of {duration:?}");
            self.error("bad-duration", place, message, "durations are whole milliseconds");
        }
    }

    fn duplicate_steps(&mut self, definition: &Definition) {
        let mut seen = BTreeSet::new();
        for step in definition.steps.iter().filter(|step| !seen.insert(step.name.as_str())) {
            let message = format!("there are two steps named {:?}", step.name);
            self.error("duplicate-step", Place::step(&step.name), message, "rename one of them");
        }
    }

    fn event(&mut self, name: &str, place: Place) {
        if name.starts_with("step:") {
            let message =
                format!("an event cannot be named {name:?}: \"step:\" is how a subscription names a step");
            return self.error("bad-name", place, message, "drop the \"step:\"");
        }
        self.name("event", name, place);
    }

    fn name(&mut self, what: &'static str, name: &str, place: Place) {
        let Err(error) = check_name(what, name) else { return };
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let instead: String =
            name.chars().take(limits::NAME_BYTES).map(|c| if allowed(c) { c } else { '-' }).collect();
        let instead = instead.trim_matches(['-', '.', '_']);
        let help = match instead {
            "" => "give it another name".to_owned(),
            instead => format!("{instead:?} would do"),
        };
        self.error("bad-name", place, error.to_string(), &help);
    }

    fn expression(&mut self, what: &str, text: &str, is_output: bool, place: Place) {
        let key = (text.to_owned(), is_output);
        let verdict =
            self.expressions.entry(key).or_insert_with(|| judge_expression(text, is_output)).clone();
        if let Some((problem, help)) = verdict {
            self.error("bad-expression", place, format!("{what} {problem}"), &help);
        }
    }

    fn schema(&mut self, what: &str, schema: &serde_json::Value, place: Place) {
        let verdict = self.schemas.entry(schema.to_string()).or_insert_with(|| Schema::compile(schema).err());
        if let Some(problem) = verdict {
            let message = format!("the schema of {what} is not a JSON Schema: {problem}");
            self.error(
                "bad-schema",
                place,
                message,
                "correct it; references can only point inside the schema",
            );
        }
    }

    fn error(&mut self, code: &'static str, place: Place, message: String, help: &str) {
        self.findings.push(Finding::error(code, place, message).help(help));
    }
}

fn judge_expression(text: &str, is_output: bool) -> Option<Problem> {
    if too_complex(text) {
        let help = format!(
            "at most {EXPRESSION_BYTES} bytes, {EXPRESSION_DEPTH} open brackets and {EXPRESSION_CHOICES} '?'; compute it in a step"
        );
        return Some(("is too long or too deep".to_owned(), help));
    }
    let expr = match Expr::parse(text) {
        Ok(expr) => expr,
        Err(problem) => {
            let help = "write CEL, for example: input.total > 0 && input.country == \"PT\"";
            return Some((format!("does not parse: {}", in_short(&problem)), help.to_owned()));
        }
    };
    if let Some(unknown) = expr.unknown_variables().first() {
        let known = if is_output { "`input`, `events` and `results`" } else { "`input` and `events`" };
        let help = match suggest::nearest(unknown, VARIABLES) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it can read {known}"),
        };
        return Some((format!("reads `{unknown}`, which is not a variable"), help));
    }
    if !is_output && expr.reads().results {
        let help = "read `events` instead: let the other step emit its result with `returns`";
        return Some(("reads `results`, which only `output` can".to_owned(), help.to_owned()));
    }
    None
}

/// CEL's message without its list of every token that could have stood there.
fn in_short(problem: &str) -> &str {
    match problem.split(" expecting ").next().unwrap_or(problem) {
        text if text.contains("<EOF>") => "it ends too early",
        text => text.strip_prefix("Syntax error: ").unwrap_or(text),
    }
}

/// Whether a recursive parser could go too deep: by brackets, by choices or by a long chain of operators.
fn too_complex(text: &str) -> bool {
    let (mut depth, mut deepest) = (0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    let choices = text.matches('?').count();
    text.len() > EXPRESSION_BYTES || deepest > EXPRESSION_DEPTH || choices > EXPRESSION_CHOICES
}
