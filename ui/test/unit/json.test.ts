import { describe, expect, test } from "vitest";
import { Exact, parse, write } from "../../src/lib/json";

describe("JSON without loss", () => {
  test.each(["12345678901234567890", "1.10", "1e400", "-0", "0.1", "1E5"])("%s is written as it was read", (text) => {
    expect(write(parse(text), null)).toBe(text);
  });

  test("an ordinary number stays a number", () => {
    expect(parse("[1, -2.5, 1000]")).toEqual([1, -2.5, 1000]);
    expect(parse("1.10")).toBeInstanceOf(Exact);
  });

  test.each(['{"a":[1,{"b":null}],"c":"x\\ny","d":true}', '"\\u00e9\\ud83d\\ude00\\"\\\\\\/"', "[]", "{}", '{"__proto__":1}'])(
    "%s reads like JSON.parse",
    (text) => expect(JSON.stringify(parse(text))).toBe(JSON.stringify(JSON.parse(text))),
  );

  test.each(["", "{", "[1,]", '{"a" 1}', "nul", '"abc', "1 2", "[".repeat(1000)])("%s is refused", (text) => {
    expect(() => parse(text)).toThrow(SyntaxError);
  });

  test("indentation follows the depth", () => {
    expect(write({ a: [1, {}], b: new Exact("1.10") })).toBe('{\n  "a": [\n    1,\n    {}\n  ],\n  "b": 1.10\n}');
  });
});
