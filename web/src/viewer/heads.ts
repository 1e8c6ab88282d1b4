// The grid of heads: letters that stand for head types, and moving through the grid with the arrow keys.

import { clamp, type GridRow } from "./types";

// The letter of each head type, the same on every page; a head without a known type ("mixed") has none.
export const TYPE_LETTERS: Readonly<Record<string, string>> = {
  "previous-token": "P",
  "next-token": "N",
  "offset": "O",
  "current-token": "C",
  "attention-sink": "A",
  "same-token": "S",
  "duplicate-token": "D",
  "induction": "I",
  "positional": "T",
  "uniform": "U",
};

// How many heads have each type as their own, the first one: as many as carry its letter in the grid. Most frequent first.
export function countTypes(heads: Iterable<[string, number][]>): [string, number][] {
  const counts = new Map<string, number>();
  for (const [first] of heads) if (first) counts.set(first[0], (counts.get(first[0]) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

// The layer and head that an arrow key leads to: layers wrap around, and so do the heads of a layer.
export function moveHead(rows: GridRow[], layer: number, head: number, [down, right]: [number, number]): [number, number] {
  const here = Math.max(rows.findIndex((row) => row.id === layer), 0);
  const row = rows[(here + down + rows.length) % rows.length];
  return [row.id, right ? (head + right + row.heads) % row.heads : clamp(head, 0, row.heads - 1)];
}
