//! What people and machines see: tables, JSON, colours, durations.
//!
//! stdout carries answers, stderr everything else. Text that came from users, programs or a server is shown without its
//! control characters, so that nothing stored in a run can play with a terminal: whatever is printed passes through
//! [`tame`], which lets only our own colours through.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use anstream::ColorChoice;
use comfy_table::{ContentArrangement, Table, presets};
use flowline::core::{Status, Time};
use serde::Serialize;

use crate::failure::CliError;
use crate::log;
use crate::settings::Color;

pub const RED: &str = "\x1b[31m";
pub const GREEN: &str = "\x1b[32m";
pub const YELLOW: &str = "\x1b[33m";
pub const CYAN: &str = "\x1b[36m";
pub const BOLD: &str = "\x1b[1m";
pub const DIM: &str = "\x1b[2m";
pub const RESET: &str = "\x1b[0m";

static COLOR: OnceLock<Color> = OnceLock::new();

/// Decides on colours, once.
pub fn set_color(color: Color) {
    let choice = match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::AlwaysAnsi,
        Color::Never => ColorChoice::Never,
    };
    choice.write_global();
    let _ = COLOR.set(color);
}

/// Whether stderr shows colours, for text that is drawn by others.
pub fn stderr_has_color() -> bool {
    match COLOR.get().unwrap_or(&Color::Auto) {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        }
    }
}

/// A line on stdout.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", tame(text))
}

/// A line on stderr. Where nobody listens there, nothing is lost.
pub fn note(text: &str) {
    drawing(&tame(text));
}

/// A line on stderr for a person who must see it: past the log, whose level or collector could lose it.
pub fn notice(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{}", tame(text));
}

/// As [`note`], for what a library has drawn with colours of its own: diagnostics, which have no control characters of what
/// they show.
pub fn drawing(text: &str) {
    if log::is_json() {
        tracing::info!("{}", anstream::adapter::strip_str(text));
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Why a command did not do what it was asked, on stderr; whatever else is logged, this is.
pub fn fault(message: &str, help: Option<&str>) {
    if log::is_json() {
        tracing::error!(help, "{message}");
        return;
    }
    // A server can put anything into its refusals; colours are for our own words.
    note(&format!("{RED}{BOLD}error{RESET}: {}", without(message, &[])));
    if let Some(help) = help {
        note(&format!("{CYAN}help{RESET}: {}", without(help, &[])));
    }
}

/// One JSON value on a line of stdout.
pub fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value)
        .map_err(|error| CliError::environment(format!("can't write JSON: {error}")))?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// A table without lines, its head in capitals.
pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    let mut lines = text.lines().map(str::trim_end);
    if let Some(head) = lines.next() {
        line(&format!("{BOLD}{head}{RESET}"))?;
    }
    lines.try_for_each(line)
}

/// Text from elsewhere, fit for a terminal: control characters become visible, line ends spaces.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(unfit) {
        return Cow::Borrowed(text);
    }
    let show = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if unfit(c) => '\u{fffd}',
        c => c,
    };
    Cow::Owned(text.chars().map(show).collect())
}

/// What is about to be printed, with no control characters but line ends, tabs and our own colours.
pub fn tame(text: &str) -> Cow<'_, str> {
    without(text, &[RED, GREEN, YELLOW, CYAN, BOLD, DIM, RESET])
}

/// Makes control characters visible, except for line ends, tabs and these sequences.
fn without<'a>(text: &'a str, except: &[&str]) -> Cow<'a, str> {
    let plain = |c: char| !unfit(c) || matches!(c, '\n' | '\t');
    if text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(c) = rest.chars().next() {
        let known = except.iter().find(|known| rest.starts_with(**known));
        let length = known.map_or(c.len_utf8(), |known| known.len());
        match known.is_some() || plain(c) {
            true => shown.push_str(&rest[..length]),
            false => shown.push('\u{fffd}'),
        }
        rest = &rest[length..];
    }
    Cow::Owned(shown)
}

/// Control characters, and those that turn the direction of writing.
fn unfit(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The beginning of a text, marked where it was cut.
pub fn clip(text: &str, chars: usize) -> String {
    let text = clean(text);
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into_owned(),
    }
}

pub fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let seconds = duration.as_secs();
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", seconds, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600_000..86_400_000 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

pub fn millis(ms: u64) -> String {
    duration(Duration::from_millis(ms))
}

/// `4 steps`, `1 step`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// A date for lists: UTC, to the second.
pub fn date(time: Time) -> String {
    let text = time.to_string();
    match text.split_once('.') {
        Some((date, _)) => date.replacen('T', " ", 1),
        None => text,
    }
}

pub fn status(status: Status) -> String {
    let color = match status {
        Status::Completed => GREEN,
        Status::Failed | Status::Cancelled => RED,
        Status::Waiting | Status::Paused => YELLOW,
        Status::Running => CYAN,
    };
    format!("{color}{status}{RESET}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_naturally() {
        let shown = [999, 1_000, 1_250, 61_000, 3_661_000, 90_000_000].map(millis);
        assert_eq!(shown, ["999 ms", "1.0 s", "1.2 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn stored_text_cannot_play_with_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\nc"), "a\u{fffd}[31mb c");
        assert_eq!(clean("a\u{202e}b"), "a\u{fffd}b");
        assert_eq!(clip("abcdef", 3), "abc…");
    }
}
