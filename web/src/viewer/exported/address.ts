// The state of the exported page in its address after '#', so that a copied link opens the same view.

import type { Scale } from "../colors";
import type { View } from "../types";

export interface ViewerState {
  panel: number;
  head: number;
  query: number;
  key: number; // -1: the one with the largest weight
  view: View | null;
  scale: Scale;
  type: string; // head type that is highlighted
  overlay: string; // what is shown over the image: head, mean, or the number of a computed map
  search: string;
  theme: string; // light, dark, or "" for the system's
}

export const FIRST: ViewerState = { panel: 0, head: 0, query: 0, key: -1, view: null, scale: "root", type: "", overlay: "head", search: "", theme: "" };
const NUMBERS = ["panel", "head", "query", "key"] as const;
const TEXTS = ["type", "overlay", "search", "theme"] as const;

export function toHash(state: ViewerState, first: ViewerState = FIRST): string {
  const found = new URLSearchParams();
  for (const name of [...NUMBERS, ...TEXTS, "scale"] as const) if (state[name] !== first[name]) found.set(name, String(state[name]));
  if (state.view) found.set("view", viewText(state.view));
  return `#${found}`;
}

export function fromHash(hash: string, first: ViewerState = FIRST): ViewerState {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...first, view: viewOf(given.get("view") ?? "") };
  for (const name of NUMBERS) if (given.has(name)) state[name] = Math.max(0, Math.round(Number(given.get(name))) || 0);
  for (const name of TEXTS) if (given.has(name)) state[name] = given.get(name)!;
  const scale = given.get("scale");
  if (scale === "linear" || scale === "root" || scale === "own") state.scale = scale;
  return state;
}

// A window of a map as text: first and last query, first and last key (exclusive).
export function viewText(view: View): string {
  return [...view.rows, ...view.columns].join(".");
}

export function viewOf(text: string): View | null {
  const [a, b, c, d] = text.split(".").map(Number);
  return [a, b, c, d].every(Number.isInteger) ? { rows: [a, b], columns: [c, d] } : null;
}
