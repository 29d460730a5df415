import type { Edge, Node } from "./group";

export interface Placed {
  width: number;
  height: number;
  nodes: (Node & { x: number; y: number; width: number; height: number })[];
  edges: (Edge & { points: { x: number; y: number }[]; x: number; y: number })[];
}

export const size = (node: Node) => ({ width: Math.max(96, Math.min(30, title(node).length) * 7.6 + 44), height: 40 });

export const title = (node: Node) => (node.names.length === 1 ? node.names[0]! : `${node.names[0]} … × ${node.names.length.toLocaleString("en")}`);

/** A smooth line through the points of an edge. */
export function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x} ${first.y}`;
  for (let at = 0; at < rest.length; at++) {
    const point = rest[at]!;
    const next = rest[at + 1];
    path += next ? `Q${point.x} ${point.y} ${(point.x + next.x) / 2} ${(point.y + next.y) / 2}` : `L${point.x} ${point.y}`;
  }
  return path;
}
