// The grid of heads: letters that stand for head types, and moving through the grid with the arrow keys.

import { clamp, type GridRow } from "./types";

// One letter per head type: the first letter of its name that is still free.
export function typeLetters(types: Iterable<string>): Map<string, string> {
  const letters = new Map<string, string>();
  for (const type of types) {
    if (letters.has(type) || type === "mixed") continue;
    const taken = new Set(letters.values());
    const wanted = [...type.toUpperCase().replace(/[^A-Z]/g, ""), ..."ABCDEFGHIJKLMNOPQRSTUVWXYZ"];
    letters.set(type, wanted.find((letter) => !taken.has(letter)) ?? "•");
  }
  return letters;
}

// The layer and head that an arrow key leads to: layers wrap around, and so do the heads of a layer.
export function moveHead(rows: GridRow[], layer: number, head: number, [down, right]: [number, number]): [number, number] {
  const here = Math.max(rows.findIndex((row) => row.id === layer), 0);
  const row = rows[(here + down + rows.length) % rows.length];
  return [row.id, right ? (head + right + row.heads) % row.heads : clamp(head, 0, row.heads - 1)];
}
