// What is seen, as the address keeps it, and back.

import type { State } from "../../lib/route.svelte";
import type { Session } from "./session.svelte";
import type { Edge, View } from "./types";

const LETTERS = 1500; // of a text that the address keeps

export interface Shown {
  layer: number;
  head: number;
  query: number;
  key: number;
  scale: string;
  beside: string;
  view: View | null;
}

export function linked(session: Session, shown: Shown): State {
  const { text = "", target = "", sample, shorten, file, name } = session.given ?? {};
  return {
    model: session.opened?.id ?? "",
    text: text.length <= LETTERS ? text : "",
    lost: text.length > LETTERS ? "a long text" : file ? `the file ${name ?? ""}`.trim() : "", // an input that the address cannot keep
    target,
    shorten: shorten ? "1" : "",
    before: session.before && session.altered ? "1" : "",
    sample: sample === undefined ? "" : String(sample),
    layer: String(shown.layer),
    head: String(shown.head),
    query: String(shown.query),
    key: String(shown.key),
    silence: session.silence.join(","),
    cut: session.cut.map(([layer, head, query, key]) => `${layer}.${head ?? "all"}.${query}.${key}`).join(","),
    beta: Object.entries(session.beta).map(([where, factor]) => `${where || "all"}:${Number(factor.toPrecision(3))}`).join(","),
    scale: shown.scale === "root" ? "" : shown.scale,
    beside: shown.beside,
    view: shown.view ? [...shown.view.rows, ...shown.view.columns].join(".") : "",
  };
}

export function cutsOf(kept: string | undefined): Edge[] {
  return (kept ?? "")
    .split(",")
    .map((each) => each.split("."))
    .filter((parts) => parts.length === 4)
    .map(([layer, head, query, key]): Edge => [Number(layer), head === "all" ? null : Number(head), Number(query), Number(key)])
    .filter((edge) => edge.every((part) => part === null || Number.isInteger(part)));
}

export function viewOf(kept: string | undefined): View | null {
  const [a, b, c, d] = (kept ?? "").split(".").map(Number);
  return [a, b, c, d].every(Number.isInteger) ? { rows: [a, b], columns: [c, d] } : null;
}

export function betasOf(kept: string | undefined): Record<string, number> {
  const pairs = (kept ?? "").split(",").map((each) => each.split(":")).filter((parts) => parts.length === 2 && Number.isFinite(Number(parts[1])));
  return Object.fromEntries(pairs.map(([where, factor]) => [where === "all" ? "" : where, Number(factor)]));
}
