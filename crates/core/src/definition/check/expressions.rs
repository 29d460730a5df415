//! CEL in a definition: what is wrong with an expression, and what it reads.

use std::collections::BTreeSet;

use crate::definition::{Definition, machine, suggest};
use crate::expr::{
    EXPRESSION_BYTES, EXPRESSION_CHOICES, EXPRESSION_DEPTH, EXPRESSION_LOOPS, Expr, ExprError, GivenValues,
    Member, VARIABLES,
};
use crate::template;

/// Fields of one dotted word that are looked at.
const CEL_FIELDS: usize = 16;

/// What is wrong with an expression, and the remedy.
pub(super) type ExpressionProblem = (String, String);

/// Where an expression stands, which says what it can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExpressionUse {
    Condition,
    Output,
    /// What a transition or an action of a machine reads.
    Guard,
    /// What needs no event: timers, and the output of a machine.
    Context,
    /// What a machine's context begins with.
    Start,
    /// In the text of a request.
    Template,
}

impl ExpressionUse {
    fn variables(self) -> &'static [&'static str] {
        match self {
            // A condition that reads `results` is told why it cannot.
            ExpressionUse::Condition | ExpressionUse::Output => &VARIABLES,
            ExpressionUse::Guard => &machine::VARIABLES,
            ExpressionUse::Context => &["input", "context"],
            ExpressionUse::Start => &["input"],
            ExpressionUse::Template => &template::VARIABLES,
        }
    }

    /// How a machine's context is called here; empty where it cannot be read.
    fn context(self) -> &'static [&'static str] {
        match self {
            ExpressionUse::Guard | ExpressionUse::Context => &["context"],
            ExpressionUse::Template => &["input", "context"],
            ExpressionUse::Condition | ExpressionUse::Output | ExpressionUse::Start => &[],
        }
    }

    fn shown(self) -> &'static str {
        match self {
            ExpressionUse::Condition => "`input` and `events`",
            ExpressionUse::Output => "`input`, `events` and `results`",
            ExpressionUse::Guard => "`input`, `context`, `payload`, `event`, `user`, `role` and `roles`",
            ExpressionUse::Context => "`input` and `context`",
            ExpressionUse::Start => "`input`",
            ExpressionUse::Template => "`input`, `run` and `step`",
        }
    }
}

/// What is wrong with an expression, or what it reads of a machine's context.
pub(super) type Verdict = Result<Vec<Member>, ExpressionProblem>;

/// Judges an expression.
pub(super) fn judge(text: &str, role: ExpressionUse) -> Verdict {
    let expr = match Expr::parse(text) {
        Ok(expr) => expr,
        Err(ExprError::TooComplex) => {
            let help = format!(
                "the limits are {EXPRESSION_BYTES} bytes, {EXPRESSION_DEPTH} open brackets and {EXPRESSION_CHOICES} '?'; compute it in a step instead"
            );
            return Err((ExprError::TooComplex.to_string(), help));
        }
        Err(ExprError::Syntax(problem)) => {
            let help = match role {
                ExpressionUse::Template => "write CEL between `${` and `}`, for example: ${input.order.id}",
                ExpressionUse::Guard => "write CEL, for example: context.amount < 1000 && payload.approved",
                ExpressionUse::Context => "write CEL, for example: context.amount",
                _ => "write CEL, for example: input.total > 0 && input.country == \"PT\"",
            };
            return Err((format!("isn't valid CEL: {}", in_short(&problem)), help.to_owned()));
        }
    };
    if expr.loops() > EXPRESSION_LOOPS {
        let help = format!(
            "`all`, `exists`, `map` and the like can be nested up to {EXPRESSION_LOOPS} deep; compute it in a step instead"
        );
        return Err((format!("is too costly: it nests {} macros", expr.loops()), help));
    }
    if let Some(unknown) = expr.unknown_variables(role.variables()).first() {
        let help = match suggest::nearest(unknown, role.variables().iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it can read {}", role.shown()),
        };
        return Err((format!("reads `{unknown}`, which isn't a variable"), help));
    }
    if role == ExpressionUse::Condition && expr.reads().results {
        let help = "read `events` instead: let the other step emit its result with `returns`";
        return Err(("reads `results`, which only `output` can do".to_owned(), help.to_owned()));
    }
    Ok(expr.members_of(role.context()))
}

/// What is said of an expression that is one too many.
pub(super) fn too_many() -> (String, String) {
    let problem = "is one too many: together, the expressions of this definition take too long to parse";
    (problem.to_owned(), "split the definition, or compute some of it in steps".to_owned())
}

/// Whether a condition is false whatever the run: it reads nothing and yields false.
pub(super) fn never_holds(condition: Option<&str>) -> bool {
    let Some(condition) = condition.filter(|text| text.len() < 64) else {
        return false;
    };
    // Cheaper than parsing: an expression that reads the run names one of its variables.
    if VARIABLES.iter().chain(&machine::VARIABLES).any(|variable| condition.contains(variable)) {
        return false;
    }
    Expr::parse(condition).is_ok_and(|expr| {
        expr.unknown_variables(&[]).is_empty() && expr.test(&GivenValues::default()) == Ok(false)
    })
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

/// CEL's message without its list of every token that could have stood there.
fn in_short(problem: &str) -> &str {
    match problem.split(" expecting ").next().unwrap_or(problem) {
        text if text.contains("<EOF>") => "it ends too early",
        text => text.strip_prefix("Syntax error: ").unwrap_or(text),
    }
}
