// What a page shows, loaded from the API and loaded again every so often while somebody looks. What was loaded last stays on
// the page when the server is away; its age says so.

import { clock } from "./time.svelte";

export class Loaded<T> {
  value = $state.raw<T>();
  error = $state.raw<unknown>();
  /** When `value` came, by this machine's clock. */
  at = $state(0);
  #from: () => Promise<T>;
  #round = 0;

  constructor(from: () => Promise<T>) {
    this.#from = from;
  }

  /** Loads; an answer that a later load has overtaken is dropped. */
  load = async (): Promise<void> => {
    const round = ++this.#round;
    try {
      const value = await this.#from();
      if (round !== this.#round) return;
      this.value = value;
      this.error = undefined;
      this.at = Date.now();
    } catch (error) {
      if (round === this.#round) this.error = error;
    }
  };

  /** Loads now and every `ms`, but not in a hidden tab. Returns what stops it. */
  every(ms: number): () => void {
    void this.load();
    const timer = setInterval(() => document.hidden || void this.load(), ms);
    const seen = () => document.hidden || void this.load();
    document.addEventListener("visibilitychange", seen);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", seen);
      this.#round++;
    };
  }

  /** How old the value is where it can't be loaded any more, in ms. */
  get stale(): number | undefined {
    return this.error && this.at ? Math.max(0, clock.now - clock.skew - this.at) : undefined;
  }
}
