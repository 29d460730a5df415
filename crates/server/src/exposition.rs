//! The text format of Prometheus (0.0.4), written by hand: a family is three kinds of lines, and the counters are already our
//! own atomics, so a metrics library would only copy them into its registry.

use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use flowline::meters::{BOUNDS, Histogram};

/// The media type of the format.
pub const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels of a sample, beside the instance.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page of metrics. Every sample is labelled with the instance.
#[derive(Debug)]
pub struct Exposition {
    text: String,
    instance: String,
}

impl Exposition {
    pub fn new(instance: &str) -> Exposition {
        Exposition { text: String::with_capacity(16 << 10), instance: escape(instance) }
    }

    pub fn counter(&mut self, name: &str, help: &str, value: &AtomicU64) {
        self.family(name, "counter", help, &[(&[], value.load(Ordering::Relaxed))]);
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help, &[(&[], value)]);
    }

    /// Adds a family with its samples, unless there are none.
    pub fn family<V: Display>(&mut self, name: &str, kind: &str, help: &str, samples: &[(Labels<'_>, V)]) {
        if samples.is_empty() {
            return;
        }
        self.head(name, kind, help);
        for (labels, value) in samples {
            self.sample(name, labels, value);
        }
    }

    pub fn histogram(&mut self, name: &str, help: &str, samples: &[(Labels<'_>, &Histogram)]) {
        if samples.is_empty() {
            return;
        }
        self.head(name, "histogram", help);
        for (labels, histogram) in samples {
            let counts = histogram.cumulative();
            let bounds = BOUNDS.iter().map(|micros| (*micros as f64 / 1e6).to_string());
            for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
                let labels = [*labels, &[("le", bound.as_str())]].concat();
                self.sample(&format!("{name}_bucket"), &labels, count);
            }
            self.sample(&format!("{name}_sum"), labels, histogram.sum().as_secs_f64());
            self.sample(&format!("{name}_count"), labels, counts[BOUNDS.len()]);
        }
    }

    pub fn finish(self) -> String {
        self.text
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let _ = write!(self.text, "{name}{{instance_id=\"{}\"", self.instance);
        for (label, value) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escape(value));
        }
        let _ = writeln!(self.text, "}} {value}");
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_family_is_a_head_and_its_samples() {
        let mut page = Exposition::new("a\"b");
        page.family("f_total", "counter", "What.", &[(&[("queue", "x\\y\n")], 3)]);
        page.family::<u64>("nothing", "gauge", "None.", &[]);
        assert_eq!(
            page.finish(),
            "# HELP f_total What.\n# TYPE f_total counter\n\
             f_total{instance_id=\"a\\\"b\",queue=\"x\\\\y\\n\"} 3\n"
        );
    }

    #[test]
    fn a_histogram_ends_in_all_that_it_counted() {
        let (mut page, histogram) = (Exposition::new("i"), Histogram::default());
        histogram.observe(Duration::from_millis(2));
        histogram.observe(Duration::from_secs(999));
        page.histogram("t_seconds", "Time.", &[(&[], &histogram)]);
        let text = page.finish();
        for line in [
            "t_seconds_bucket{instance_id=\"i\",le=\"0.001\"} 0",
            "t_seconds_bucket{instance_id=\"i\",le=\"0.0025\"} 1",
            "t_seconds_bucket{instance_id=\"i\",le=\"+Inf\"} 2",
            "t_seconds_sum{instance_id=\"i\"} 999.002",
            "t_seconds_count{instance_id=\"i\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
