// A client made of nothing but fetch and the types that openapi-typescript generates: node client.mjs URL TOKEN.
import type { operations } from "./api.js";

declare const process: { argv: string[] };
const [server, token] = process.argv.slice(2);

type Body<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? B : undefined;
type Good<R> = R[keyof R & (200 | 201)] extends { content: { "application/json": infer A } } ? A : never;

/** Does an operation of the API; what it takes and gives follows from its id. */
async function call<O extends keyof operations>(
  request: `${"GET" | "POST"} ${string}`,
  body?: Body<operations[O]>,
): Promise<Good<operations[O]["responses"]>> {
  const [method, path] = request.split(" ");
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const response = await fetch(server + path, { method, headers, body: body && JSON.stringify(body) });
  if (!response.ok) throw new Error(`${request}: ${response.status} ${await response.text()}`);
  return response.json() as Promise<Good<operations[O]["responses"]>>;
}

function expect<T>(what: string, found: T, expected: T): void {
  if (JSON.stringify(found) !== JSON.stringify(expected)) {
    throw new Error(`${what}: ${JSON.stringify(found)} instead of ${JSON.stringify(expected)}`);
  }
}

const flow = { flow: "typescript", steps: { write: { worker: "letters" } } };
expect("registered", (await call<"postFlows">("POST /v1/flows", flow)).flow, "typescript");
const started = await call<"postFlowsFlowRuns">("POST /v1/flows/typescript/runs", { input: { name: "Ada" }, labels: { by: "test" } });

const { jobs } = await call<"postWorkClaim">("POST /v1/work/claim", { worker: "ts-1", queues: ["letters"] });
expect("jobs", jobs.map((job) => [job.runId, job.input]), [[started.runId, { name: "Ada" }]]);
const outcomes = jobs.map((job) => ({ lease: job.lease, complete: { result: "Dear Ada" } }));
const reported = await call<"postWorkComplete">("POST /v1/work/complete", { outcomes });
expect("reported", reported.results.map((result) => result.applied), [true]);

const outcome = await call<"getRunsRunResult">(`GET /v1/runs/${started.runId}/result?wait=30s`);
expect("outcome", [outcome.status, outcome.result], ["completed", { write: "Dear Ada" }]);
const page = await call<"getRuns">("GET /v1/runs?flow=typescript&status=completed");
expect("list", page.items.map((run) => run.runId), [started.runId]);
const run = await call<"getRunsRun">(`GET /v1/runs/${started.runId}`);
expect("run", [run.status, run.labels.by, run.completedSteps], ["completed", "test", 1]);
const log = await call<"getRunsRunEvents">(`GET /v1/runs/${started.runId}/events`);
expect("events", log.items.map((event) => event.type), ["flow.start", "step.started", "step.completed", "flow.completed"]);
