// The API's answers, named as the console speaks of them. Made from docs/openapi.json, so a change of the API shows here.

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Run = Schemas["Run"];
export type RunRow = Schemas["RunPage"]["items"][number];
export type RunPage = Schemas["RunPage"];
export type Status = Run["status"];
export type Explanation = Schemas["Explanation"];
export type ExplainedStep = Explanation["steps"][number];
export type EventPage = Schemas["EventPage"];
export type Event = Schemas["Event"];
export type Graph = Schemas["Graph"];
export type FlowRow = Schemas["FlowList"]["items"][number];
export type FlowList = Schemas["FlowList"];
export type Flow = Schemas["Flow"];
export type Lane = Schemas["QueueList"]["items"][number];
export type QueueList = Schemas["QueueList"];
export type WorkerPage = Schemas["WorkerPage"];
export type DeadLetters = Schemas["DeadLetters"];
export type Receipt = Schemas["Receipt"];
export type ReceiptPage = Schemas["ReceiptPage"];
export type Stats = Schemas["Stats"];
export type TokenList = Schemas["TokenList"];
export type AuditPage = Schemas["AuditPage"];
export type StateList = Schemas["StateList"];
export type Principal = Schemas["Principal"];
export type BulkDone = Schemas["BulkDone"];

export const STATUSES: Status[] = ["running", "waiting", "paused", "completed", "failed", "cancelled"];
export const ENDED: Status[] = ["completed", "failed", "cancelled"];
