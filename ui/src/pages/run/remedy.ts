// What a person can do about a run that isn't further, from its explanation.

import { part } from "../../lib/api.svelte";
import type { Explanation } from "../../lib/types";

export type Remedy =
  | { kind: "post"; label: string; url: string; scope: string }
  | { kind: "send"; label: string; event: string; scope: string }
  | { kind: "link"; label: string; to: string };

/** The most useful first; at most four. */
export function remedies(explanation: Explanation): Remedy[] {
  const run = part(explanation.runId);
  const found: Remedy[] = [];
  if (explanation.status === "paused") {
    found.push({ kind: "post", label: "Resume", url: `/v1/runs/${run}/resume`, scope: "operate" });
  }
  if (explanation.status === "failed" || explanation.status === "cancelled") {
    return [];
  }
  const events = new Set<string>(explanation.machine?.accepts.map((one) => one.event) ?? []);
  for (const step of explanation.steps) {
    for (const missing of step.missing ?? []) if (missing.external) events.add(missing.event);
  }
  for (const event of events) found.push({ kind: "send", label: `Send ${event}`, event, scope: "start" });
  const queues = new Map<string, boolean>();
  for (const step of explanation.steps) {
    if (step.job?.state !== "waiting") continue;
    const paused = /paused/.test(step.reason);
    queues.set(step.job.queue, (queues.get(step.job.queue) ?? false) || paused);
  }
  for (const [queue, paused] of queues) {
    if (paused) {
      found.push({ kind: "post", label: `Resume queue ${queue}`, url: `/v1/queues/${part(queue)}/resume`, scope: "operate" });
    }
    found.push({ kind: "link", label: `Open queue ${queue}`, to: `/queues/${part(queue)}` });
  }
  return found.slice(0, 4);
}
