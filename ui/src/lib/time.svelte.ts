// Times and durations as people read them. The zone is always shown; durations of running things follow the server's clock.

const stored = (() => {
  try {
    return localStorage.getItem("flowline.zone");
  } catch {
    return null;
  }
})();

/** `now` ticks once a second, moved by how far the server's clock is from this machine's. */
export const clock = $state({ now: Date.now(), skew: 0, utc: stored === "utc" });

setInterval(() => (clock.now = Date.now() + clock.skew), 1000);

export function setUtc(utc: boolean) {
  clock.utc = utc;
  try {
    localStorage.setItem("flowline.zone", utc ? "utc" : "local");
  } catch {
    // A browser that stores nothing forgets the choice with the tab.
  }
}

const pad = (value: number, digits = 2) => String(value).padStart(digits, "0");

/** The zone that times are shown in: `UTC` or `UTC+02:00`. */
export function zone(at = new Date()): string {
  if (clock.utc) return "UTC";
  const minutes = -at.getTimezoneOffset();
  if (minutes === 0) return "UTC+00:00";
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "-" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
}

export function date(iso: string): string {
  const at = new Date(iso);
  return clock.utc
    ? iso.slice(0, 10)
    : `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
}

/** `14:02:07`, with `.123` where milliseconds matter. */
export function time(iso: string, millis = false): string {
  const at = new Date(iso);
  const base = clock.utc
    ? iso.slice(11, 19)
    : `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return millis ? `${base}.${pad(at.getUTCMilliseconds(), 3)}` : base;
}

/** `850 ms`, `1.4 s`, `3 min 20 s`, `5 h 2 min`, `3 d 4 h`. */
export function duration(ms: number): string {
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const two = (large: number, one: string, small: number, other: string) =>
    small ? `${large} ${one} ${small} ${other}` : `${large} ${one}`;
  const whole = Math.floor(seconds);
  if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86_400) return two(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return two(Math.floor(whole / 86_400), "d", Math.floor((whole % 86_400) / 3600), "h");
}

/** `12 s ago`, by the server's clock. */
export function ago(iso: string): string {
  const ms = clock.now - Date.parse(iso);
  return ms < 1000 ? "just now" : `${duration(Math.floor(ms / 1000) * 1000).replace(/\.0 s/, " s")} ago`;
}
