//! The verbs of a move.

use async_trait::async_trait;
use flowline_core::Tenant;
use flowline_store::{CommitError, Filling, Restored, StoreError, Transfer};

use crate::SqliteStore;
use crate::write::Writer;

#[async_trait]
impl Transfer for SqliteStore {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        let now = self.clock.now();
        self.readers.read(move |reader| reader.tenants(now)).await
    }

    async fn collections(&self) -> Result<Vec<String>, StoreError> {
        let now = self.clock.now();
        self.readers.read(move |reader| reader.collections(now)).await
    }

    async fn begin_filling(&self) -> Result<Filling, StoreError> {
        self.writer()?.ask(|writer| writer.begin_filling()).await
    }

    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError> {
        let forget = self.latest.forget();
        let restore = move |writer: &mut Writer<'_>| {
            let _ends_with_this = &forget;
            writer.restore(&parts)
        };
        self.writer()?.ask(restore).await?
    }

    async fn end_filling(&self) -> Result<(), StoreError> {
        self.writer()?.ask(|writer| writer.end_filling()).await
    }
}
