// A form made of a JSON Schema: a field for each property of an object whose type is plain; everything else is JSON text.

import { parse, type Json } from "../../lib/json";

export interface Field {
  name: string;
  kind: "text" | "number" | "boolean" | "choice" | "json";
  choices: string[];
  required: boolean;
  about: string;
}

/** The fields of a schema, or nothing where it isn't an object with properties: then the input is one JSON text. */
export function fields(schema: unknown): Field[] | undefined {
  const object = schema as { type?: unknown; properties?: Record<string, Record<string, unknown>>; required?: string[] } | undefined;
  if (!object?.properties || (object.type !== undefined && object.type !== "object")) return undefined;
  return Object.entries(object.properties).map(([name, property]) => ({
    name,
    kind: kind(property),
    choices: Array.isArray(property.enum) ? property.enum.map(String) : [],
    required: object.required?.includes(name) ?? false,
    about: typeof property.description === "string" ? property.description : "",
  }));
}

function kind(property: Record<string, unknown>): Field["kind"] {
  if (Array.isArray(property.enum) && property.enum.every((value) => typeof value === "string")) return "choice";
  if (property.type === "string") return "text";
  if (property.type === "number" || property.type === "integer") return "number";
  if (property.type === "boolean") return "boolean";
  return "json";
}

/** The input that a filled form stands for, or the fields that can't be read, by name. Numbers keep their digits. */
export function input(all: Field[], values: Record<string, string>): { input: Json } | { wrong: Record<string, string> } {
  const object: { [key: string]: Json } = {};
  const wrong: Record<string, string> = {};
  for (const field of all) {
    const text = (values[field.name] ?? "").trim();
    if (text === "") {
      if (field.required) wrong[field.name] = "is required";
      continue;
    }
    if (field.kind === "text" || field.kind === "choice") object[field.name] = values[field.name]!;
    else {
      try {
        object[field.name] = parse(text);
      } catch {
        wrong[field.name] = field.kind === "number" ? "isn't a number" : "isn't JSON";
      }
    }
  }
  return Object.keys(wrong).length ? { wrong } : { input: object };
}

/** The field that a problem's pointer such as `/input/amount` is about. */
export function fieldOf(all: Field[], pointer: string): string | undefined {
  const name = pointer.replace(/^\/input/, "").split("/")[1]?.replaceAll("~1", "/").replaceAll("~0", "~");
  return all.find((field) => field.name === name)?.name;
}
