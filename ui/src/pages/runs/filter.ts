// The filter of the run list: what the URL says, what the API takes, what the command line takes.

import { STATUSES, type Status } from "../../lib/types";

export interface Filter {
  flow: string;
  status: Status | "";
  label: string;
  since: string;
  until: string;
}

const NAMES = ["flow", "status", "label", "since", "until"] as const;

export function read(query: URLSearchParams): Filter {
  const status = query.get("status") ?? "";
  return {
    flow: query.get("flow") ?? "",
    status: (STATUSES as string[]).includes(status) ? (status as Status) : "",
    label: query.get("label") ?? "",
    since: query.get("since") ?? "",
    until: query.get("until") ?? "",
  };
}

export const isEmpty = (filter: Filter) => NAMES.every((name) => !filter[name]);

/** What `/v1/runs` takes; nothing for what isn't set. */
export function query(filter: Filter): Record<string, string> {
  return Object.fromEntries(NAMES.filter((name) => filter[name]).map((name) => [name, filter[name]]));
}

/** The same question to the command line. */
export function command(filter: Filter, server: string): string {
  const flags = NAMES.filter((name) => filter[name]).map((name) => `--${name} ${quote(filter[name])}`);
  return ["flowline runs", ...flags, `--server ${server}`].join(" ");
}

/** A word for a POSIX shell. */
export function quote(text: string): string {
  return /^[A-Za-z0-9_.:=/@-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
