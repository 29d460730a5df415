//! Steps and events as a graph: who waits for what. Built once, walked without recursion.

use std::collections::BTreeMap;

use crate::definition::{Definition, Subscribes};

/// Cycles that are looked for; more only repeat the lesson.
const CYCLES: usize = 20;

/// Steps are numbered as in the definition; events follow them.
pub(super) struct Network<'a> {
    steps: BTreeMap<&'a str, usize>,
    events: BTreeMap<&'a str, usize>,
    step_count: usize,
    /// What must come before a node: sources of a step's subscription, emitters of an event.
    before: Vec<Vec<usize>>,
    after: Vec<Vec<usize>>,
    /// Events that come from outside, by number.
    accepted: Vec<bool>,
    gates: Vec<Gate>,
    /// The gates that a node opens when it happens.
    opens: Vec<Vec<usize>>,
    /// Each step's outermost gate; none for an entry step.
    outer: Vec<Option<usize>>,
}

/// Steps that wait for each other, each for the one before it.
pub(super) struct Cycle {
    pub(super) steps: Vec<usize>,
}

/// One AND, OR or name of a subscription.
struct Gate {
    parent: Option<usize>,
    step: usize,
    /// Parts that must still open before this one does.
    need: usize,
}

impl<'a> Network<'a> {
    pub(super) fn of(definition: &'a Definition) -> Network<'a> {
        let steps: BTreeMap<&str, usize> =
            definition.steps.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
        let step_count = definition.steps.len();
        let mut network = Network {
            steps,
            events: BTreeMap::new(),
            step_count,
            before: vec![Vec::new(); step_count],
            after: vec![Vec::new(); step_count],
            accepted: vec![false; step_count],
            gates: Vec::new(),
            opens: vec![Vec::new(); step_count],
            outer: vec![None; step_count],
        };
        for event in definition.accepts.keys() {
            let event = network.event(event);
            network.accepted[event] = true;
        }
        for (index, step) in definition.steps.iter().enumerate() {
            for event in step.published() {
                let event = network.event(event);
                network.link(index, event);
            }
        }
        for (index, step) in definition.steps.iter().enumerate() {
            if let Some(subscribes) = &step.subscribes {
                network.outer[index] = Some(network.gate(subscribes, index, None));
            }
        }
        network
    }

    pub(super) fn is_step(&self, name: &str) -> bool {
        self.steps.contains_key(name)
    }

    /// Whether an event comes from a step or from outside.
    pub(super) fn is_published(&self, event: &str) -> bool {
        self.events.get(event).is_some_and(|&e| self.has_source(e))
    }

    pub(super) fn is_subscribed(&self, event: &str) -> bool {
        self.events.get(event).is_some_and(|&e| !self.after[e].is_empty())
    }

    pub(super) fn published(&self) -> impl Iterator<Item = &'a str> {
        self.events.iter().filter(|&(_, &e)| self.has_source(e)).map(|(&event, _)| event)
    }

    fn has_source(&self, event: usize) -> bool {
        self.accepted[event] || !self.before[event].is_empty()
    }

    pub(super) fn step_number(&self, name: &str) -> Option<usize> {
        self.steps.get(name).copied()
    }

    pub(super) fn event_number(&self, name: &str) -> Option<usize> {
        self.events.get(name).copied()
    }

    pub(super) fn node_count(&self) -> usize {
        self.before.len()
    }

    pub(super) fn is_accepted(&self, node: usize) -> bool {
        self.accepted[node]
    }

    pub(super) fn before(&self, node: usize) -> &[usize] {
        &self.before[node]
    }

    /// Every node after all that comes before it. Nodes in a cycle, and behind one, are left out.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let mut waiting: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut order: Vec<usize> = (0..self.before.len()).filter(|&n| waiting[n] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for &after in &self.after[order[next]] {
                waiting[after] -= 1;
                if waiting[after] == 0 {
                    order.push(after);
                }
            }
            next += 1;
        }
        order
    }

    /// Cycles that share no step, the first ones of the file first.
    pub(super) fn cycles(&self) -> Vec<Cycle> {
        let mut alive = vec![true; self.before.len()];
        let mut waiting: Vec<usize> = self.before.iter().map(Vec::len).collect();
        self.remove(self.in_order(), &mut alive, &mut waiting, false);
        let mut cycles = Vec::new();
        for start in 0..self.step_count {
            while alive[start] && cycles.len() < CYCLES {
                let nodes = self.walk_back(start, &alive);
                let mut steps: Vec<usize> = nodes.iter().copied().filter(|&n| n < self.step_count).collect();
                if let Some(first) = (0..steps.len()).min_by_key(|&i| steps[i]) {
                    steps.rotate_left(first);
                }
                cycles.push(Cycle { steps });
                self.remove(nodes, &mut alive, &mut waiting, true);
            }
        }
        cycles
    }

    /// Which steps can be triggered at all, if those marked `never` neither emit nor complete.
    pub(super) fn reachable(&self, never: &[bool]) -> Vec<bool> {
        let mut need: Vec<usize> = self.gates.iter().map(|gate| gate.need).collect();
        let mut happens = vec![false; self.before.len()];
        let mut fresh: Vec<usize> = (0..self.before.len())
            .filter(|&n| if n < self.step_count { self.outer[n].is_none() } else { self.accepted[n] })
            .collect();
        fresh.iter().for_each(|&node| happens[node] = true);
        while let Some(node) = fresh.pop() {
            if node < self.step_count && never[node] {
                continue;
            }
            let events = self.after[node].iter().filter(|&&n| node < self.step_count && n >= self.step_count);
            let mut next: Vec<usize> = events.copied().collect();
            next.extend(self.opens[node].iter().filter_map(|&gate| self.open(gate, &mut need)));
            for node in next {
                if !std::mem::replace(&mut happens[node], true) {
                    fresh.push(node);
                }
            }
        }
        happens.truncate(self.step_count);
        happens
    }

    /// A step that never runs and that `step` depends on, directly or through others.
    pub(super) fn dead_source(&self, step: usize, never: &[bool], reached: &[bool]) -> Option<usize> {
        let mut node = step;
        for _ in 0..self.before.len() {
            let dead = |&n: &usize| n >= self.step_count || never[n] || !reached[n];
            node = *self.before[node].iter().find(|n| dead(n))?;
            if node < self.step_count && never[node] {
                return Some(node);
            }
        }
        None
    }

    /// Opens a gate, and those around it, as far as they go; yields the step if that was the last.
    fn open(&self, gate: usize, need: &mut [usize]) -> Option<usize> {
        let mut gate = gate;
        loop {
            if need[gate] == 0 {
                return None;
            }
            need[gate] -= 1;
            if need[gate] > 0 {
                return None;
            }
            match self.gates[gate].parent {
                Some(parent) => gate = parent,
                None => return Some(self.gates[gate].step),
            }
        }
    }

    /// Follows what comes before, among the living, until a node comes again; yields the circle in forward order.
    fn walk_back(&self, start: usize, alive: &[bool]) -> Vec<usize> {
        let mut path = vec![start];
        let mut seen_at = vec![usize::MAX; self.before.len()];
        seen_at[start] = 0;
        loop {
            let last = path[path.len() - 1];
            let Some(&before) = self.before[last].iter().find(|&&n| alive[n]) else { return path };
            if seen_at[before] != usize::MAX {
                let mut circle = path.split_off(seen_at[before]);
                circle.reverse();
                return circle;
            }
            seen_at[before] = path.len();
            path.push(before);
        }
    }

    /// Takes nodes away and, if asked, all that then waits for nothing.
    fn remove(&self, nodes: Vec<usize>, alive: &mut [bool], waiting: &mut [usize], follow: bool) {
        let mut gone = nodes;
        while let Some(node) = gone.pop() {
            if !std::mem::replace(&mut alive[node], false) {
                continue;
            }
            for &after in &self.after[node] {
                waiting[after] = waiting[after].saturating_sub(1);
                if follow && waiting[after] == 0 {
                    gone.push(after);
                }
            }
        }
    }

    fn event(&mut self, name: &'a str) -> usize {
        let next = self.before.len();
        let number = *self.events.entry(name).or_insert(next);
        if number == next {
            self.before.push(Vec::new());
            self.after.push(Vec::new());
            self.accepted.push(false);
            self.opens.push(Vec::new());
        }
        number
    }

    fn link(&mut self, before: usize, after: usize) {
        self.before[after].push(before);
        self.after[before].push(after);
    }

    fn gate(&mut self, subscribes: &'a Subscribes, step: usize, parent: Option<usize>) -> usize {
        let gate = self.gates.len();
        let need = match subscribes {
            Subscribes::All(parts) => parts.len(),
            _ => 1,
        };
        self.gates.push(Gate { parent, step, need });
        let source = match subscribes {
            Subscribes::All(parts) | Subscribes::Any(parts) => {
                for part in parts {
                    self.gate(part, step, Some(gate));
                }
                None
            }
            Subscribes::Event(name) => Some(self.event(name)),
            Subscribes::Step(name) => self.steps.get(name.as_str()).copied(),
        };
        if let Some(source) = source {
            self.link(source, step);
            self.opens[source].push(gate);
        }
        gate
    }
}
