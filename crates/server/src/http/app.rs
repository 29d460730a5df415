//! What the handlers share.

use std::sync::Arc;

use flowline::Engine;

use super::live::LiveStreams;
use super::{access, cors, metrics, workers};

/// What the handlers that read share, or those that write. Cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<AppParts>);

#[derive(Debug)]
pub struct AppParts {
    engine: Engine,
    instance: Arc<InstanceParts>,
}

/// What all handlers share.
#[derive(Debug)]
pub struct InstanceParts {
    pub door: access::Door,
    /// Other origins whose web pages are allowed.
    pub origins: cors::Origins,
    /// Whether this server speaks TLS itself.
    pub encrypted: bool,
    pub live: LiveStreams,
    pub watched: metrics::Watched,
    pub workers: workers::WorkerSightings,
}

impl App {
    pub fn new(engine: Engine, instance: Arc<InstanceParts>) -> App {
        App(Arc::new(AppParts { engine, instance }))
    }

    /// The engine, past every check: for the checks themselves, and for what belongs to no tenant. What belongs to somebody
    /// is reached through [`super::visible`]; a test lists the files that may call this.
    pub fn unchecked(&self) -> &Engine {
        &self.0.engine
    }
}

impl std::ops::Deref for App {
    type Target = InstanceParts;
    fn deref(&self) -> &InstanceParts {
        &self.0.instance
    }
}
