//! Events of one transaction, written together: many rows to a statement cost less than a statement each.

use flowline_core::NewEvent;
use rusqlite::Statement;

use super::Writer;
use crate::fault::Fault;
use crate::schema::Kinds;

/// Rows of the larger statement.
const ROWS: usize = 8;
/// Columns of a row.
const COLUMNS: usize = 9;

/// An event that has its numbers and waits to be written before the transaction ends.
#[derive(Debug)]
pub(crate) struct EventRow {
    pub(crate) n: i64,
    pub(crate) run: i64,
    pub(crate) seq: u64,
    pub(crate) ms: i64,
    pub(crate) event: NewEvent,
}

impl Writer<'_> {
    /// Comes before the end of the transaction, and before anything in it that reads events.
    pub(super) fn write_events(&mut self) -> Result<(), Fault> {
        let (blocks, rest) = self.events.as_chunks::<ROWS>();
        for block in blocks {
            let statement = &mut self.sql.insert_8_events;
            for (at, row) in block.iter().enumerate() {
                row.bind(statement, at * COLUMNS, &self.kinds)?;
            }
            statement.raw_execute()?;
        }
        for row in rest {
            row.bind(&mut self.sql.insert_event, 0, &self.kinds)?;
            self.sql.insert_event.raw_execute()?;
        }
        self.events.clear();
        Ok(())
    }
}

impl EventRow {
    fn bind(&self, statement: &mut Statement<'_>, after: usize, kinds: &Kinds) -> rusqlite::Result<()> {
        let of = self.event.of.as_ref();
        statement.raw_bind_parameter(after + 1, self.n)?;
        statement.raw_bind_parameter(after + 2, self.run)?;
        statement.raw_bind_parameter(after + 3, self.seq as i64)?;
        statement.raw_bind_parameter(after + 4, self.ms)?;
        statement.raw_bind_parameter(after + 5, kinds.number(self.event.kind))?;
        statement.raw_bind_parameter(after + 6, of.map(|of| &*of.step))?;
        statement.raw_bind_parameter(after + 7, of.map(|of| of.attempt))?;
        statement.raw_bind_parameter(after + 8, self.event.slot.map(|slot| slot.number()))?;
        statement.raw_bind_parameter(after + 9, self.event.data.as_ref().map(|data| data.get()))
    }
}
