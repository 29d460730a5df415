import { expect, test } from "vitest";
import { group } from "../../src/graph/group";
import type { Explanation, Graph, Lane } from "../../src/lib/types";
import { fieldOf, fields, input } from "../../src/pages/flows/form";
import { queues } from "../../src/pages/queues/queues";
import { remedies } from "../../src/pages/run/remedy";
import { command, isEmpty, query, quote, read } from "../../src/pages/runs/filter";
import { write } from "../../src/lib/json";

test("a filter reads from the URL what it writes to the API and the command line", () => {
  const filter = read(new URLSearchParams("flow=a b&status=failed&label=x=1&nonsense=1"));
  expect(query(filter)).toEqual({ flow: "a b", status: "failed", label: "x=1" });
  expect(command(filter, "http://h")).toBe("flowline runs --flow 'a b' --status failed --label x=1 --server http://h");
  expect(isEmpty(read(new URLSearchParams("status=nonsense")))).toBe(true);
  expect(quote("it's")).toBe(`'it'\\''s'`);
});

test("a form follows the schema and keeps the digits of numbers", () => {
  const all = fields({ type: "object", properties: { n: { type: "integer" }, s: { type: "string" }, m: { enum: ["a", "b"] }, o: { type: "object" } }, required: ["n"] })!;
  expect(all.map((field) => field.kind)).toEqual(["number", "text", "choice", "json"]);
  const made = input(all, { n: "12345678901234567890", s: " x ", m: "b", o: '{"k": 1.10}' });
  expect("input" in made && write(made.input, null)).toBe('{"n":12345678901234567890,"s":" x ","m":"b","o":{"k":1.10}}');
  expect(input(all, { n: "", o: "{" })).toEqual({ wrong: { n: "is required", o: "isn't JSON" } });
  expect(fieldOf(all, "/input/n")).toBe("n");
  expect(fields({ type: "array" })).toBeUndefined();
});

test("steps with the same neighbours become one node", () => {
  const nodes = [{ id: "a", kind: "entry", name: "a" }, ...Array.from({ length: 9998 }, (_, n) => ({ id: `s${n}`, kind: "step", name: `s${n}` })), { id: "z", kind: "step", name: "z" }];
  const edges = nodes.slice(1, -1).flatMap((node) => [{ from: "a", to: node.id, event: "go", join: "all" }, { from: node.id, to: "z", event: "done", join: "any" }]);
  const grouped = group({ flow: "f", nodes, edges } as Graph);
  expect(grouped.nodes.map((node) => node.names.length)).toEqual([1, 9998, 1]);
  expect(grouped.edges).toHaveLength(2);
});

test("lanes of a queue are put together", () => {
  const lane = (need: string, ready: number, oldest: string | null) => ({ queue: "q", need, ready, delayed: 1, held: 0, leased: 2, oldest, paused: need === "b" }) as Lane;
  expect(queues([lane("a", 1, null), lane("b", 2, "2026-01-01T00:00:00Z")])).toEqual([
    { name: "q", ready: 3, delayed: 2, held: 0, leased: 4, oldest: "2026-01-01T00:00:00Z", paused: true, needs: ["a", "b"] },
  ]);
});

const explained = (part: object) => ({ runId: "r", status: "running", steps: [], accepts: [], ...part }) as unknown as Explanation;

test("a paused run is resumed, a missing event sent, a paused queue resumed", () => {
  expect(remedies(explained({ status: "paused" })).map((one) => one.label)).toEqual(["Resume"]);
  const waits = { steps: [{ step: "s", state: "idle", reason: "", missing: [{ event: "approved", emittedBy: [], external: true }] }] };
  expect(remedies(explained(waits)).map((one) => one.label)).toEqual(["Send approved"]);
  const queued = { steps: [{ step: "s", state: "queued", reason: 'queue "q" is paused', job: { queue: "q", state: "waiting" } }] };
  expect(remedies(explained(queued)).map((one) => one.label)).toEqual(["Resume queue q", "Open queue q"]);
  expect(remedies(explained({ status: "failed" }))).toEqual([]);
});
