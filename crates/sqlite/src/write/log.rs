//! Writing to the logs of runs.

use flowline_core::event::PayloadSlot;
use flowline_core::{NewEvent, Time};

use rusqlite::params_from_iter;

use super::Writer;
use crate::fault::Fault;
use crate::pack;

/// The most events of one row: what reads a few of them reads the row.
const EVENTS: usize = 256;
/// Bytes beyond which a row is closed.
const BYTES: usize = 256 << 10;

/// Whether a terminal event is among those that were just written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogEnd {
    Open,
    Reached,
}

impl Writer<'_> {
    /// The date of what is written to a run's log now.
    pub(super) fn date(&mut self, id: i64, now: Time) -> Result<Time, Fault> {
        Ok(now.max(Time::from_millis(self.run(id)?.ms)))
    }

    /// Numbers, dates and writes events. Gives the first number, and whether a terminal event is among them. The caller
    /// stores the run's last number and date, with `advance` or by itself.
    pub(super) fn log<'e>(
        &mut self,
        id: i64,
        ts: Time,
        events: impl IntoIterator<Item = &'e NewEvent>,
    ) -> Result<(u64, LogEnd), Fault> {
        let (ms, first) = (ts.millis(), self.run(id)?.seq + 1);
        let (mut part_from, mut seq, mut end) = (first, first, LogEnd::Open);
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        for event in events {
            if let Some(began) = event.begins(ts) {
                self.run(id)?.started_at.get_or_insert(began.millis());
            }
            if event.kind.is_terminal() {
                end = LogEnd::Reached;
                let run = self.run(id)?;
                run.started_at.get_or_insert(run.created_at.millis());
                let created = run.created_at;
                pack::push(&mut text, &event.clone().lasting(created, ts));
            } else {
                pack::push(&mut text, event);
            }
            self.last.event += 1;
            seq += 1;
            if let Some(slot) = event.slot {
                self.slots.push([id, i64::from(slot.number()), self.last.event]);
            }
            if text.len() >= BYTES || seq - part_from >= EVENTS as u64 {
                self.write_part(id, ms, part_from..seq, &mut text)?;
                part_from = seq;
            }
        }
        if part_from < seq {
            self.write_part(id, ms, part_from..seq, &mut text)?;
        }
        self.text = text;
        if first < seq {
            let run = self.run(id)?;
            (run.seq, run.ms) = (seq - 1, ms);
        }
        Ok((first, end))
    }

    /// The number, within its run, of the last event just logged that took such a slot. Who asks keeps it, and the slots are
    /// not written.
    pub(super) fn take_seq(
        &mut self,
        id: i64,
        wanted: impl Fn(PayloadSlot) -> bool,
    ) -> Result<Option<i64>, Fault> {
        let mine = self.slots.iter().rev().take_while(|[run, ..]| *run == id).count();
        let from = self.slots.len() - mine;
        let is = |&[_, slot, _]: &[i64; 3]| wanted(PayloadSlot::from_number(slot as u32));
        let Some(&[.., n]) = self.slots[from..].iter().rfind(|slot| is(slot)) else { return Ok(None) };
        let mine = self.slots.split_off(from);
        self.slots.extend(mine.into_iter().filter(|slot| !is(slot)));
        Ok(Some(self.run(id)?.seq as i64 - (self.last.event - n)))
    }

    /// Writes where payloads are: the first event that took a slot has it. Comes before the end of the transaction and
    /// before anything in it that looks for slots; together, for many rows to a statement cost less than one each.
    pub(super) fn write_slots(&mut self) -> Result<(), Fault> {
        let (blocks, rest) = self.slots.as_chunks::<8>();
        for block in blocks {
            self.sql.insert_8_slots.execute(params_from_iter(block.as_flattened()))?;
        }
        for slot in rest {
            self.sql.insert_slot.execute(*slot)?;
        }
        self.slots.clear();
        Ok(())
    }

    fn write_part(
        &mut self,
        id: i64,
        ms: i64,
        seqs: std::ops::Range<u64>,
        text: &mut String,
    ) -> Result<(), Fault> {
        pack::close(text);
        let count = (seqs.end - seqs.start) as i64;
        let n = self.last.event + 1 - count;
        self.sql.insert_log.execute((n, id, seqs.start as i64, ms, count, text.as_str()))?;
        text.clear();
        Ok(())
    }
}
