//! Receipts. A hash per run holds them by number, a sorted set their numbers by their events' ids; sorted sets per tenant and
//! status, and per tenant, status and worker, list them. What lists hold is `RECEIVED RUN NUMBER`, digits to a fixed width
//! and all of score 0, so that the order of the bytes is that of the list, in every shard and across them.

use flowline_core::{Json, RunId, RunKey, Time};
use flowline_store::query::page_size;
use flowline_store::{Opened, Receipt, ReceiptChange, ReceiptPage, ReceiptQuery, ReceiptStatus, StoreError};

use crate::RedisStore;
use crate::answer::{list, maybe_text, number, score, text};
use crate::args::ScriptArgs;
use crate::names;
use crate::script;
use crate::shard::Shard;

/// Receipts of a run looked at in one go where some may not be wanted.
const PART: usize = 512;
/// How the number of a receipt, and its date in milliseconds, are written in lists.
const NUMBER_DIGITS: usize = 10;
const DATE_DIGITS: usize = 15;

impl RedisStore {
    pub(crate) async fn page_of_receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        query.check()?;
        let after = query.after.as_deref().map(Place::parse).transpose()?;
        let limit = page_size(query.limit);
        let mut found = match &query.run {
            Some(run) => {
                let run = RunKey::new(query.tenant.clone(), run.clone());
                self.receipts_of_run(&run, query, after, limit + 1).await?
            }
            None => self.receipts_of_tenant(query, after, limit + 1).await?,
        };
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|receipt| Place::of(receipt).cursor());
        Ok(ReceiptPage { items: found, next })
    }

    async fn receipts_of_run(
        &self,
        run: &RunKey,
        query: &ReceiptQuery,
        after: Option<Place>,
        wanted: usize,
    ) -> Result<Vec<Receipt>, StoreError> {
        let name = names::run(run);
        let shard = self.shard(&name);
        if let Some(event) = &query.event_id {
            let mut asked = redis::cmd("ZSCORE");
            asked.arg(shard.key(&format!("receipt-ids:{name}"))).arg(names::encode(event));
            let Some(at) = maybe_text(shard.ask(&asked).await?)? else { return Ok(Vec::new()) };
            let mut found = fetch(shard, run, &[score(&at)? as u32]).await?;
            let below = after.map_or(u32::MAX, |place| place.number);
            found.retain(|receipt| query.matches(receipt) && receipt.number < below);
            return Ok(found);
        }
        let mut below = after.map_or_else(|| "+inf".to_owned(), |place| format!("({}", place.number));
        let mut found = Vec::new();
        loop {
            let mut asked = redis::cmd("ZREVRANGEBYSCORE");
            asked.arg(shard.key(&format!("receipt-ids:{name}"))).arg(&below).arg("-inf");
            asked.arg("WITHSCORES").arg("LIMIT").arg(0).arg(PART);
            let mut numbers: Vec<u32> = Vec::new();
            for at in list(shard.ask(&asked).await?)?.into_iter().skip(1).step_by(2) {
                numbers.push(score(&text(at)?)? as u32);
            }
            let all = fetch(shard, run, &numbers).await?;
            found.extend(all.into_iter().filter(|receipt| query.matches(receipt)));
            match numbers.last() {
                Some(last) if found.len() < wanted && numbers.len() == PART => below = format!("({last}"),
                _ => break,
            }
        }
        found.truncate(wanted);
        Ok(found)
    }

    /// The newest of every list of every shard that the query is about, merged.
    async fn receipts_of_tenant(
        &self,
        query: &ReceiptQuery,
        after: Option<Place>,
        wanted: usize,
    ) -> Result<Vec<Receipt>, StoreError> {
        let mut args = ScriptArgs::new();
        args.text(&after.map_or_else(|| "+".to_owned(), |place| format!("({}", place.member())));
        args.number(wanted);
        let asked = |status: &ReceiptStatus| query.status.is_none_or(|wanted| wanted == *status);
        for status in ReceiptStatus::ALL.into_iter().filter(asked) {
            list_of(&mut args, query.tenant.as_str(), status, query.worker.as_deref());
        }
        let answers = self.on_all(|shard: &Shard| shard.call(&script::RECEIPTS, [&args])).await?;
        let mut members = Vec::new();
        for (shard, answer) in answers.into_iter().enumerate() {
            for member in answer.rest {
                members.push((text(member)?, shard));
            }
        }
        members.sort_unstable_by(|a, b| b.cmp(a));
        members.truncate(wanted);
        let mut found = Vec::with_capacity(members.len());
        for (at, shard) in self.shards.iter().enumerate() {
            let mut pipe = redis::pipe();
            let mut places = Vec::new();
            for (member, _) in members.iter().filter(|(_, shard)| *shard == at) {
                let place = Place::read(member)?;
                let run = RunKey::new(query.tenant.clone(), place.run.clone());
                pipe.cmd("HGET").arg(shard.key(&format!("receipts:{}", names::run(&run)))).arg(place.number);
                places.push((run, place.number));
            }
            if places.is_empty() {
                continue;
            }
            for ((run, number), value) in places.into_iter().zip(shard.ask_all(&pipe).await?) {
                // One whose run is gone in the meantime is gone too.
                if let Some(kept) = maybe_text(value)? {
                    found.push(read(&run, number, &kept)?);
                }
            }
        }
        found.retain(|receipt| query.matches(receipt));
        found.sort_by_cached_key(|receipt| std::cmp::Reverse(Place::of(receipt).member()));
        Ok(found)
    }
}

/// The receipts of a run with these numbers that are there.
async fn fetch(shard: &Shard, run: &RunKey, numbers: &[u32]) -> Result<Vec<Receipt>, StoreError> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let mut asked = redis::cmd("HMGET");
    asked.arg(shard.key(&format!("receipts:{}", names::run(run)))).arg(numbers);
    let mut found = Vec::with_capacity(numbers.len());
    for (number, value) in numbers.iter().zip(list(shard.ask(&asked).await?)?) {
        if let Some(kept) = maybe_text(value)? {
            found.push(read(run, *number, &kept)?);
        }
    }
    Ok(found)
}

/// Where a receipt stands in lists.
#[derive(Debug)]
struct Place {
    received: Time,
    run: RunId,
    number: u32,
}

impl Place {
    fn of(receipt: &Receipt) -> Place {
        Place { received: receipt.received_at, run: receipt.run_id.clone(), number: receipt.number }
    }

    fn member(&self) -> String {
        let run = names::encode(self.run.as_str());
        format!("{:0DATE_DIGITS$} {run} {:0NUMBER_DIGITS$}", self.received.millis(), self.number)
    }

    fn cursor(&self) -> String {
        self.member().replace(' ', "/")
    }

    fn parse(cursor: &str) -> Result<Place, StoreError> {
        let unknown = || {
            let why = format!("cursor {cursor:?} doesn't come from this store; start without a cursor");
            StoreError::Invalid(why)
        };
        match cursor.contains(' ') {
            true => Err(unknown()),
            false => Place::read(&cursor.replace('/', " ")).map_err(|_| unknown()),
        }
    }

    fn read(member: &str) -> Result<Place, StoreError> {
        let damaged = || StoreError::Damaged(format!("{member:?} isn't a receipt"));
        let parts: Vec<&str> = member.split(' ').collect();
        let &[received, run, at] = &parts[..] else { return Err(damaged()) };
        let run = RunId::new(&names::decode(run)?).map_err(|_| damaged())?;
        let digits =
            |text: &str, count: usize| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(received, DATE_DIGITS) || !digits(at, NUMBER_DIGITS) {
            return Err(damaged());
        }
        Ok(Place { received: Time::from_millis(number(received)?), run, number: number(at)? })
    }
}

/// A worker as part of keys and texts, in which a lone `-` says that there is none.
fn worker_name(worker: &str) -> String {
    match worker {
        "-" => "%2D".to_owned(),
        worker => names::encode(worker),
    }
}

/// A receipt that is there, as [`layout::CHANGED`] has it.
pub(crate) fn change(args: &mut ScriptArgs, change: &ReceiptChange) {
    let ReceiptChange { number, status, worker, outcome, .. } = change;
    args.number(number).text(status.as_str());
    args.text(&worker.as_deref().map(worker_name).unwrap_or_default());
    args.text(outcome.as_ref().map_or("", |outcome| outcome.get()));
}

/// A receipt that a commit opens, as [`layout::OPENED`] has it. `flow` is as a row has it.
pub(crate) fn open(args: &mut ScriptArgs, run: &RunKey, flow: &str, change: &ReceiptChange, opened: &Opened) {
    let ReceiptChange { number, status, worker, outcome, .. } = change;
    let Opened { event_id, name, sender } = opened;
    args.number(number).name(event_id);
    list_of(args, run.tenant.as_str(), *status, worker.as_deref());
    args.part_bytes(b" ").part_name(run.run.as_str()).part(format_args!(" {number:0NUMBER_DIGITS$}")).end();
    after_dates(args, event_id, name, flow, [sender.as_ref(), outcome.as_ref()]);
}

/// The list of a status, or of a worker within it.
fn list_of(args: &mut ScriptArgs, tenant: &str, status: ReceiptStatus, worker: Option<&str>) {
    args.part_name(tenant).part_bytes(b":").part_bytes(status.as_str().as_bytes());
    if let Some(worker) = worker {
        args.part_bytes(b":").part_bytes(worker_name(worker).as_bytes());
    }
    args.end();
}

/// What follows the dates of a receipt in its hash: ` EVENT NAME FLOW BYTES SENDER` and the outcome.
fn after_dates(args: &mut ScriptArgs, event_id: &str, name: &str, flow: &str, said: [Option<&Json>; 2]) {
    let [sender, outcome] = said.map(|said| said.map_or("", |said| said.get()));
    args.part_bytes(b" ").part_name(event_id).part_bytes(b" ").part_name(name);
    args.part(format_args!(" {flow} {} {sender}", sender.len())).text(outcome);
}

/// A receipt as its hash holds it: `STATUS WORKER RECEIVED STARTED COMPLETED EVENT NAME FLOW BYTES SENDER` with the
/// outcome right behind the bytes of the sender.
pub(crate) fn write(args: &mut ScriptArgs, receipt: &Receipt) {
    let worker = receipt.worker.as_deref().map_or_else(|| "-".to_owned(), worker_name);
    let date = |time: Option<Time>| time.map_or_else(|| "-".to_owned(), |time| time.millis().to_string());
    let (started, completed) = (date(receipt.started_at), date(receipt.completed_at));
    let (status, received) = (receipt.status.as_str(), receipt.received_at.millis());
    args.part(format_args!("{status} {worker} {received} {started} {completed}"));
    let (flow, said) =
        (names::encode(&receipt.flow_name), [receipt.sender.as_ref(), receipt.outcome.as_ref()]);
    after_dates(args, &receipt.event_id, &receipt.name, &flow, said);
}

fn read(run: &RunKey, at: u32, kept: &str) -> Result<Receipt, StoreError> {
    let damaged = || StoreError::Damaged(format!("can't read receipt {at} of run {run}"));
    let parts: Vec<&str> = kept.splitn(10, ' ').collect();
    let &[status, worker, received, started, completed, event_id, name, flow, bytes, rest] = &parts[..]
    else {
        return Err(damaged());
    };
    let (sender, outcome) = rest.split_at_checked(number(bytes)?).ok_or_else(damaged)?;
    let json = |text: &str| (!text.is_empty()).then(|| Json::composed(text.to_owned()));
    let date = |text: &str| (text != "-").then(|| number(text).map(Time::from_millis)).transpose();
    Ok(Receipt {
        event_id: names::decode(event_id)?.into(),
        run_id: run.run.clone(),
        flow_name: names::decode(flow)?.into(),
        tenant: run.tenant.clone(),
        number: at,
        name: names::decode(name)?.into(),
        sender: json(sender),
        status: ReceiptStatus::parse(status).ok_or_else(damaged)?,
        worker: (worker != "-").then(|| names::decode(worker).map(Into::into)).transpose()?,
        received_at: Time::from_millis(number(received)?),
        started_at: date(started)?,
        completed_at: date(completed)?,
        outcome: json(outcome),
    })
}
