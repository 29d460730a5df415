// Steps with the same neighbours become one node "× 9,998" before layout, which would otherwise take minutes.

import type { Graph } from "../lib/types";

export interface Node {
  id: string;
  kind: Graph["nodes"][number]["kind"];
  /** The names that it stands for. */
  names: string[];
  runner: string;
}

export interface Edge {
  from: string;
  to: string;
  label: string;
  any: boolean;
}

export interface Grouped {
  nodes: Node[];
  edges: Edge[];
}

/** Fewer alike than this are drawn one by one. */
const ALIKE = 6;

export function group(graph: Graph): Grouped {
  const before = new Map<string, string[]>();
  const after = new Map<string, string[]>();
  for (const edge of graph.edges) {
    push(after, edge.from, `${edge.to} ${label(edge)}`);
    push(before, edge.to, `${edge.from} ${label(edge)}`);
  }
  const alike = new Map<string, string[]>();
  for (const node of graph.nodes) {
    const key = [node.kind, node.runner ?? "", (before.get(node.id) ?? []).sort().join("|"), (after.get(node.id) ?? []).sort().join("|")].join("\n");
    push(alike, key, node.id);
  }
  const into = new Map<string, string>();
  for (const ids of alike.values()) if (ids.length >= ALIKE) for (const id of ids) into.set(id, ids[0]!);
  const nodes = new Map<string, Node>();
  for (const node of graph.nodes) {
    const id = into.get(node.id) ?? node.id;
    const known = nodes.get(id);
    if (known) known.names.push(node.name);
    else nodes.set(id, { id, kind: node.kind, names: [node.name], runner: node.runner ?? "" });
  }
  const edges = new Map<string, Edge>();
  for (const edge of graph.edges) {
    const from = into.get(edge.from) ?? edge.from;
    const to = into.get(edge.to) ?? edge.to;
    const key = `${from} ${to}`;
    const known = edges.get(key);
    const text = label(edge);
    if (!known) edges.set(key, { from, to, label: text, any: edge.join === "any" });
    else if (text && !known.label.split(", ").includes(text)) known.label = known.label.length > 60 ? known.label : [known.label, text].filter(Boolean).join(", ");
  }
  return { nodes: [...nodes.values()], edges: [...edges.values()] };
}

function push(map: Map<string, string[]>, key: string, value: string) {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

function label(edge: Graph["edges"][number]): string {
  return edge.event ?? (edge.after ? `after ${edge.after}` : edge.at ? `at ${edge.at}` : edge.action ? `${edge.action} failed` : "");
}
