//! The bytes of a run state, as stores keep them: a few per step, the same for the same state on every machine.
//!
//! Layout, format 1: format byte; flags byte (bits 0-1 ended, 2 paused, 3 stopping, 4 failed, 5-6 priority, 7 started); the failed step if
//! flagged; retries; one byte per step (bits 0-2 phase, bit 3 set when attempt, tries and lost follow); the emitted
//! events as bits. Numbers are LEB128.
//!
//! Format 3 is that of a run whose flow has `any` joins: the same, then for each such step which of its events it was
//! triggered with: the number of bytes, and its events as bits. A run that an older build began stays in format 1 to its end.
//!
//! Format 2 is that of a machine's run: the same, then state, transition, context, received, set, completed, failed,
//! the failed action that names a state plus 1, the armed timers (how many, then timer and number each), the inbox (its length, then its turns) and the current
//! turn: 0, or 1, its turn, the state before plus 1, and its actions (their number, then 3 × action + group each). A turn is 0 for the start,
//! 1 with number and event, 2 with a timer, 3 with an action.

use crate::definition::Priority;
use crate::machine::{ActionGroup, Asked, Current, MachineState, Turn};
use crate::plan::{Bits, Plan};
use crate::run::{Ended, Phase, RunState, StepState};

const FORMAT: u8 = 1;
const OF_MACHINE: u8 = 2;
const WITH_CHOICES: u8 = 3;

/// Bytes that are no state of this plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored run state is damaged: {0}")]
pub struct DecodeError(pub(crate) &'static str);

impl RunState {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.steps.len() + self.emitted.words().len() * 8);
        let ended = match self.ended {
            None => 0,
            Some(Ended::Completed) => 1,
            Some(Ended::Failed) => 2,
            Some(Ended::Cancelled) => 3,
        };
        let flags = ended
            | u8::from(self.paused) << 2
            | u8::from(self.stopping) << 3
            | u8::from(self.failed.is_some()) << 4
            | (self.priority as u8) << 5
            | u8::from(self.started) << 7;
        let format = match (&self.machine, self.chosen.as_deref()) {
            (Some(_), _) => OF_MACHINE,
            (None, None | Some([])) => FORMAT,
            (None, Some(_)) => WITH_CHOICES,
        };
        out.extend([format, flags]);
        if let Some(step) = self.failed {
            put(&mut out, step);
        }
        put(&mut out, self.retries);
        for step in &self.steps {
            let first_try =
                StepState { phase: step.phase, attempt: implied(step.phase), ..StepState::default() };
            let more = *step != first_try;
            out.push(step.phase as u8 | u8::from(more) << 3);
            if more {
                put(&mut out, step.attempt);
                put(&mut out, step.tries);
                put(&mut out, step.lost);
            }
        }
        for word in self.emitted.words() {
            out.extend(word.to_le_bytes());
        }
        for choice in self.chosen.iter().flatten() {
            put_bits(&mut out, choice);
        }
        if let Some(machine) = &self.machine {
            machine.encode(&mut out);
        }
        out
    }

    pub fn decode(plan: &Plan, bytes: &[u8]) -> Result<RunState, DecodeError> {
        let mut state = RunState::new(plan);
        let mut bytes = bytes.iter().copied();
        let mut next = || bytes.next().ok_or(DecodeError("it ends early"));
        match (next()?, &plan.machine) {
            (OF_MACHINE, Some(_)) => {}
            (FORMAT, None) if plan.choosers.is_empty() => {}
            (FORMAT, None) => state.chosen = None,
            (WITH_CHOICES, None) => {}
            _ => return Err(DecodeError("its format is unknown")),
        }
        let flags = next()?;
        state.ended = [None, Some(Ended::Completed), Some(Ended::Failed), Some(Ended::Cancelled)]
            [usize::from(flags & 3)];
        state.started = flags >> 7 == 1;
        state.paused = flags >> 2 & 1 == 1;
        state.stopping = flags >> 3 & 1 == 1;
        state.priority = Priority::ALL[usize::from(flags >> 5 & 3)];
        if flags >> 4 & 1 == 1 {
            let step = get(&mut next)?;
            if step as usize >= state.steps.len() {
                return Err(DecodeError("the failed step isn't in its definition"));
            }
            state.failed = Some(step);
        }
        state.retries = get(&mut next)?;
        for step in &mut state.steps {
            let byte = next()?;
            if byte >> 4 != 0 {
                return Err(DecodeError("a step has unknown flags"));
            }
            step.phase = phase(byte & 7)?;
            step.attempt = implied(step.phase);
            if byte >> 3 & 1 == 1 {
                (step.attempt, step.tries, step.lost) = (get(&mut next)?, get(&mut next)?, get(&mut next)?);
            }
        }
        read_bits(&mut state.emitted, &mut next)?;
        if (plan.events.len()..state.emitted.words().len() * 64).any(|e| state.emitted.contains(e as u32)) {
            return Err(DecodeError("an event isn't in its definition"));
        }
        for (choice, &step) in state.chosen.iter_mut().flatten().zip(&plan.choosers) {
            *choice = get_bits(plan.step(step).inputs.len(), &mut next)?;
        }
        if let Some(machine) = &mut state.machine {
            machine.decode(plan, &mut next)?;
        }
        if next().is_ok() {
            return Err(DecodeError("it's too long for its definition"));
        }
        Ok(state)
    }

    /// Whether these are the bytes of this state, in its own format or in that of the build that began the run.
    pub fn is_encoded_in(&self, bytes: &[u8]) -> bool {
        match (bytes.first(), &self.machine) {
            (Some(&FORMAT), None) => RunState { chosen: None, ..self.clone() }.encode() == bytes,
            _ => self.encode() == bytes,
        }
    }
}

impl MachineState {
    fn encode(&self, out: &mut Vec<u8>) {
        let MachineState { state, transition, context, received, set, completed, failed, .. } = *self;
        for number in [state, transition, context, received, set, completed, failed] {
            put(out, number);
        }
        put(out, self.error.map_or(0, |action| action + 1));
        put(out, self.armed.len() as u32);
        self.armed.iter().flat_map(|(timer, number)| [timer, number]).for_each(|n| put(out, *n));
        put(out, self.inbox.len() as u32);
        self.inbox.iter().for_each(|turn| put_turn(out, *turn));
        let Some(current) = &self.current else { return put(out, 0) };
        put(out, 1);
        put_turn(out, current.by);
        put(out, current.from.map_or(0, |state| state + 1));
        put(out, current.asked.len() as u32);
        for asked in &current.asked {
            put(out, asked.action * 3 + asked.group as u32);
        }
    }

    fn decode(
        &mut self,
        plan: &Plan,
        next: &mut impl FnMut() -> Result<u8, DecodeError>,
    ) -> Result<(), DecodeError> {
        let Some(machine) = &plan.machine else { return Ok(()) };
        let within = |number: u32, len: usize| match (number as usize) < len {
            true => Ok(number),
            false => Err(DecodeError("a state, event, timer or action isn't in its definition")),
        };
        let actions = plan.steps.len();
        self.state = within(get(next)?, machine.states.len())?;
        for number in [
            &mut self.transition,
            &mut self.context,
            &mut self.received,
            &mut self.set,
            &mut self.completed,
            &mut self.failed,
        ] {
            *number = get(next)?;
        }
        self.error = get(next)?.checked_sub(1).map(|action| within(action, actions)).transpose()?;
        for _ in 0..get(next)? {
            let timer = within(get(next)?, machine.timers.len())?;
            self.armed.insert(timer, get(next)?);
        }
        let turn = |next: &mut _| -> Result<Turn, DecodeError> {
            Ok(match get(next)? {
                0 => Turn::Start,
                1 => Turn::Event { number: get(next)?, event: within(get(next)?, plan.events.len())? },
                2 => Turn::Timer(within(get(next)?, machine.timers.len())?),
                3 => Turn::Error(within(get(next)?, actions)?),
                _ => return Err(DecodeError("a turn has an unknown kind")),
            })
        };
        for _ in 0..get(next)? {
            let waiting = turn(next)?;
            self.inbox.push_back(waiting);
        }
        if get(next)? == 0 {
            return Ok(());
        }
        let by = turn(next)?;
        let from = get(next)?.checked_sub(1).map(|state| within(state, machine.states.len())).transpose()?;
        let mut asked = Vec::new();
        for _ in 0..get(next)? {
            let number = get(next)?;
            let group = [ActionGroup::Exit, ActionGroup::Transition, ActionGroup::Entry][number as usize % 3];
            asked.push(Asked { action: within(number / 3, actions)?, group });
        }
        self.current = Some(Current { by, from, asked });
        Ok(())
    }
}

fn put_turn(out: &mut Vec<u8>, turn: Turn) {
    match turn {
        Turn::Start => put(out, 0),
        Turn::Event { number, event } => [1, number, event].into_iter().for_each(|n| put(out, n)),
        Turn::Timer(timer) => [2, timer].into_iter().for_each(|n| put(out, n)),
        Turn::Error(action) => [3, action].into_iter().for_each(|n| put(out, n)),
    }
}

/// The attempt of a step if its bytes don't say.
fn implied(phase: Phase) -> u32 {
    match phase {
        Phase::Idle | Phase::Skipped => 0,
        _ => 1,
    }
}

fn phase(number: u8) -> Result<Phase, DecodeError> {
    Ok(match number {
        0 => Phase::Idle,
        1 => Phase::Delayed,
        2 => Phase::Queued,
        3 => Phase::Completed,
        4 => Phase::Failed,
        5 => Phase::Skipped,
        _ => return Err(DecodeError("a step has an unknown phase")),
    })
}

fn read_bits(bits: &mut Bits, next: &mut impl FnMut() -> Result<u8, DecodeError>) -> Result<(), DecodeError> {
    for word in bits.words_mut() {
        let mut bytes = [0; 8];
        for byte in &mut bytes {
            *byte = next()?;
        }
        *word = u64::from_le_bytes(bytes);
    }
    Ok(())
}

/// A set as its length in bytes and these, without the empty ones at its end.
fn put_bits(out: &mut Vec<u8>, bits: &Bits) {
    let bytes: Vec<u8> = bits.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    put(out, used as u32);
    out.extend(&bytes[..used]);
}

fn get_bits(len: usize, next: &mut impl FnMut() -> Result<u8, DecodeError>) -> Result<Bits, DecodeError> {
    let mut bits = Bits::new(len);
    for at in 0..get(next)? {
        let byte = next()?;
        for bit in (0..8).filter(|bit| byte >> bit & 1 == 1).map(|bit| at * 8 + bit) {
            if bit as usize >= len {
                return Err(DecodeError("a step has an event that it doesn't wait for"));
            }
            bits.insert(bit);
        }
    }
    Ok(bits)
}

pub(crate) fn put(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn get(next: &mut impl FnMut() -> Result<u8, DecodeError>) -> Result<u32, DecodeError> {
    let mut number = 0u32;
    for shift in (0..35).step_by(7) {
        let byte = next()?;
        let bits = u32::from(byte & 0x7f);
        if shift == 28 && bits > 0xf {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(DecodeError("a number is too long"))
}
