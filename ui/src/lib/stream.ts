// Follows a stream of events by `fetch`, since `EventSource` can send no headers and stops for good on some errors.
// A hidden tab closes its stream and resumes it by id when it is seen again: over HTTP/1.1 a browser has six connections.

import { session } from "./api.svelte";
import { parse } from "./json";

export type Following = "live" | "reconnecting" | "ended";

export interface Message {
  id: string | undefined;
  event: string;
  data: unknown;
}

export interface Follow {
  /** The URL to open; `after` is the id of the last message, if there was one. */
  url: (after: string | undefined) => string;
  message: (message: Message) => void;
  status: (status: Following) => void;
}

const SILENCE = 40_000; // the server says something every 15 s

/** Follows until the stream says `end` or the returned function is called. */
export function follow({ url, message, status }: Follow): () => void {
  let last: string | undefined;
  let stopped = false;
  let failures = 0;
  let abort = new AbortController();
  let wake = () => {};

  const pause = (ms: number) =>
    new Promise<void>((resolve) => {
      wake = resolve;
      setTimeout(resolve, ms);
    });
  const visible = () => {
    if (document.hidden) abort.abort();
    else wake();
  };
  document.addEventListener("visibilitychange", visible);

  async function read(): Promise<boolean> {
    abort = new AbortController();
    const response = await fetch(url(last), {
      signal: abort.signal,
      headers: { accept: "text/event-stream", ...(last !== undefined && { "last-event-id": last }) },
    });
    if (response.status === 204) return true;
    if (response.status === 401) session.needed = true;
    if (!response.ok || !response.body) throw new Error(String(response.status));
    failures = 0;
    status("live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const timer = setTimeout(() => abort.abort(), SILENCE);
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return false;
      const blocks = (text + value).split("\n\n");
      text = blocks.pop() ?? "";
      for (const block of blocks) if (take(block)) return true;
    }
  }

  /** True where the stream says that it is over. */
  function take(block: string): boolean {
    let event = "";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) last = line.slice(4);
      else if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (event === "end") return true;
    if (event) message({ id: last, event, data: parse(data) });
    return false;
  }

  async function run() {
    while (!stopped) {
      if (document.hidden) {
        await pause(3_600_000);
        continue;
      }
      try {
        if (await read()) return status("ended");
      } catch {
        // It broke, was closed because the tab is hidden, or the server is away: try again below.
      }
      if (stopped) return;
      if (!document.hidden) {
        status("reconnecting");
        await pause(Math.min(500 * 2 ** failures++, 5000) * (0.75 + Math.random() / 2));
      }
    }
  }
  void run();

  return () => {
    stopped = true;
    abort.abort();
    wake();
    document.removeEventListener("visibilitychange", visible);
  };
}
