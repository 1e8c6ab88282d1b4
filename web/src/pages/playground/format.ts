// Numbers as `qkv byhand` prints them: four decimals, tiny ones with two digits.

import { minus, splitPieces, type Piece } from "../../lib/formula";

const CLOSE = 1e-12; // float64 may miss a round number by this much

export function decimal(value: number, places = 4): string {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "?";
  if (value === 0 || Math.abs(value) < 1e-40) return "0";
  if (Math.abs(value) >= 1e9) return scientific(value, 5);
  const text = value.toFixed(places);
  const rounded = Number(text);
  if (rounded === 0) return Math.abs(value) < CLOSE ? scientific(value, 2) : small(value);
  if (Math.abs(value - rounded) <= CLOSE * Math.max(1, Math.abs(value))) return String(rounded);
  return text;
}

function small(value: number): string {
  return Math.abs(value) >= 1e-5 ? String(Number(value.toPrecision(2))).replace(/^(-?)(\d(?:\.\d+)?)e-5$/, (_, sign, digits) => `${sign}0.0000${digits.replace(".", "")}`) : scientific(value, 2);
}

function scientific(value: number, digits: number): string {
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  return `${mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa}e${Number(power)}`;
}

// The default scale β for a head dim: 1/√d, which is 1 where d is 1.
export const defaultScale = (headDim: number): string => (headDim === 1 ? "1" : `1/√${headDim}`);

// Exact numbers and symbols in pieces with raised powers and lowered indices: e^(3/2)/2, W_Q, 1.2e-7.
export function pieces(written: string): Piece[] {
  const pattern = /\^\(((?:[^()]|\([^()]*\))*)\)|\^(\w+)|(\d)e(-?\d+)|([WSZEAHQKV])_?([QKVO]\b|\d+(?=ᵀ|\b))/g;
  const found = splitPieces(written, pattern, (match) => {
    if (match[3] !== undefined) return [{ text: `${match[3]}·10` }, { text: match[4], raised: true }];
    if (match[5] !== undefined) return [{ text: match[5] }, { text: match[6], lowered: true }];
    return [{ text: match[1] ?? match[2], raised: true }];
  });
  return found.map((piece) => ({ ...piece, text: minus(piece.text) }));
}

// The value of a cell that is a number or a fraction; null otherwise.
export function cellValue(cell: string): number | null {
  const parts = cell.split("/").map((part) => (part.trim() ? Number(part) : NaN));
  const value = parts.length === 1 ? parts[0] : parts.length === 2 ? parts[0] / parts[1] : NaN;
  return Number.isFinite(value) ? value : null;
}
