// A run as its page sees it: loaded once, then kept current by its stream. The server folds the log, never this page: when
// events arrive, run and explanation are asked for again, at most a few times a second.

import { get, part } from "../../lib/api.svelte";
import { Loaded } from "../../lib/load.svelte";
import { follow, type Following } from "../../lib/stream";
import { ENDED, type Event, type Explanation, type Run } from "../../lib/types";

const REFRESH = 250;

export class RunView {
  run: Loaded<Run>;
  explanation: Loaded<Explanation>;
  following = $state<Following>("live");
  /** The last event that the stream brought. */
  seq = $state(0);
  #listeners = new Set<(event: Event) => void>();
  #due = 0;
  #last = 0;

  constructor(readonly id: string) {
    const base = `/v1/runs/${part(id)}`;
    this.run = new Loaded(() => get<Run>(base));
    this.explanation = new Loaded(() => get<Explanation>(`${base}/explain`));
  }

  get ended(): boolean {
    return this.run.value !== undefined && ENDED.includes(this.run.value.status);
  }

  /** Loads and follows; returns what stops it. */
  open(): () => void {
    let stop = () => {};
    let closed = false;
    void this.refresh().then(() => {
      const run = this.run.value;
      if (!run || closed) return;
      this.seq = run.events;
      if (ENDED.includes(run.status)) return void (this.following = "ended");
      const base = `/v1/runs/${part(this.id)}/stream`;
      stop = follow({
        url: (last) => (last === undefined ? `${base}?after=${run.events}` : base),
        message: ({ data }) => this.#take(data as Event),
        status: (status) => {
          this.following = status;
          if (status !== "reconnecting") this.#soon();
        },
      });
    });
    return () => {
      closed = true;
      stop();
      clearTimeout(this.#due);
      this.#due = 0;
    };
  }

  /** Tells of every event that the stream brings. */
  listen(listener: (event: Event) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  refresh = async () => {
    this.#last = Date.now();
    await Promise.all([this.run.load(), this.explanation.load()]);
  };

  #take(event: Event) {
    this.seq = event.seq;
    for (const listener of this.#listeners) listener(event);
    this.#soon();
  }

  #soon() {
    if (this.#due) return;
    const wait = Math.max(0, this.#last + REFRESH - Date.now());
    this.#due = window.setTimeout(() => {
      this.#due = 0;
      void this.refresh();
    }, wait);
  }
}
