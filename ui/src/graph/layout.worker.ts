// Places the nodes of a graph, off the page's thread so that log and timeline never wait for it.

import { Graph, layout } from "@dagrejs/dagre";
import type { Grouped } from "./group";
import { size, type Placed } from "./placed";

addEventListener("message", ({ data }: MessageEvent<Grouped>) => {
  const graph = new Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 64, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of data.nodes) graph.setNode(node.id, size(node));
  for (const edge of data.edges) graph.setEdge(edge.from, edge.to, { width: Math.min(edge.label.length, 24) * 6, height: 14 });
  layout(graph);
  const whole = graph.graph() as { width?: number; height?: number };
  const placed: Placed = {
    width: whole.width ?? 0,
    height: whole.height ?? 0,
    nodes: data.nodes.map((node) => {
      const { x, y, width, height } = graph.node(node.id) as { x: number; y: number; width: number; height: number };
      return { ...node, x: x - width / 2, y: y - height / 2, width, height };
    }),
    edges: data.edges.map((edge) => {
      const found = graph.edge(edge.from, edge.to) as { points: { x: number; y: number }[]; x?: number; y?: number };
      return { ...edge, points: found.points, x: found.x ?? 0, y: found.y ?? 0 };
    }),
  };
  postMessage(placed);
});
