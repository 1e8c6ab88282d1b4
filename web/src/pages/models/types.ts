// What the server sends about models, looks and heads.

import type { PatchImage, SmallMaps } from "../../viewer/types";

export interface ModelSource {
  id: string;
  origin: "bundled" | "run" | "folder";
  title: string;
  checkpoint: string;
  facts: { kind?: "text" | "pair" | "image" | "audio" | null; summary?: string; parameters?: number; license?: string; data?: string; command?: string };
}

export interface OpenModel extends ModelSource {
  kind: "text" | "pair" | "image" | "audio";
  model: string;
  parameters: number;
  max_tokens: number | null;
  max_bytes: number;
  notes: string[];
  samples: { texts?: string[]; images?: { number: number; label: string; source: string }[]; audio?: boolean };
}

export interface Layer {
  name: string;
  heads: number;
  queries: number;
  keys: number;
  rows: number; // axis of the queries
  columns: number; // axis of the keys
  scale: number | null;
  group: string;
}

export interface Prediction {
  id: number;
  text: string;
  before: number;
  after: number | null;
}

export interface SpokenWord {
  text: string;
  start: number; // seconds
  end: number;
}

export interface Predictions {
  kind: "next" | "here" | "class" | "audio" | "none";
  position: number;
  positions: number;
  top: Prediction[];
  transcripts: SpokenWord[][]; // of a recording: before, and after an intervention
  why: string;
}

export interface Effect {
  kl: number | null;
  kl_at: number[];
  loss_before: number | null;
  loss_after: number | null;
  flipped: number | null;
}

export interface Look {
  look: string; // id
  model: string;
  kind: OpenModel["kind"];
  axes: string[][];
  layers: Layer[];
  has_rollout: boolean;
  can_classify: boolean;
  notes: string[];
  image: PatchImage | null;
  token_seconds: number | null; // of a recording
  predictions: Predictions;
  effect: Effect | null;
  reproduce: Reproduce;
}

export interface Reproduce {
  command: string;
  last: string; // of the command, after all options
  text: string; // content of text.txt, if the command reads it
  flags: string;
  checkpoint: string;
  input: string;
  target: string;
  open: string[];
  intervene: string[];
  effect: string;
}

export interface Head {
  layer: number;
  head: number;
  type: string;
  score: number | null;
  offset: number | null;
  scores: Record<string, number | null>;
}

export interface HeadTypes {
  clearest: [number, number];
  types: Record<string, string>; // name: what such a head does
  heads: Head[];
}

export type LayerMaps = SmallMaps & { heads: number };

export interface Comparison {
  names: [string, string][];
  table: (number | null)[][];
  mean: number;
  matched: number;
}

export type Edge = [number, number | null, number, number]; // layer, head (null: all), query, key

// What the user enters: a text with perhaps a target, a file in base64, or the number of a sample.
export interface InputValue {
  text?: string;
  target?: string;
  shorten?: boolean;
  file?: string;
  name?: string;
  sample?: number;
  beside?: string; // the look whose target it shares
}

// A layer by its index; the rollout (-1) has the axes of the last self-attention layer.
export function layerAt(layers: Layer[], index: number): Layer | undefined {
  if (index >= 0) return layers[Math.min(index, layers.length - 1)];
  return layers.filter((each) => each.rows === each.columns).at(-1);
}
