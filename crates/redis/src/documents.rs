//! Documents. All of a collection live in one shard, which the collection's name tells.

use std::sync::Arc;

use flowline_core::{Json, Time};
use flowline_store::query::page_size;
use flowline_store::{Document, DocumentPage, DocumentQuery, Existing, NewDocument, Order, StoreError};

use crate::RedisStore;
use crate::answer::{number, text, texts};
use crate::args::ScriptArgs;
use crate::encode::millis;
use crate::names;
use crate::script;
use crate::shard::Shard;

impl RedisStore {
    /// The live document that it keeps; `None` if this one was written.
    pub(crate) async fn keep_document(&self, new: &NewDocument) -> Result<Option<Document>, StoreError> {
        let NewDocument { collection, id, body, ttl, existing } = new;
        let verb = match existing {
            Existing::Replace => "put",
            Existing::Keep => "create",
        };
        let mut args = ScriptArgs::new();
        args.text(verb).name(collection).text(id).text(body.get());
        match ttl {
            Some(ttl) => args.number(millis(*ttl)),
            None => args.text("-"),
        };
        self.one_document(collection, id, args).await
    }

    /// Calls a script that answers with a document or nothing.
    async fn one_document(
        &self,
        collection: &str,
        id: &str,
        args: ScriptArgs,
    ) -> Result<Option<Document>, StoreError> {
        let mut parts = self.home_of(collection).call(&script::DOCUMENT, [&args]).await?.rest.map(text);
        match (parts.next(), parts.next()) {
            (Some(till), Some(body)) => read(id.to_owned(), &till?, body?).map(Some),
            _ => Ok(None),
        }
    }

    /// A call looks at some hundred ids and gives about a mebibyte, so that it never keeps the server from others for long.
    pub(crate) async fn page_of_documents(
        &self,
        collection: &str,
        query: DocumentQuery,
    ) -> Result<DocumentPage, StoreError> {
        let limit = page_size(query.limit);
        if let Some(id) = &query.id {
            let mut args = ScriptArgs::new();
            args.text("get").name(collection).text(id);
            let found = self.one_document(collection, id, args).await?;
            return Ok(DocumentPage::of(found.into_iter().collect(), limit));
        }
        let way = match query.order {
            Order::Ascending => "up",
            Order::Descending => "down",
        };
        let (mut found, mut after) = (Vec::new(), query.after.unwrap_or_default());
        loop {
            let mut args = ScriptArgs::new();
            args.text("page").name(collection).text(way).text(&after).number(limit + 1 - found.len());
            let mut parts = self.home_of(collection).call(&script::DOCUMENT, [&args]).await?.rest.map(text);
            let more = parts.next().transpose()?.as_deref() == Some("1");
            after = parts.next().transpose()?.unwrap_or_default();
            while let (Some(id), Some(till), Some(body)) = (parts.next(), parts.next(), parts.next()) {
                found.push(read(id?, &till?, body?)?);
            }
            if !more || found.len() > limit {
                return Ok(DocumentPage::of(found, limit));
            }
        }
    }

    pub(crate) async fn drop_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        let mut args = ScriptArgs::new();
        args.text("delete").name(collection).text(id);
        let mut answer = self.home_of(collection).call(&script::DOCUMENT, [&args]).await?;
        Ok(text(answer.rest.next().unwrap_or_default())? == "1")
    }

    /// Collections that hold a live document, by name.
    pub(crate) async fn live_collections(&self) -> Result<Vec<String>, StoreError> {
        let mut live = Vec::new();
        for shard in &self.shards {
            let mut asked = redis::cmd("SMEMBERS");
            asked.arg(shard.key("docs"));
            for name in texts(shard.ask(&asked).await?)? {
                let collection = names::decode(&name)?;
                let first = DocumentQuery { limit: 1, ..DocumentQuery::default() };
                if !self.page_of_documents(&collection, first).await?.items.is_empty() {
                    live.push(collection);
                }
            }
        }
        live.sort();
        Ok(live)
    }

    /// The number of the shard that a collection lives in.
    pub(crate) fn home_number(&self, collection: &str) -> usize {
        self.shard_number(&names::encode(collection))
    }

    fn home_of(&self, collection: &str) -> &Arc<Shard> {
        &self.shards[self.home_number(collection)]
    }
}

fn read(id: String, till: &str, body: String) -> Result<Document, StoreError> {
    let expires = match till {
        "-" => None,
        ms => Some(Time::from_millis(number(ms)?)),
    };
    Ok(Document { id, body: Json::composed(body), expires })
}
