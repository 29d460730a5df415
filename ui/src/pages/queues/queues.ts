// A queue as people see it: its lanes (one for each thing that a worker must be able to run) put together.

import type { Lane } from "../../lib/types";

export interface Queue {
  name: string;
  ready: number;
  delayed: number;
  held: number;
  leased: number;
  oldest: string | null;
  paused: boolean;
  needs: string[];
}

export function queues(lanes: Lane[]): Queue[] {
  const byName = new Map<string, Queue>();
  for (const lane of lanes) {
    const queue = byName.get(lane.queue) ?? { name: lane.queue, ready: 0, delayed: 0, held: 0, leased: 0, oldest: null, paused: false, needs: [] };
    byName.set(lane.queue, queue);
    queue.ready += lane.ready;
    queue.delayed += lane.delayed;
    queue.held += lane.held;
    queue.leased += lane.leased;
    queue.paused ||= lane.paused;
    if (lane.need && !queue.needs.includes(lane.need)) queue.needs.push(lane.need);
    if (lane.oldest && (!queue.oldest || lane.oldest < queue.oldest)) queue.oldest = lane.oldest;
  }
  return [...byName.values()];
}
