//! How a job runs: as a function in this process, a program, a request, or a call to the engine itself.

pub(crate) mod call;
#[cfg(feature = "command")]
pub mod command;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "command")]
mod message;
#[cfg(feature = "command")]
mod stray;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use flowline_core::definition::StepDefinition;
use flowline_core::{Json, Tenant};

use crate::step::{Step, StepError};

/// The future of one attempt.
pub type StepFuture = Pin<Box<dyn Future<Output = Result<Json, StepError>> + Send>>;

/// Something that can run attempts. A function will do; register it with
/// [`EngineBuilder::runner`](crate::EngineBuilder::runner) under what it can run.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use flowline::core::Json;
/// use flowline::runner::StepFuture;
/// use flowline::{Engine, Step};
///
/// let echo = |_: Step, input: Json| -> StepFuture { Box::pin(async move { Ok(input) }) };
/// let engine = Engine::open("flowline.db").runner("function:echo", Arc::new(echo)).start().await?;
/// # Ok(())
/// # }
/// ```
pub trait Runner: Send + Sync + 'static {
    /// Starts an attempt. Dropping the future stops it.
    fn run(&self, step: Step, input: Json) -> StepFuture;

    /// Why it wouldn't run a step of this tenant, as far as the definition shows.
    fn check(&self, _tenant: &Tenant, _step: &StepDefinition) -> Result<(), StepError> {
        Ok(())
    }
}

impl<F> Runner for F
where
    F: Fn(Step, Json) -> StepFuture + Send + Sync + 'static,
{
    fn run(&self, step: Step, input: Json) -> StepFuture {
        self(step, input)
    }
}

/// The runners of an instance by what they can run (`command`, `http`, `function:NAME`).
#[derive(Default)]
pub struct Runners {
    by_need: HashMap<Arc<str>, Arc<dyn Runner>>,
    needs: Vec<Arc<str>>,
}

impl Runners {
    pub fn add(&mut self, need: &str, runner: Arc<dyn Runner>) {
        let need: Arc<str> = need.into();
        if self.by_need.insert(need.clone(), runner).is_none() {
            self.needs.push(need);
        }
    }

    pub fn needs(&self) -> &[Arc<str>] {
        &self.needs
    }

    pub fn get(&self, need: &str) -> Option<Arc<dyn Runner>> {
        self.by_need.get(need).cloned()
    }
}

impl fmt::Debug for Runners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runners").field(&self.needs).finish()
    }
}
