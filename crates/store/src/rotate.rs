//! Whose turn it is in a claim: one job of each lane in turn, while the claim has slots free in the lane's queue.
//!
//! The stores say which lane comes first and what its next job is. In memory, on SQLite and on Postgres a claim begins after
//! the lane that was served last; on Redis, with the one served longest ago.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::job::Claim;

/// The slots that a claim has left, by queue.
#[derive(Debug)]
pub struct FreeSlots<'c> {
    claim: &'c Claim,
    left: HashMap<Arc<str>, usize>,
}

impl<'c> FreeSlots<'c> {
    pub fn new(claim: &'c Claim) -> FreeSlots<'c> {
        FreeSlots { claim, left: HashMap::new() }
    }

    /// The slots left in a queue.
    pub fn of(&mut self, queue: &Arc<str>) -> &mut usize {
        self.left.entry(queue.clone()).or_insert_with(|| self.claim.free_in(queue))
    }

    /// Takes up to `most` jobs, one of each lane in turn. `take` takes the next job of a lane, if it has one; a lane without
    /// a job, or without a slot for it, drops out.
    pub fn deal<L, E>(
        &mut self,
        lanes: impl IntoIterator<Item = L>,
        most: usize,
        queue: impl Fn(&L) -> &Arc<str>,
        mut take: impl FnMut(&mut L) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut open: VecDeque<L> = lanes.into_iter().collect();
        let mut dealt = 0;
        while dealt < most
            && let Some(mut lane) = open.pop_front()
        {
            let slots = self.of(queue(&lane));
            if *slots > 0 && take(&mut lane)? {
                *slots -= 1;
                dealt += 1;
                open.push_back(lane);
            }
        }
        Ok(())
    }
}

/// Moves the lanes after the one that was served last to the front. They come sorted by name.
pub fn begin_after<L, K: Ord>(lanes: &mut [L], last: Option<&K>, name: impl Fn(&L) -> &K) {
    if let Some(last) = last {
        let after = lanes.partition_point(|lane| name(lane) <= last);
        lanes.rotate_left(after);
    }
}
