// Tables of numbers from the server, and as text.

import { decimal } from "./format";
import type { Matrix } from "./state";

export interface Table {
  rows: number;
  columns: number;
  data: Float64Array;
}
export interface Step {
  exact: string[][];
  decimal: string[][];
}

// Returns the old table if nothing changed, so that it is not drawn again.
export function reuse(table: Table, old?: Table): Table {
  return old && old.rows === table.rows && old.columns === table.columns && equal(old.data, table.data) ? old : table;
}

export function equal(a: ArrayLike<number>, b: ArrayLike<number>): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

export function rowTexts(table: Table, row: number): string[] {
  return Array.from(table.data.subarray(row * table.columns, (row + 1) * table.columns), (value) => String(Number(value.toPrecision(12))));
}

// Exact texts where they can be parsed again, otherwise twelve digits.
export function toMatrix(table: Table, step?: Step): Matrix {
  const readable = step?.exact.flat().every((cell) => cell.length < 60 && !/[≈sc]/.test(cell));
  return readable ? step!.exact : Array.from({ length: table.rows }, (_, i) => rowTexts(table, i));
}

export const at = (table: Table, row: number, column: number): number => table.data[row * table.columns + column];
export const textAt = (table: Table, row: number, column: number): string => decimal(at(table, row, column));
