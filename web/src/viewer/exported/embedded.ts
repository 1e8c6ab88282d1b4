// The weights that an exported page holds: all, or pooled maps with the largest weights per row, or queries and keys
// from which any row is computed.

import type { MapWindow, PatchImage, Range, SmallMaps } from "../types";
import { LazyWeights, type Piece } from "./lazy_weights";
import { inflate, integers, type Packed } from "./unpack";

export interface PanelData {
  name: string;
  queries: [axis: number, count: number];
  keys: [axis: number, count: number];
  heads: number;
  step: number; // queries and keys per cell of the pooled map
  derived: boolean; // computed from the maps of the layers: rollout, ...
  number: number; // among the layers of the same axes
  place: number; // in the trace
  peaks: number[];
  entropy: number[];
  distance: number[];
  first: number[];
  types: [name: string, score: number][][];
  exact?: Packed; // all weights, as integers of 10^-digits
  cells?: Packed; // pooled weights: 127 √(w / peak)
  top?: [count: number];
  top_keys?: Packed;
  top_weights?: Packed;
  lazy?: { pieces?: Piece[]; blob: string; why?: string };
}

export interface PageData {
  title: string;
  facts: [name: string, text: string][];
  axes: { name: string; tokens: string[] }[];
  digits: number;
  panels: PanelData[];
  first: [panel: number, head: number]; // what the page opens on
  image: (PatchImage & { axis: number }) | null;
}

const NEAR = 96; // queries or keys up to which a window shows single weights of a pooled map
const WORK = 6e7; // multiplications up to which a window is computed from queries and keys
const LAZY_DIGITS = 4; // decimals that are right of weights computed from 14-bit vectors

export class EmbeddedWeights {
  readonly queries: number;
  readonly keys: number;
  readonly rows: number; // of the pooled map
  readonly columns: number;
  private lazy: LazyWeights | null = null;
  private opening: Promise<void> | null = null;

  constructor(
    readonly panel: PanelData,
    private readonly bytes: Uint8Array,
    private readonly digits: number,
    private readonly blob: (id: string) => string,
  ) {
    [this.queries, this.keys] = [panel.queries[1], panel.keys[1]];
    [this.rows, this.columns] = [Math.ceil(this.queries / panel.step), Math.ceil(this.keys / panel.step)];
  }

  get computed(): boolean {
    return Boolean(this.panel.lazy?.pieces);
  }

  // The maps of all heads for the grid: every weight, or pooled.
  get small(): SmallMaps {
    const data = new Float32Array(this.panel.heads * this.rows * this.columns);
    for (let head = 0; head < this.panel.heads; head++) data.set(this.cells(head), head * this.rows * this.columns);
    return { rows: this.rows, columns: this.columns, data };
  }

  // A rectangle of a head's map with at most `size` cells along a side, where the page knows them.
  async window(head: number, rows: Range, columns: Range, size: number): Promise<MapWindow> {
    await this.open();
    const longest = Math.max(rows[1] - rows[0], columns[1] - columns[0]);
    const width = this.lazy?.pieces[0].width ?? 1;
    if (this.panel.exact || (this.lazy && (rows[1] - rows[0]) * this.keys * width < WORK)) {
      return this.pooled(rows, columns, Math.ceil(longest / size) || 1, (query) => this.exactRow(head, query)!);
    }
    return longest <= NEAR || this.panel.step === 1 ? this.bounds(head, rows, columns) : this.cellWindow(head, rows, columns);
  }

  private pooled(rows: Range, columns: Range, step: number, row: (query: number) => ArrayLike<number>): MapWindow {
    const [height, width] = [rows, columns].map(([from, to]) => Math.ceil((to - from) / step));
    const weights = new Float32Array(height * width);
    for (let query = rows[0]; query < rows[1]; query++) {
      const [values, start] = [row(query), Math.floor((query - rows[0]) / step) * width];
      for (let key = columns[0]; key < columns[1]; key++) {
        const at = start + Math.floor((key - columns[0]) / step);
        if (values[key] > weights[at]) weights[at] = values[key];
      }
    }
    return { weights, rows, columns, step, height, width, digits: this.panel.exact ? this.digits : LAZY_DIGITS };
  }

  // Single weights of a pooled map: the largest of each row are exact, of the others the largest possible value is known.
  private bounds(head: number, rows: Range, columns: Range): MapWindow {
    const [height, width] = [rows[1] - rows[0], columns[1] - columns[0]];
    const [weights, exact] = [new Float32Array(height * width), new Uint8Array(height * width)];
    for (let i = 0; i < height; i++) {
      const top = this.storedTop(head, rows[0] + i);
      const least = top.length < this.panel.top![0] ? 0 : top[top.length - 1][1];
      for (let j = 0; j < width; j++) weights[i * width + j] = Math.min(least, this.cell(head, rows[0] + i, columns[0] + j, 0.8));
      for (const [key, weight] of top) {
        if (key < columns[0] || key >= columns[1]) continue;
        weights[i * width + key - columns[0]] = weight;
        exact[i * width + key - columns[0]] = 1;
      }
    }
    return { weights, rows, columns, step: 1, height, width, digits: this.digits, exact };
  }

  private cellWindow(head: number, rows: Range, columns: Range): MapWindow {
    const { step } = this.panel;
    const [top, left] = [Math.floor(rows[0] / step), Math.floor(columns[0] / step)];
    const [height, width] = [Math.ceil(rows[1] / step) - top, Math.ceil(columns[1] / step) - left];
    const [cells, weights] = [this.cells(head), new Float32Array(height * width)];
    for (let i = 0; i < height; i++) weights.set(cells.subarray((top + i) * this.columns + left, (top + i) * this.columns + left + width), i * width);
    const range = (start: number, count: number, most: number): Range => [start * step, Math.min((start + count) * step, most)];
    return { weights, rows: range(top, height, this.queries), columns: range(left, width, this.keys), step, height, width, digits: this.digits };
  }

  // One query's weights for shading; where they are not known, its largest weights or its cells.
  async row(head: number, query: number): Promise<Float32Array> {
    await this.open();
    const exact = this.exactRow(head, query);
    if (exact) return Float32Array.from(exact);
    const row = new Float32Array(this.keys);
    if (this.panel.step === 1) for (let key = 0; key < this.keys; key++) row[key] = this.cell(head, query, key);
    for (const [key, weight] of this.storedTop(head, query)) row[key] = weight;
    return row;
  }

  // The largest weights of a row, [key, weight], without zeros.
  top(head: number, query: number, count = 8): [number, number][] {
    if (!this.panel.exact) return this.storedTop(head, query).slice(0, count);
    const row = Array.from(this.exactRow(head, query)!, (weight, key): [number, number] => [key, weight]);
    return row.filter(([, weight]) => weight > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, count);
  }

  private exactRow(head: number, query: number): ArrayLike<number> | null {
    if (!this.panel.exact) return this.lazy?.row(head, query) ?? null;
    const from = (head * this.queries + query) * this.keys;
    return Float64Array.from(integers(this.bytes, this.panel.exact, from, this.keys), (integer) => integer * 10 ** -this.digits);
  }

  private storedTop(head: number, query: number): [number, number][] {
    const found: [number, number][] = [];
    const k = this.panel.top![0];
    let integer = 0;
    for (let rank = 0; rank < k; rank++) {
      const at = (head * k + rank) * this.queries + query;
      const stored = integers(this.bytes, this.panel.top_weights!, at, 1)[0]; // the first weight, then the differences
      integer = rank ? integer - stored : stored;
      const weight = integer * 10 ** -this.digits;
      if (weight > 0) found.push([integers(this.bytes, this.panel.top_keys!, at, 1)[0], weight]);
    }
    return found;
  }

  private cells(head: number): Float32Array {
    const count = this.rows * this.columns;
    if (this.panel.exact) return Float32Array.from(integers(this.bytes, this.panel.exact, head * count, count), (integer) => integer * 10 ** -this.digits);
    return Float32Array.from(integers(this.bytes, this.panel.cells!, head * count, count), (stored) => (stored / 127) ** 2 * this.panel.peaks[head]);
  }

  // The pooled weight of the cell in which a query and a key lie; `more` quantization steps rounded up.
  private cell(head: number, query: number, key: number, more = 0): number {
    const at = Math.floor(query / this.panel.step) * this.columns + Math.floor(key / this.panel.step);
    const stored = integers(this.bytes, this.panel.cells!, head * this.rows * this.columns + at, 1)[0];
    return ((stored + more) / 127) ** 2 * this.panel.peaks[head];
  }

  private open(): Promise<void> {
    if (!this.computed) return Promise.resolve();
    this.opening ??= inflate(this.blob(this.panel.lazy!.blob)).then((bytes) => {
      this.lazy = new LazyWeights(this.panel.lazy!.pieces!, this.panel.heads, this.keys, bytes);
    });
    return this.opening;
  }
}

// The mean over a layer's heads of one query's weights.
export async function meanRow(weights: EmbeddedWeights, query: number): Promise<Float32Array> {
  const mean = new Float32Array(weights.keys);
  for (let head = 0; head < weights.panel.heads; head++) {
    (await weights.row(head, query)).forEach((weight, key) => (mean[key] += weight / weights.panel.heads));
  }
  return mean;
}

