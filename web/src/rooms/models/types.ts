// What the server says of models, looks and heads.

export interface Source {
  id: string;
  origin: "bundled" | "run" | "folder";
  title: string;
  where: string;
  facts: { summary?: string; parameters?: number; licence?: string; data?: string; command?: string };
}

export interface Opened extends Source {
  kind: "text" | "pair" | "image" | "sound";
  model: string;
  parameters: number;
  room: number | null;
  largest: number;
  notes: string[];
  samples: { texts?: string[]; pictures?: { number: number; label: string; source: string }[]; sound?: boolean };
}

export interface Layer {
  name: string;
  heads: number;
  queries: number;
  keys: number;
  rows: number;
  columns: number;
  beta: number | null;
  group: string;
}

export interface Answer {
  id: number;
  text: string;
  before: number;
  after: number | null;
}

export interface Told {
  sort: "next" | "here" | "class" | "sound" | "none";
  place: number;
  places: number;
  answers: Answer[];
  heard: Word[][]; // of a recording: before, and after a change
  why: string;
}

export interface Word {
  text: string;
  start: number; // seconds
  end: number;
}

export interface Effect {
  kl: number | null;
  kl_at: number[];
  loss_before: number | null;
  loss_after: number | null;
  flipped: number | null;
}

export interface Picture {
  source: string;
  rows: number;
  columns: number;
  special: number;
}

export interface Seen {
  look: string;
  model: string;
  kind: Opened["kind"];
  axes: string[][];
  layers: Layer[];
  rolls: boolean;
  tells_kinds: boolean;
  notes: string[];
  picture: Picture | null;
  second: number | null; // of a recording: how long a token is
  told: Told;
  effect: Effect | null;
  reproduce: Reproduced;
}

export interface Reproduced {
  command: string;
  last: string; // of the command, after all options
  text: string; // what text.txt holds, where the command reads it
  flags: string;
  where: string;
  given: string;
  target: string;
  open: string[];
  change: string[];
  effect: string;
}

export interface Head {
  layer: number;
  head: number;
  kind: string;
  letter: string;
  score: number | null;
  offset: number | null;
  scores: Record<string, number | null>;
}

export interface Kinds {
  telling: [number, number];
  kinds: Record<string, { letter: string; does: string }>;
  heads: Head[];
}

export interface View {
  rows: [number, number];
  columns: [number, number];
}

export interface Small {
  heads: number;
  rows: number;
  columns: number;
  data: Float32Array;
}

export interface Comparison {
  names: [string, string][];
  table: (number | null)[][];
  mean: number;
  matched: number;
}

// The layer that a place stands for; the rollout (−1) is over the last layers that attend to themselves.
export function layerAt(layers: Layer[], place: number): Layer | undefined {
  if (place >= 0) return layers[Math.min(place, layers.length - 1)];
  const own = layers.filter((each) => each.rows === each.columns);
  return own[own.length - 1];
}

export type Edge = [number, number | null, number, number]; // layer, head (null: all), query, key

// What a person gives: a text with perhaps a target, a file in base64, or one of the samples.
export interface Given {
  text?: string;
  target?: string;
  shorten?: boolean;
  file?: string;
  name?: string;
  sample?: number;
  beside?: string; // the look whose target it shares
}

// A token as it can be read on a line: blanks shown, control characters as dots.
export function visible(token: string, most = 12): string {
  const blanks: Record<string, string> = { "\n": "⏎", "\t": "⇥", " ": "␣" };
  const stripped = token.replace(/^[ \n\t]+|[ \n\t]+$/g, "");
  const shown = (stripped || [...token].map((letter) => blanks[letter] ?? letter).join("") || "∅").replace(/[\p{C}\p{Z}]/gu, (letter) => (letter === " " ? " " : "·"));
  return [...shown].length <= most ? shown : [...shown].slice(0, most - 1).join("") + "…";
}
