import { expect, test } from "vitest";
import type { Event } from "../../src/lib/types";
import { bars, rows, ticks } from "../../src/pages/run/timeline";

const event = (seq: number, ms: number, type: string, step: string, attempt: number, data = {}) =>
  ({ seq, ts: new Date(ms).toISOString(), type, stepName: step, stepId: `r__${step}__attempt-${attempt}`, attempt, data }) as unknown as Event;

test("each attempt has a bar from its start to its end, with its outcome", () => {
  const found = bars([
    event(1, 1000, "step.started", "a", 1, { worker: "w", at: new Date(900).toISOString() }),
    event(2, 1500, "step.retry", "a", 1, { error: "busy" }),
    event(3, 2000, "step.started", "a", 2),
    event(4, 2100, "step.started", "b", 1),
    event(5, 2600, "step.completed", "a", 2),
  ]);
  expect(found.map(({ step, attempt, start, end, outcome, error }) => [step, attempt, start, end, outcome, error])).toEqual([
    ["a", 1, 900, 1500, "retried", "busy"],
    ["a", 2, 2000, 2600, "completed", ""],
    ["b", 1, 2100, undefined, "running", ""],
  ]);
  expect(rows(found).map((row) => [row.step, row.bars.length])).toEqual([["a", 2], ["b", 1]]);
});

test("a skipped step has a bar without length", () => {
  expect(bars([event(1, 5, "step.skipped", "c", 0, { reason: "not triggered" })])[0]).toMatchObject({ start: 5, end: 5, outcome: "skipped", error: "not triggered" });
});

test.each([1, 37, 999, 61_000, 7_200_000, 86_400_000 * 40])("an axis of %d ms has at most nine marks and starts at zero", (length) => {
  const marks = ticks(length);
  expect(marks[0]).toBe(0);
  expect(marks.length).toBeLessThanOrEqual(9);
});
