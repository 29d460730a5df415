//! Who did what, in order: told only when asked, so that a seed without trouble costs nothing.

use std::time::Duration;

/// The lines of a story, or nothing where nobody listens.
#[derive(Debug, Clone, Default)]
pub struct Story(Option<Vec<String>>);

impl Story {
    pub fn new(told: bool) -> Story {
        Story(told.then(Vec::new))
    }

    pub(crate) fn tell(&mut self, at: Duration, who: impl FnOnce() -> String, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            let seconds = format!("{:.3}s", at.as_secs_f64());
            lines.push(format!("t={seconds:<9} {:<11} {}", who(), what()));
        }
    }

    pub fn lines(&self) -> &[String] {
        self.0.as_deref().unwrap_or_default()
    }
}
