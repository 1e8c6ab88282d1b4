// What the playground holds, as plain data: every change makes a new state.

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
  beta: string; // "" for 1/√d, "hard", or a number's text
  mask: "none" | "causal" | "window" | "own";
  left?: number;
  right?: number;
  allowed?: string[];
  positions: string;
  scales?: string[];
  names?: string[];
  queryNames?: string[];
}

export const TOKENS = 64;
export const WIDTH = 16;
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
  return (state.form === "x" ? state.names : state.queryNames)?.[place]?.trim() || String(place + 1);
}

export function withCell(state: State, name: Name, row: number, column: number, text: string): State {
  const matrix = state[name]!.map((cells, i) => (i === row ? cells.map((cell, j) => (j === column ? text : cell)) : cells));
  return { ...state, [name]: matrix };
}

const wider = (matrix: Matrix): Matrix => matrix.map((row) => [...row, "0"]);
const narrower = (matrix: Matrix): Matrix => matrix.map((row) => row.slice(0, -1));
const taller = (matrix: Matrix): Matrix => [...matrix, matrix[0].map(() => "0")];

// A matrix after one row or column more (by = 1) or less (by = -1), with everything that must follow from it.
export function resized(state: State, name: Name, side: "rows" | "columns", by: 1 | -1): State {
  const across = (matrix: Matrix | undefined) => (matrix ? (by > 0 ? wider(matrix) : narrower(matrix)) : undefined);
  const down = (matrix: Matrix | undefined) => (matrix ? (by > 0 ? taller(matrix) : matrix.slice(0, -1)) : undefined);
  const next: State = { ...state };
  if (side === "rows") {
    if (name === "x" || name === "q") next[name] = down(state[name]);
    else {
      next.k = down(state.k);
      next.v = down(state.v);
      next.scales = state.scales && (by > 0 ? [...state.scales, "1"] : state.scales.slice(0, -1));
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
  return fitted(next);
}

// How far a matrix may still grow or shrink.
export function canResize(state: State, name: Name, side: "rows" | "columns", by: 1 | -1): boolean {
  const matrix = state[name]!;
  const size = side === "rows" ? matrix.length : matrix[0].length;
  if (side === "rows" && !["x", "q", "k"].includes(name)) return false; // they follow from another matrix
  return by > 0 ? size < (side === "rows" ? TOKENS : WIDTH) : size > 1;
}

// A mask of one's own keeps the size of the scores; new places may be attended to.
export function fitted(state: State): State {
  if (state.mask !== "own" || !state.allowed) return state;
  const [t, s] = [queries(state), keys(state)];
  const rows = Array.from({ length: t }, (_, i) => (state.allowed![i] ?? "").slice(0, s).padEnd(s, "1"));
  return { ...state, allowed: rows };
}

// The body of a request: only what this form uses.
export function asked(state: State): Record<string, unknown> {
  const { title, form, heads, beta, mask, left, right, allowed, positions, scales, names, queryNames } = state;
  const body: Record<string, unknown> = { title, form, heads, beta, mask, left, right, positions, names, queryNames };
  for (const name of matrices(state)) body[name] = state[name];
  if (mask === "own") body.allowed = allowed;
  if (form === "qkv") body.scales = scales;
  return body;
}
