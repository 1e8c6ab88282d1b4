// Exact attention weights computed from queries and keys: softmax(softcap(q·k) + bias) over what the mask allows.
// The scale is already multiplied into the queries.

import { bit, floats, integers, signed, type Packed } from "./unpack";

interface PerHead {
  heads: number; // 1: the same for all heads
  rows: number; // 1: the same for all queries
  at: Packed;
}
type Mask = ({ at: Packed } & PerHead) | { at?: undefined; left: number | null; right: number | null; shift: number };
type Bias = { heads: number; at: Packed } & ({ distance: number; size: number } | { distance?: undefined; rows: number; columns: number });

// A rectangle of a layer's map: its weights themselves, or queries and keys with their rules.
export interface Piece {
  row: number;
  column: number;
  t: number;
  s: number;
  weights?: Packed;
  width: number;
  groups: number; // key heads
  q: [Packed, Packed];
  k: [Packed, Packed];
  floor: number | null; // the score of what the mask forbids; null for -∞
  softcap: number | null;
  mask: Mask[];
  bias: Bias | null;
  sink?: PerHead;
}

const CACHED_ROWS = 4096;

export class LazyWeights {
  private unpacked = new Map<number, Float32Array>(); // by offset
  private rows = new Map<string, Float32Array>();

  constructor(
    readonly pieces: Piece[],
    private readonly heads: number,
    private readonly keys: number,
    private readonly bytes: Uint8Array,
  ) {}

  // The weights of one query, over all keys.
  row(head: number, query: number): Float32Array {
    const name = `${head}.${query}`;
    let found = this.rows.get(name);
    if (!found) {
      if (this.rows.size > CACHED_ROWS) this.rows.clear();
      this.rows.set(name, (found = this.compute(head, query)));
    }
    return found;
  }

  private compute(head: number, query: number): Float32Array {
    const row = new Float32Array(this.keys);
    for (const piece of this.pieces) {
      const i = query - piece.row;
      if (i >= 0 && i < piece.t) row.set(piece.weights ? this.stored(piece, head, i) : this.softmax(piece, head, i), piece.column);
    }
    return row;
  }

  private stored(piece: Piece, head: number, i: number): Float32Array {
    const from = (head * piece.t + i) * piece.s;
    return Float32Array.from(integers(this.bytes, piece.weights!, from, piece.s), (integer) => integer / 65535);
  }

  private softmax(piece: Piece, head: number, i: number): Float32Array {
    const scores = this.scores(piece, head, i);
    const floor = piece.floor ?? -Infinity;
    for (let j = 0; j < piece.s; j++) if (!this.allowed(piece, head, i, j)) scores[j] = floor;
    let most = -Infinity;
    for (const score of scores) if (score > most) most = score;
    if (most === -Infinity) return new Float32Array(piece.s); // nothing is allowed: all weights are 0
    const sink = piece.sink ? this.numbers(piece.sink.at)[this.index(piece.sink, head, i)] : -Infinity;
    most = Math.max(most, sink);
    let sum = Math.exp(sink - most);
    for (let j = 0; j < piece.s; j++) sum += scores[j] = Math.exp(scores[j] - most);
    return Float32Array.from(scores, (part) => part / sum);
  }

  private scores(piece: Piece, head: number, i: number): Float64Array {
    const { width, s, t } = piece;
    const q = this.vectors(piece.q, width);
    const k = this.vectors(piece.k, width);
    const group = Math.floor(head / (this.heads / piece.groups));
    const scores = new Float64Array(s);
    const from = (head * t + i) * width;
    for (let j = 0; j < s; j++) {
      let sum = 0;
      for (let c = 0, at = (group * s + j) * width; c < width; c++) sum += q[from + c] * k[at + c];
      scores[j] = piece.softcap ? piece.softcap * Math.tanh(sum / piece.softcap) : sum;
    }
    if (piece.bias) this.addBias(piece.bias, scores, head, i);
    return scores;
  }

  private addBias(bias: Bias, scores: Float64Array, head: number, i: number): void {
    const table = this.numbers(bias.at);
    const own = bias.heads > 1 ? head : 0;
    if (bias.distance !== undefined) {
      for (let j = 0; j < scores.length; j++) scores[j] += table[own * bias.size + j - i + bias.distance];
      return;
    }
    const from = (own * bias.rows + (bias.rows > 1 ? i : 0)) * bias.columns;
    for (let j = 0; j < scores.length; j++) scores[j] += table[from + (bias.columns > 1 ? j : 0)];
  }

  private allowed(piece: Piece, head: number, i: number, j: number): boolean {
    return piece.mask.every((mask) => {
      if (mask.at) return bit(this.bytes, mask.at, this.index(mask, head, i) * piece.s + j) === 1;
      const ahead = j - i - mask.shift;
      return (mask.left === null || ahead >= -mask.left) && (mask.right === null || ahead <= mask.right);
    });
  }

  private index(table: PerHead, head: number, i: number): number {
    return (table.heads > 1 ? head : 0) * table.rows + (table.rows > 1 ? i : 0);
  }

  // Vectors are stored as integers with one factor each.
  private vectors([numbers, factors]: [Packed, Packed], width: number): Float32Array {
    return this.once(numbers[0], () => {
      const whole = signed(this.bytes, numbers);
      const factor = floats(this.bytes, factors);
      return Float32Array.from(whole, (integer, i) => integer * factor[(i / width) | 0]);
    });
  }

  private numbers(packed: Packed): Float32Array {
    return this.once(packed[0], () => floats(this.bytes, packed));
  }

  private once(offset: number, make: () => Float32Array): Float32Array {
    let found = this.unpacked.get(offset);
    if (!found) this.unpacked.set(offset, (found = make()));
    return found;
  }
}
