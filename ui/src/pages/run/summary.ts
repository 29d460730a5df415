// One line about an event's data, for the rows of the log.

import { write } from "../../lib/json";
import type { Event } from "../../lib/types";

const LONGEST = 300;

export function summary(event: Event): string {
  const data = (event.data ?? {}) as Record<string, unknown>;
  const text = (name: string) => (typeof data[name] === "string" ? (data[name] as string) : "");
  switch (event.type) {
    case "log":
      return cut(text("message"));
    case "emit":
      return cut(`${text("name")} ${"payload" in data ? write(data.payload, null) : ""}`);
    case "step.started":
      return text("worker") && `by ${text("worker")}`;
    case "step.completed":
      return data.result === null || data.result === undefined ? "" : cut(write(data.result, null));
    case "step.retry":
      return cut(`${text("error")}${text("at") && `, again at ${text("at")}`}`);
    case "step.failed":
    case "flow.failed":
      return cut(text("error"));
    case "step.skipped":
      return cut(text("reason"));
    case "state.changed":
      return `${text("from")} → ${text("to")}${text("event") && ` on ${text("event")}`}`;
    case "event.received":
      return cut(`${text("name")}${text("userId") && ` from ${text("userId")}`} ${"payload" in data ? write(data.payload, null) : ""}`);
    default:
      return event.data === undefined || event.data === null ? "" : cut(write(event.data, null));
  }
}

const cut = (text: string) => {
  const line = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
  return line.replaceAll("\n", " ⏎ ").trim();
};
