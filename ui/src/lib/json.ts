// JSON without loss. `JSON.parse` turns 12345678901234567890 into another number and 1.10 into 1.1; people compare what they
// see here with what they sent. So a number that JavaScript would write differently is kept as its text.

export class Exact {
  constructor(readonly text: string) {}
  toString(): string {
    return this.text;
  }
}

export type Json = null | boolean | number | string | Exact | Json[] | { [key: string]: Json };

const NUMBER = /-?\d+(\.\d+)?([eE][+-]?\d+)?/y;
const SPACE = /[ \t\n\r]*/y;
const PLAIN = /[^"\\]*/y;
const ESCAPES: Record<string, string> = { n: "\n", t: "\t", r: "\r", b: "\b", f: "\f" };

/** Parses JSON; throws a SyntaxError that names the place. */
export function parse(text: string): Json {
  const reader = new Reader(text);
  const value = reader.value(0);
  reader.space();
  if (reader.at < text.length) reader.fail();
  return value;
}

class Reader {
  at = 0;
  constructor(readonly text: string) {}

  fail(): never {
    throw new SyntaxError(`not JSON at character ${this.at}`);
  }

  space() {
    SPACE.lastIndex = this.at;
    SPACE.test(this.text);
    this.at = SPACE.lastIndex;
  }

  value(depth: number): Json {
    if (depth > 512) this.fail();
    this.space();
    switch (this.text[this.at]) {
      case "{":
        return this.object(depth);
      case "[":
        return this.array(depth);
      case '"':
        return this.string();
      case "t":
        return this.word("true", true);
      case "f":
        return this.word("false", false);
      case "n":
        return this.word("null", null);
      default:
        return this.number();
    }
  }

  word<T extends Json>(word: string, value: T): T {
    if (!this.text.startsWith(word, this.at)) this.fail();
    this.at += word.length;
    return value;
  }

  number(): Json {
    NUMBER.lastIndex = this.at;
    const match = NUMBER.exec(this.text);
    if (!match) this.fail();
    this.at = NUMBER.lastIndex;
    const value = Number(match[0]);
    return String(value) === match[0] ? value : new Exact(match[0]);
  }

  string(): string {
    this.at++;
    let result = "";
    for (;;) {
      PLAIN.lastIndex = this.at;
      PLAIN.test(this.text);
      result += this.text.slice(this.at, PLAIN.lastIndex);
      this.at = PLAIN.lastIndex;
      const next = this.text[this.at++];
      if (next === '"') return result;
      if (next !== "\\") this.fail();
      const escape = this.text[this.at++] ?? this.fail();
      if (escape === "u") {
        result += String.fromCharCode(parseInt(this.text.slice(this.at, this.at + 4), 16));
        this.at += 4;
      } else result += ESCAPES[escape] ?? escape;
    }
  }

  array(depth: number): Json[] {
    this.at++;
    const items: Json[] = [];
    this.space();
    if (this.text[this.at] === "]") return this.at++, items;
    for (;;) {
      items.push(this.value(depth + 1));
      this.space();
      const next = this.text[this.at++];
      if (next === "]") return items;
      if (next !== ",") this.fail();
    }
  }

  object(depth: number): { [key: string]: Json } {
    this.at++;
    const object: { [key: string]: Json } = {};
    this.space();
    if (this.text[this.at] === "}") return this.at++, object;
    for (;;) {
      this.space();
      if (this.text[this.at] !== '"') this.fail();
      const key = this.string();
      this.space();
      if (this.text[this.at++] !== ":") this.fail();
      const value = this.value(depth + 1);
      // A key named __proto__ is data like any other.
      Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
      this.space();
      const next = this.text[this.at++];
      if (next === "}") return object;
      if (next !== ",") this.fail();
    }
  }
}

/** Writes JSON as it was read, indented by two spaces, or on one line with `indent` null. */
export function write(value: unknown, indent: string | null = ""): string {
  if (value instanceof Exact) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const list = Array.isArray(value);
  const inner = indent === null ? null : indent + "  ";
  const parts = list
    ? value.map((item) => write(item, inner))
    : Object.entries(value)
        .filter(([, item]) => item !== undefined)
        .map(([key, item]) => `${JSON.stringify(key)}:${inner === null ? "" : " "}${write(item, inner)}`);
  const [open, close] = list ? "[]" : "{}";
  if (parts.length === 0) return `${open}${close}`;
  return inner === null
    ? `${open}${parts.join(",")}${close}`
    : `${open}\n${inner}${parts.join(`,\n${inner}`)}\n${indent}${close}`;
}
