// One query's weights, all of them as they are: a window of more cells than it may have would hold the largest of several.

import { maps } from "../../lib/api";

const PIECE = 1024; // keys that are asked for at a time

export async function row(look: string, layer: number, head: number, query: number, keys: number, signal: AbortSignal): Promise<Float32Array> {
  const found = new Float32Array(keys);
  for (let start = 0; start < keys; start += PIECE) {
    const columns = [start, Math.min(start + PIECE, keys)];
    const { arrays } = await maps("/api/models/window", { look, layer, head, rows: [query, query + 1], columns, size: PIECE }, signal);
    found.set(arrays.weights.data, start);
  }
  return found;
}
