//! A sign that an engine leaves in a shared store to show that it's there, even when idle.
//!
//! It's a hint for commands that need the store alone, such as a move. It's removed when the engine stops, and expires after
//! a crash. A SQLite file needs none, because its engine locks it.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::{Json, Time};
use flowline_store::{DocumentQuery, NewDocument, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const COLLECTION: &str = "engines";
/// How long after its last word an engine counts as there.
const TTL: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_secs(10);

/// An engine that works on the store, or died a moment ago.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PresentEngine {
    pub instance: String,
    pub started_at: Time,
    /// When it said so last.
    pub seen_at: Time,
}

/// The engines that work on a store, by name.
pub async fn engines(store: &dyn Store) -> Result<Vec<PresentEngine>, StoreError> {
    let mut query = DocumentQuery { limit: flowline_store::query::MAX_PAGE, ..DocumentQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = store.documents(COLLECTION, query.clone()).await?;
        query.after = page.items.last().map(|last| last.id.clone());
        // What another build has written there still says that an engine is there.
        found.extend(page.items.into_iter().map(|sign| {
            sign.body.to().unwrap_or(PresentEngine {
                instance: sign.id,
                started_at: Time::default(),
                seen_at: Time::default(),
            })
        }));
        if !page.more {
            return Ok(found);
        }
    }
}

/// The sign of this engine, renewed until this is removed or dropped.
pub(crate) struct Sign {
    end: oneshot::Sender<()>,
    renewing: JoinHandle<()>,
}

impl Sign {
    /// Leaves a sign, before anything is done. That it can't be written keeps nobody from working.
    pub(crate) async fn leave(store: Arc<dyn Store>, instance: Arc<str>, started_at: Time) -> Sign {
        write(&*store, &instance, started_at).await;
        let (end, mut ended) = oneshot::channel();
        let renewing = tokio::spawn(async move {
            while tokio::time::timeout(EVERY, &mut ended).await.is_err() {
                write(&*store, &instance, started_at).await;
            }
            let _ = store.delete_document(COLLECTION, &instance).await;
        });
        Sign { end, renewing }
    }

    /// Takes it away: the engine has stopped.
    pub(crate) async fn remove(self) {
        drop(self.end);
        let _ = self.renewing.await;
    }
}

async fn write(store: &dyn Store, instance: &str, started_at: Time) {
    let Ok(seen_at) = store.now().await else { return };
    let sign = PresentEngine { instance: instance.to_owned(), started_at, seen_at };
    if let Ok(body) = Json::of(&sign) {
        let _ = store.put_document(NewDocument::new(COLLECTION, instance, body, Some(TTL))).await;
    }
}
