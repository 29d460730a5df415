//! What is wrong with a definition, where, and what to do about it.
//!
//! A [`Diagnostic`] names the thing and the remedy; its span is the place in the file, if there is one. [`Diagnostics`] keeps
//! the text beside them and shows them as compact lines (`Display`), with source lines ([`Diagnostics::render`]) or as
//! JSON ([`Diagnostics::to_json`]).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use flowline_types::words;
use serde::{Serialize, Serializer};

/// Diagnostics shown with source lines; the rest are only counted.
const RENDERED: usize = 50;

words! {
    /// How bad it is.
    pub enum Severity {
        /// The definition cannot run.
        Error = "error",
        /// It can run, but probably not as meant.
        Warning = "warning",
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Stable, for machines and for looking it up: `unknown-event`.
    pub code: &'static str,
    pub message: String,
    /// Path in the definition (`steps.ship.subscribes[1]`); empty for the whole.
    pub place: String,
    /// Bytes of the text; none for a definition built in Rust.
    pub span: Option<Range<usize>>,
    pub help: Option<String>,
}

/// All that is wrong with one definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    /// The file's name as the user gave it, or the flow's name.
    pub file: String,
    /// The file's text; empty for a definition built in Rust.
    pub text: Arc<str>,
    pub items: Vec<Diagnostic>,
}

impl Diagnostics {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn has_errors(&self) -> bool {
        self.items.iter().any(|item| item.severity == Severity::Error)
    }

    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter().filter(|item| item.severity == Severity::Error)
    }

    /// Line and column of a diagnostic, both from 1, the column in characters.
    pub fn position(&self, item: &Diagnostic) -> Option<(usize, usize)> {
        let start = floor(&self.text, item.span.as_ref()?.start);
        let before = &self.text[..start];
        let line = before.matches('\n').count() + 1;
        let column = before[before.rfind('\n').map_or(0, |n| n + 1)..].chars().count() + 1;
        Some((line, column))
    }

    /// Every diagnostic with its source line and remedy, separated by blank lines.
    pub fn render(&self, color: bool) -> String {
        let mut blocks: Vec<String> =
            self.items.iter().take(RENDERED).map(|item| self.block(item, color)).collect();
        if self.items.len() > RENDERED {
            blocks.push(format!("{} more aren't shown", self.items.len() - RENDERED));
        }
        blocks.join("\n\n") + if blocks.is_empty() { "" } else { "\n" }
    }

    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn row<'a>(&self, item: &'a Diagnostic) -> Row<'a> {
        let (line, column) = self.position(item).unzip();
        Row {
            severity: item.severity,
            code: item.code,
            message: &item.message,
            line,
            column,
            place: &item.place,
            help: item.help.as_deref(),
        }
    }

    fn block(&self, item: &Diagnostic, color: bool) -> String {
        let level = match item.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let renderer =
            if color { Renderer::styled() } else { Renderer::plain() }.decor_style(DecorStyle::Ascii);
        let title = level.primary_title(item.message.as_str()).id(item.code);
        let help = item.help.as_deref().map(|help| Level::HELP.message(help));
        let Some(span) = &item.span else {
            let place = if item.place.is_empty() {
                self.file.clone()
            } else {
                format!("{}: {}", self.file, item.place)
            };
            let group = title.element(Level::NOTE.message(format!("at {place}"))).elements(help);
            return renderer.render(&[group]);
        };
        let (excerpt, line, within) = self.excerpt(span);
        let snippet = Snippet::source(excerpt)
            .line_start(line)
            .path(self.file.as_str())
            .annotation(AnnotationKind::Primary.span(within));
        renderer.render(&[title.element(snippet).elements(help)])
    }

    /// The line where a span starts, its number, and the part of the span that lies on it.
    fn excerpt(&self, span: &Range<usize>) -> (&str, usize, Range<usize>) {
        let text = &*self.text;
        let start = floor(text, span.start);
        let from = text[..start].rfind('\n').map_or(0, |n| n + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |n| start + n);
        let end = floor(text, span.end).clamp(start, line_end);
        let line = text[..from].matches('\n').count() + 1;
        (&text[from..line_end], line, start - from..end - from)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.items.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            f.write_str(&self.file)?;
            match self.position(item) {
                Some((line, column)) => write!(f, ":{line}:{column}: ")?,
                None if item.place.is_empty() => f.write_str(": ")?,
                None => write!(f, ": {}: ", item.place)?,
            }
            write!(f, "{}[{}]: {}", item.severity.as_str(), item.code, item.message)?;
            if let Some(help) = &item.help {
                write!(f, "\n  help: {help}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

impl Serialize for Diagnostics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.items.iter().map(|item| self.row(item)))
    }
}

/// A diagnostic as `--json` shows it: with line and column instead of bytes.
#[derive(Serialize)]
struct Row<'a> {
    severity: Severity,
    code: &'static str,
    message: &'a str,
    line: Option<usize>,
    column: Option<usize>,
    place: &'a str,
    help: Option<&'a str>,
}

/// The nearest start of a character at or before `at`.
pub(crate) fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(span: Option<Range<usize>>) -> Diagnostics {
        let item = Diagnostic {
            severity: Severity::Error,
            code: "unknown-event",
            message: "step \"ship\" subscribes to \"order.payed\", which no step emits".to_owned(),
            place: "steps.ship.subscribes[0]".to_owned(),
            span,
            help: Some("did you mean \"order.paid\"?".to_owned()),
        };
        let text = "flow: ä\nsteps:\n  ship: {subscribes: [order.payed]}\n";
        Diagnostics { file: "order.yaml".to_owned(), text: text.into(), items: vec![item] }
    }

    #[test]
    fn a_line_names_file_line_column_code_and_remedy() {
        assert_eq!(
            sample(Some(43..54)).to_string(),
            "order.yaml:3:28: error[unknown-event]: step \"ship\" subscribes to \"order.payed\", which no step emits\n  \
             help: did you mean \"order.paid\"?"
        );
        assert!(sample(None).to_string().starts_with("order.yaml: steps.ship.subscribes[0]: error"));
    }

    #[test]
    fn a_span_outside_the_text_or_inside_a_character_does_no_harm() {
        for span in [7..8, 0..9999, 9999..9999, Range { start: 54, end: 43 }] {
            let diagnostics = sample(Some(span));
            assert!(diagnostics.render(true).contains("did you mean"));
            assert!(diagnostics.to_json()[0]["line"].is_number());
        }
    }
}
