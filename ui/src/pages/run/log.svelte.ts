// A run's log, page by page. `seq` has no gaps, so row `i` of the whole log is the event with `seq` i + 1 and any place can be
// loaded at once. With a filter, pages follow one another instead.

import { get, part } from "../../lib/api.svelte";
import type { Event, EventPage } from "../../lib/types";

const PAGE = 100;

export interface LogFilter {
  step: string;
  type: string;
}

export class Log {
  /** How many rows there are, as far as is known. */
  count = $state(0);
  error = $state.raw<unknown>();
  /** Goes up when rows arrived: rows themselves are kept out of deep reactivity. */
  changed = $state(0);
  #rows: (Event | undefined)[] = [];
  #asked = new Set<number>();
  #next: number | null = 0;

  constructor(
    readonly run: string,
    readonly filter: LogFilter,
  ) {}

  get filtered(): boolean {
    return this.filter.step !== "" || this.filter.type !== "";
  }

  at(index: number): Event | undefined {
    void this.changed;
    return this.#rows[index];
  }

  /** The log has at least this many events. */
  grow(events: number) {
    if (!this.filtered && events > this.count) this.count = events;
  }

  /** Takes an event from the stream. */
  take(event: Event) {
    if (this.filtered) {
      // What comes after pages that aren't loaded yet will come with them.
      if (this.#next !== null || !this.#fits(event)) return;
      this.#rows.push(event);
      this.count = this.#rows.length;
    } else {
      this.#rows[event.seq - 1] = event;
      this.grow(event.seq);
    }
    this.changed++;
  }

  #fits(event: Event): boolean {
    const { step, type } = this.filter;
    return (!step || event.stepName === step) && (!type || type.split(",").includes(event.type));
  }

  /** Loads what is missing between two rows. */
  need(from: number, to: number) {
    if (this.filtered) {
      if (to + 20 >= this.count && this.#next !== null) void this.#load(this.#next);
      return;
    }
    for (let page = Math.floor(from / PAGE); page * PAGE < to; page++) {
      const start = page * PAGE;
      const whole = Math.min(start + PAGE, this.count);
      let missing = false;
      for (let index = start; index < whole && !missing; index++) missing = this.#rows[index] === undefined;
      if (missing) void this.#load(start);
    }
  }

  async #load(after: number) {
    if (this.#asked.has(after)) return;
    this.#asked.add(after);
    try {
      const page = await get<EventPage>(`/v1/runs/${part(this.run)}/events`, { after, limit: PAGE, ...this.filter });
      if (this.filtered) {
        this.#rows.push(...page.items);
        this.#next = page.hasMore ? page.next : null;
        this.count = this.#rows.length;
      } else {
        for (const event of page.items) this.#rows[event.seq - 1] = event;
        this.grow(page.items.at(-1)?.seq ?? 0);
      }
      this.error = undefined;
      this.changed++;
    } catch (error) {
      this.error = error;
    } finally {
      this.#asked.delete(after);
    }
  }

  /** The next row after this one that is an error, among those that are loaded. */
  nextError(from: number): number | undefined {
    for (let step = 1; step <= this.#rows.length; step++) {
      const index = (from + step) % this.#rows.length;
      const event = this.#rows[index];
      if (event && isError(event)) return index;
    }
    return undefined;
  }
}

export function isError(event: Event): boolean {
  const level = (event.data as { level?: string } | undefined)?.level;
  return /^(step\.(failed|retry)|flow\.failed|event\.rejected)$/.test(event.type) || level === "error";
}
