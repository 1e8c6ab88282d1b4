// What the viewer's components exchange: windows of a map, rows of the grid of heads, images.

export type Range = [number, number]; // start, end (exclusive)

export interface View {
  rows: Range;
  columns: Range;
}

// A rectangle of one head's map. step: queries and keys per cell; a cell holds the largest of its weights.
export interface MapWindow extends View {
  weights: Float32Array;
  step: number;
  height: number; // cells
  width: number;
  digits: number; // decimals that are right
  exact?: Uint8Array; // 0 where only an upper bound of the weight is known
}

export type LoadWindow = (rows: Range, columns: Range, signal: AbortSignal) => Promise<MapWindow>;

// Small maps of all heads of a layer, one after the other.
export interface SmallMaps {
  rows: number;
  columns: number;
  data: Float32Array;
}

export interface GridRow {
  id: number; // of the layer; -1 for the rollout of the Models page
  label: string;
  title: string;
  group: string; // layers of one group stand together under its heading
  heads: number;
  note?: string;
}

export interface HeadMark {
  title: string;
  letter?: string; // of the head type
  dimmed?: boolean;
  ablated?: boolean;
}

// An image cut into rows × columns patches; `special` tokens (a class token) come before the patches.
export interface PatchImage {
  source: string;
  rows: number;
  columns: number;
  special: number;
}

export const ARROWS: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export const clamp = (value: number, least: number, most: number): number => Math.max(least, Math.min(most, value));
