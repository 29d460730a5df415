// Bars of a run's attempts over time, from the events that begin and end them.

import type { Event } from "../../lib/types";

export type Outcome = "running" | "completed" | "retried" | "failed" | "skipped";

export interface Bar {
  step: string;
  attempt: number;
  start: number;
  /** Nothing while it runs. */
  end: number | undefined;
  outcome: Outcome;
  worker: string;
  error: string;
}

/** The types of events that `bars` reads. */
export const TYPES = "step.started,step.completed,step.retry,step.failed,step.skipped";

const ENDS: Record<string, Outcome> = {
  "step.completed": "completed",
  "step.retry": "retried",
  "step.failed": "failed",
  "step.skipped": "skipped",
};

/** Attempts in the order in which they started. A skipped step has a bar without length. */
export function bars(events: Event[]): Bar[] {
  const open = new Map<string, Bar>();
  const all: Bar[] = [];
  for (const event of events) {
    const data = (event.data ?? {}) as { at?: string; worker?: string; error?: string; reason?: string };
    const at = Date.parse(event.ts);
    const key = event.stepId ?? `${event.stepName}`;
    if (event.type === "step.started") {
      const bar: Bar = {
        step: event.stepName ?? "",
        attempt: event.attempt ?? 1,
        // The line may be written a little after the attempt began.
        start: data.at ? Date.parse(data.at) : at,
        end: undefined,
        outcome: "running",
        worker: data.worker ?? "",
        error: "",
      };
      open.set(key, bar);
      all.push(bar);
      continue;
    }
    const outcome = ENDS[event.type];
    if (!outcome) continue;
    let bar = open.get(key);
    if (!bar) {
      bar = { step: event.stepName ?? "", attempt: event.attempt ?? 0, start: at, end: at, outcome, worker: "", error: "" };
      all.push(bar);
    }
    bar.end = at;
    bar.outcome = outcome;
    bar.error = data.error ?? data.reason ?? "";
    open.delete(key);
  }
  return all.sort((a, b) => a.start - b.start);
}

/** Rows of the chart: a step each, in the order of its first attempt. */
export function rows(all: Bar[]): { step: string; bars: Bar[] }[] {
  const byStep = new Map<string, Bar[]>();
  for (const bar of all) byStep.set(bar.step, [...(byStep.get(bar.step) ?? []), bar]);
  return [...byStep].map(([step, bars]) => ({ step, bars }));
}

/** Round places for the marks of a time axis: at most `most` of them between 0 and `length` ms. */
export function ticks(length: number, most = 8): number[] {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5];
  const step = steps.find((size) => length / size <= most) ?? Math.ceil(length / most / 864e5) * 864e5;
  const marks: number[] = [];
  for (let at = 0; at <= length; at += step) marks.push(at);
  return marks;
}
