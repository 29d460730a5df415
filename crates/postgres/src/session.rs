//! One connection, with the settings and prepared statements that this adapter works with.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use flowline_store::StoreError;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, SimpleQueryMessage, Statement};

use crate::fault::PgFault;
use crate::pooler;
use crate::target::ServerTarget;
use crate::tls;

/// Nothing that this adapter asks takes longer on a healthy server.
const STATEMENT: Duration = Duration::from_millis(3_500);
/// Beyond the server's own limit: it has gone silent. Callers are told within five seconds.
pub(crate) const SILENT: Duration = Duration::from_secs(4);
/// The oldest server whose SQL is used here.
const OLDEST: i32 = 15;

/// What a statement is given.
pub(crate) type SqlParams<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A connection. It closes when this goes; an open transaction is then rolled back by the server.
pub(crate) struct Session {
    client: Client,
    prepared: Mutex<HashMap<String, Statement>>,
    /// Ends by itself once the client has gone.
    _driver: JoinHandle<()>,
    /// Payloads of notifications.
    pub(crate) heard: mpsc::UnboundedReceiver<String>,
}

impl Session {
    pub(crate) async fn connect(target: &ServerTarget) -> Result<Session, StoreError> {
        in_time(target, async {
            let session = Session::bare(target).await?;
            session.settle(target).await?;
            Ok(session)
        })
        .await
    }

    /// The first two connections to a server, which show whether it can be worked with.
    pub(crate) async fn connect_first(target: &ServerTarget) -> Result<[Session; 2], StoreError> {
        in_time(target, async {
            let (one, other) = tokio::try_join!(Session::bare(target), Session::bare(target))?;
            one.refuse_old(target).await?;
            // Before anything is set that others would find.
            pooler::refuse(&one, &other, target).await?;
            tokio::try_join!(one.settle(target), other.settle(target))?;
            Ok([one, other])
        })
        .await
    }

    async fn bare(target: &ServerTarget) -> Result<Session, PgFault> {
        let (client, mut connection) = target.config.connect(tls::connector(&target.trust)?).await?;
        let (tell, heard) = mpsc::unbounded_channel();
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(told) = message {
                    // Nobody listens on most sessions.
                    let _ = tell.send(told.payload().to_owned());
                }
            }
        });
        Ok(Session { client, prepared: Mutex::default(), _driver: driver, heard })
    }

    async fn settle(&self, target: &ServerTarget) -> Result<(), PgFault> {
        self.run(&settings(target)).await
    }

    async fn refuse_old(&self, target: &ServerTarget) -> Result<(), PgFault> {
        let version = self.ask("show server_version").await?.unwrap_or_default();
        let major = version.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
        if major.is_none_or(|major: i32| major < OLDEST) {
            return Err(StoreError::Incompatible(format!(
                "{} is PostgreSQL {version}; Flowline needs {OLDEST} or newer",
                target.place()
            ))
            .into());
        }
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// A statement by its text, prepared once per connection.
    pub(crate) async fn prepare(&self, sql: &str) -> Result<Statement, PgFault> {
        if let Some(known) = self.known().get(sql) {
            return Ok(known.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.known().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(crate) async fn query(&self, sql: &str, given: SqlParams<'_>) -> Result<Vec<Row>, PgFault> {
        let statement = self.prepare(sql).await?;
        Ok(self.client.query(&statement, given).await?)
    }

    pub(crate) async fn query_opt(&self, sql: &str, given: SqlParams<'_>) -> Result<Option<Row>, PgFault> {
        Ok(self.query(sql, given).await?.into_iter().next())
    }

    /// The only row of a statement that always gives one.
    pub(crate) async fn query_one(&self, sql: &str, given: SqlParams<'_>) -> Result<Row, PgFault> {
        self.query_opt(sql, given).await?.ok_or_else(|| PgFault::damaged("a statement returned no row"))
    }

    pub(crate) async fn execute(&self, sql: &str, given: SqlParams<'_>) -> Result<u64, PgFault> {
        let statement = self.prepare(sql).await?;
        Ok(self.client.execute(&statement, given).await?)
    }

    /// Statements without arguments or answers, as they stand.
    pub(crate) async fn run(&self, sql: &str) -> Result<(), PgFault> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// The one value of a question that is asked without preparing it.
    pub(crate) async fn ask(&self, sql: &str) -> Result<Option<String>, PgFault> {
        let answer = self.client.simple_query(sql).await?;
        let row = answer.iter().find_map(|part| match part {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(row.and_then(|row| row.get(0)).map(str::to_owned))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, Statement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Callers are told within five seconds that nobody answers.
async fn in_time<T>(
    target: &ServerTarget,
    opening: impl Future<Output = Result<T, PgFault>>,
) -> Result<T, StoreError> {
    let opened = tokio::time::timeout(Duration::from_millis(4_500), opening).await;
    opened.unwrap_or(Err(PgFault::Late)).map_err(|fault| fault.of_connect(target))
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

/// Plans are the ones that the indexes were made for, whatever the statistics of a young table say, and made once. A
/// process that stops in the middle of a transaction must not keep its locks.
fn settings(target: &ServerTarget) -> String {
    let (schema, statement) = (&target.schema, STATEMENT.as_millis());
    format!(
        "set search_path to {schema}; set statement_timeout to {statement}; set lock_timeout to 2500;
         set idle_in_transaction_session_timeout to 5000; set jit to off; set plan_cache_mode to force_generic_plan;
         set enable_seqscan to off; set enable_hashjoin to off; set enable_mergejoin to off;
         set default_transaction_isolation to 'read committed'; set client_min_messages to warning"
    )
}

/// A statement under way.
pub(crate) type StatementFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, PgFault>> + Send + 'a>>;

/// Sends statements in order without waiting in between, and gives all their answers. The first failure is the answer
/// to all: what follows it in a transaction failed of it.
pub(crate) async fn pipelined(mut sent: Vec<StatementFuture<'_>>) -> Result<Vec<Vec<Row>>, PgFault> {
    let mut answers: Vec<Option<Result<Vec<Row>, PgFault>>> = sent.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut pending = false;
        // In order each time: the first poll of a statement is what sends it.
        for (statement, answer) in sent.iter_mut().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
            match statement.as_mut().poll(context) {
                Poll::Ready(done) => *answer = Some(done),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    answers.into_iter().flatten().collect()
}

impl Session {
    /// A prepared statement for [`pipelined`].
    pub(crate) fn send<'a>(&'a self, statement: &'a Statement, given: SqlParams<'a>) -> StatementFuture<'a> {
        Box::pin(async move { Ok(self.client.query(statement, given).await?) })
    }

    /// Plain SQL for [`pipelined`].
    pub(crate) fn send_plain<'a>(&'a self, sql: &'a str) -> StatementFuture<'a> {
        Box::pin(async move { self.run(sql).await.map(|()| Vec::new()) })
    }
}
