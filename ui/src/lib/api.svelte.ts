// Requests to the public API. A refused request throws a `Problem` (RFC 9457); nothing here retries.

import { parse, write } from "./json";

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail: string,
    readonly errors: { pointer: string; detail: string }[] = [],
  ) {
    super(detail || title);
  }
}

/** Whether the server asked for a token, and what the session may do. */
export const session = $state<{ needed: boolean; scopes: string[]; roles: string[]; subject: string }>({
  needed: false,
  scopes: [],
  roles: [],
  subject: "",
});

export function may(scope: string): boolean {
  return session.scopes.includes("admin") || session.scopes.includes(scope);
}

export type Query = Record<string, string | number | boolean | undefined | null>;

/** A path of the API with its query, leaving out what is empty. */
export function path(base: string, query: Query = {}): string {
  const entries = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(entries.map(([name, value]) => [name, String(value)])).toString();
  return search ? `${base}?${search}` : base;
}

export async function request<T>(method: string, url: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(url, {
      method,
      headers,
      ...(body !== undefined && { body: typeof body === "string" ? body : write(body, null) }),
      ...(signal && { signal }),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "unreachable", "The server isn't responding", "Check that it's running; this page keeps retrying.");
  }
  const text = await response.text();
  const json = (response.headers.get("content-type") ?? "").includes("json");
  if (response.ok) return (json && text ? parse(text) : text) as T;
  if (response.status === 401) session.needed = true;
  const problem = (json ? parse(text) : {}) as Partial<Problem>;
  throw new Problem(
    response.status,
    problem.code ?? String(response.status),
    problem.title ?? response.statusText,
    problem.detail ?? "",
    problem.errors ?? [],
  );
}

export const get = <T>(url: string, query: Query = {}, signal?: AbortSignal) =>
  request<T>("GET", path(url, query), undefined, signal);
export const post = <T>(url: string, body: unknown = {}) => request<T>("POST", url, body);

/** An id as part of a path. */
export const part = encodeURIComponent;
