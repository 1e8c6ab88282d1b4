// The state of the playground as plain data: every change makes a new state. The names are those of the API.

export type Matrix = string[][];
export type Form = "x" | "qkv";
export type Name = "x" | "wq" | "wk" | "wv" | "q" | "k" | "v" | "wo";

export interface State {
  title: string;
  form: Form;
  x?: Matrix;
  wq?: Matrix;
  wk?: Matrix;
  wv?: Matrix;
  q?: Matrix;
  k?: Matrix;
  v?: Matrix;
  wo?: Matrix;
  heads: number;
  scale: string; // β: "" for 1/√d, "hard", or the text of a number
  mask: "none" | "causal" | "window" | "custom";
  left?: number;
  right?: number;
  mask_rows?: string[];
  positions: string;
  key_scales?: string[];
  names?: string[];
  query_names?: string[];
}

export const MAX_TOKENS = 64;
export const MAX_WIDTH = 16;
export const FORMS: Record<Form, Name[]> = { x: ["x", "wq", "wk", "wv"], qkv: ["q", "k", "v"] };
export const SYMBOLS: Record<Name, string> = { x: "X", wq: "W_Q", wk: "W_K", wv: "W_V", q: "Q", k: "K", v: "V", wo: "W_O" };

export const matrices = (state: State): Name[] => [...FORMS[state.form], ...(state.wo ? (["wo"] as Name[]) : [])];
export const queries = (state: State): number => (state.form === "x" ? state.x! : state.q!).length;
export const keys = (state: State): number => (state.form === "x" ? state.x! : state.k!).length;
export const queryWidth = (state: State): number => (state.form === "x" ? state.wq! : state.q!)[0].length;
export const valueWidth = (state: State): number => (state.form === "x" ? state.wv! : state.v!)[0].length;

// The numbers of heads that split both widths.
export function headChoices(state: State): number[] {
  const [d, e] = [queryWidth(state), valueWidth(state)];
  return [1, 2, 3, 4, 5, 6, 7, 8].filter((heads) => d % heads === 0 && e % heads === 0);
}

export function keyName(state: State, place: number): string {
  return state.names?.[place]?.trim() || String(place + 1);
}

export function queryName(state: State, place: number): string {
  return (state.form === "x" ? state.names : state.query_names)?.[place]?.trim() || String(place + 1);
}

export function withCell(state: State, name: Name, row: number, column: number, text: string): State {
  const matrix = state[name]!.map((cells, i) => (i === row ? cells.map((cell, j) => (j === column ? text : cell)) : cells));
  return { ...state, [name]: matrix };
}

const addColumn = (matrix: Matrix): Matrix => matrix.map((row) => [...row, "0"]);
const removeColumn = (matrix: Matrix): Matrix => matrix.map((row) => row.slice(0, -1));
const addRow = (matrix: Matrix): Matrix => [...matrix, matrix[0].map(() => "0")];

// Adds (by = 1) or removes (by = -1) a row or column, and resizes the matrices that depend on it.
export function resize(state: State, name: Name, side: "rows" | "columns", by: 1 | -1): State {
  const across = (matrix: Matrix | undefined) => (matrix ? (by > 0 ? addColumn(matrix) : removeColumn(matrix)) : undefined);
  const down = (matrix: Matrix | undefined) => (matrix ? (by > 0 ? addRow(matrix) : matrix.slice(0, -1)) : undefined);
  const next: State = { ...state };
  if (side === "rows") {
    if (name === "x" || name === "q") next[name] = down(state[name]);
    else {
      next.k = down(state.k);
      next.v = down(state.v);
      next.key_scales = state.key_scales && (by > 0 ? [...state.key_scales, "1"] : state.key_scales.slice(0, -1));
    }
  } else if (name === "x") {
    next.x = across(state.x);
    for (const weight of ["wq", "wk", "wv"] as const) next[weight] = down(state[weight]);
  } else if (name === "wv" || name === "v") {
    next[name] = across(state[name]);
    next.wo = down(state.wo);
  } else if (name === "wo") {
    next.wo = across(state.wo);
  } else {
    const pair = name === "wq" || name === "wk" ? (["wq", "wk"] as const) : (["q", "k"] as const);
    for (const each of pair) next[each] = across(state[each]);
  }
  if (!headChoices(next).includes(next.heads)) next.heads = 1;
  return fitMask(next);
}

// Whether a matrix may grow or shrink.
export function canResize(state: State, name: Name, side: "rows" | "columns", by: 1 | -1): boolean {
  const matrix = state[name]!;
  const size = side === "rows" ? matrix.length : matrix[0].length;
  if (side === "rows" && !["x", "q", "k"].includes(name)) return false; // they depend on another matrix
  return by > 0 ? size < (side === "rows" ? MAX_TOKENS : MAX_WIDTH) : size > 1;
}

// A custom mask keeps the size of the scores; new positions may be attended to.
export function fitMask(state: State): State {
  if (state.mask !== "custom" || !state.mask_rows) return state;
  const [t, s] = [queries(state), keys(state)];
  const rows = Array.from({ length: t }, (_, i) => (state.mask_rows![i] ?? "").slice(0, s).padEnd(s, "1"));
  return { ...state, mask_rows: rows };
}

// The body of a request: only the fields that this form uses.
export function toRequest(state: State): Record<string, unknown> {
  const { title, form, heads, scale, mask, left, right, mask_rows, positions, key_scales, names, query_names } = state;
  const body: Record<string, unknown> = { title, form, heads, scale, mask, left, right, positions, names, query_names };
  for (const name of matrices(state)) body[name] = state[name];
  if (mask === "custom") body.mask_rows = mask_rows;
  if (form === "qkv") body.key_scales = key_scales;
  return body;
}
