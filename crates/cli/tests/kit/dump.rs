//! Everything that a file holds, read once, for the checker.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use flowline::core::{Event, RunKey, Tenant};
use flowline::store::query::WantTotal;
use flowline::store::{Counter, EventQuery, JobRow, RunQuery, RunRow, Store, StoreError};
use flowline_check::{
    Checker, Effects, FlowMap, History, RunCheck, StoreSnapshot, Violation, counted, miscounted,
};
use flowline_sqlite::{OpenMode, Options, SqliteStore};

#[derive(Debug, Default)]
pub struct Dump {
    pub runs: BTreeMap<RunKey, Run>,
    definitions: BTreeMap<String, String>,
    counters: Vec<Counter>,
}

#[derive(Debug)]
pub struct Run {
    pub row: RunRow,
    pub events: Vec<Event>,
    pub jobs: Vec<JobRow>,
}

impl Dump {
    /// Reads a file. As an engine it is opened for writing first, as one that goes on after a crash would.
    pub fn read(path: &Path, mode: OpenMode) -> Result<Dump, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = SqliteStore::open(path, Options { mode, ..Options::default() })?;
            Dump::of(&*store).await
        })
    }

    pub async fn of(store: &dyn Store) -> Result<Dump, StoreError> {
        let tenant = Tenant::default();
        let mut dump = Dump { counters: store.counters().await?, ..Dump::default() };
        for definition in store.definitions(&tenant).await? {
            dump.definitions.insert(definition.hash.to_string(), definition.body);
        }
        let mut query = RunQuery { limit: 1_000, total: WantTotal::No, ..RunQuery::of(tenant) };
        loop {
            let page = store.runs(query.clone()).await?;
            for row in page.items {
                let key = row.key();
                let mut events: Vec<Event> = Vec::new();
                loop {
                    let after = events.last().map_or(0, |event| event.seq);
                    let page = store.events(&key, EventQuery { after, ..EventQuery::default() }).await?;
                    events.extend(page.events);
                    if !page.more {
                        break;
                    }
                }
                let jobs = store.jobs(&key).await?;
                dump.runs.insert(key, Run { row, events, jobs });
            }
            match page.next {
                Some(next) => query.cursor = Some(next),
                None => return Ok(dump),
            }
        }
    }

    /// The store, what clients were told and what the steps did agree. Otherwise the logs in question are shown.
    pub fn assert_right(&self, history: &History, effects: &Effects) {
        let mut violations = self.check();
        violations.extend(history.check(Checker::default(), self));
        violations.extend(effects.check(Checker::default(), self));
        for violation in &violations {
            println!("{violation}");
            let of = |(key, _): &(&RunKey, &Run)| Some(&key.run) == violation.run_id.as_ref();
            for event in self.runs.iter().filter(of).flat_map(|(_, run)| &run.events) {
                println!("{}", serde_json::to_string(event).unwrap());
            }
        }
        assert!(violations.is_empty(), "{} violations", violations.len());
    }

    /// What the checker says of every run and of the counters.
    pub fn check(&self) -> Vec<Violation> {
        let checker = Checker::default();
        let mut flows: BTreeMap<&str, Arc<FlowMap>> = BTreeMap::new();
        let mut violations = Vec::new();
        let mut recount = BTreeMap::new();
        for run in self.runs.values() {
            let row = &run.row;
            *recount.entry(counted(row)).or_default() += 1;
            let flow = flows.entry(&row.definition).or_insert_with(|| {
                let body = &self.definitions[&*row.definition];
                Arc::new(FlowMap::read(&row.flow_name, body).unwrap())
            });
            let mut look = RunCheck::new(checker, row, flow.clone());
            run.events.iter().for_each(|event| look.event(event));
            violations.extend(look.finish(row, &run.jobs));
        }
        violations.extend(miscounted(checker, &Tenant::default(), &self.counters, recount));
        violations
    }
}

impl StoreSnapshot for Dump {
    fn row(&self, run: &RunKey) -> Option<RunRow> {
        self.runs.get(run).map(|run| run.row.clone())
    }

    fn events(&self, run: &RunKey, after: u64) -> Vec<Event> {
        let events = self.runs.get(run).into_iter().flat_map(|run| &run.events);
        events.filter(|event| event.seq > after).cloned().collect()
    }

    fn jobs(&self, run: &RunKey) -> Vec<JobRow> {
        self.runs.get(run).map(|run| run.jobs.clone()).unwrap_or_default()
    }

    /// These tests run flows, which take in no event that has one.
    fn receipts(&self, _run: &RunKey) -> Vec<flowline::store::Receipt> {
        Vec::new()
    }

    /// These tests set none.
    fn state(&self, _run: &RunKey) -> Vec<flowline::store::StateValue> {
        Vec::new()
    }

    fn definition(&self, _tenant: &Tenant, hash: &str) -> Option<String> {
        self.definitions.get(hash).cloned()
    }

    fn counters(&self) -> Vec<Counter> {
        self.counters.clone()
    }

    fn runs(&self, tenant: &Tenant) -> Vec<RunKey> {
        self.runs.keys().filter(|run| run.tenant == *tenant).cloned().collect()
    }
}
