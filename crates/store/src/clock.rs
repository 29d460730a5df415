//! The clock of an embedded store. Servers have their own; here it can be turned by hand, so that tests need no sleep.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flowline_core::Time;

/// Where an embedded store reads the time.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`] turns it.
    pub fn manual(start: Time) -> Clock {
        Clock(Source::Manual(Arc::new(AtomicI64::new(start.millis()))))
    }

    pub fn now(&self) -> Time {
        match &self.0 {
            Source::System => {
                // A clock before 1970 is as good as 1970: nothing but dates depends on it.
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Time::from_millis(since.as_millis() as i64)
            }
            Source::Manual(ms) => Time::from_millis(ms.load(Ordering::SeqCst)),
        }
    }

    /// Turns a manual clock forward. Does nothing to the system's.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(ms) = &self.0 {
            ms.fetch_add(by.as_millis() as i64, Ordering::SeqCst);
        }
    }

    /// Sets a manual clock, backwards too. Does nothing to the system's.
    pub fn set(&self, time: Time) {
        if let Source::Manual(ms) = &self.0 {
            ms.store(time.millis(), Ordering::SeqCst);
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::System => f.write_str("Clock::system"),
            Source::Manual(_) => write!(f, "Clock::manual({})", self.now()),
        }
    }
}
