// The state of the Models page as the address keeps it, and back.

import type { State } from "../../lib/route.svelte";
import type { Scale } from "../../viewer/colors";
import { viewOf, viewText } from "../../viewer/exported/address";
import type { View } from "../../viewer/types";
import type { Session } from "./session.svelte";
import type { Edge } from "./types";

const MAX_TEXT = 1500; // characters of a text that the address keeps

export interface Selection {
  layer: number;
  head: number;
  query: number;
  key: number;
  scale: Scale;
  beside: string;
  view: View | null;
}

export function toState(session: Session, selection: Selection): State {
  const { text = "", target = "", sample, shorten, file, name } = session.input ?? {};
  let missing = ""; // an input that does not fit into the address
  if (text.length > MAX_TEXT) missing = "a long text";
  else if (file) missing = `the file ${name ?? ""}`.trim();
  return {
    model: session.model?.id ?? "",
    text: text.length <= MAX_TEXT ? text : "",
    missing,
    target,
    shorten: shorten ? "1" : "",
    original: session.showOriginal && session.hasInterventions ? "1" : "",
    sample: sample === undefined ? "" : String(sample),
    layer: String(selection.layer),
    head: String(selection.head),
    query: String(selection.query),
    key: String(selection.key),
    ablate: session.ablated.join(","),
    mask: session.masked.map(([layer, head, query, key]) => `${layer}.${head ?? "all"}.${query}.${key}`).join(","),
    scale: Object.entries(session.scales).map(([where, factor]) => `${where || "all"}:${Number(factor.toPrecision(3))}`).join(","),
    colors: selection.scale === "root" ? "" : selection.scale,
    beside: selection.beside,
    view: selection.view ? viewText(selection.view) : "",
  };
}

export function parseEdges(text: string | undefined): Edge[] {
  return (text ?? "")
    .split(",")
    .map((each) => each.split("."))
    .filter((parts) => parts.length === 4)
    .map(([layer, head, query, key]): Edge => [Number(layer), head === "all" ? null : Number(head), Number(query), Number(key)])
    .filter((edge) => edge.every((part) => part === null || Number.isInteger(part)));
}

export function parseScales(text: string | undefined): Record<string, number> {
  const pairs = (text ?? "").split(",").map((each) => each.split(":")).filter((parts) => parts.length === 2 && Number.isFinite(Number(parts[1])));
  return Object.fromEntries(pairs.map(([where, factor]) => [where === "all" ? "" : where, Number(factor)]));
}

export const parseView = (text: string | undefined): View | null => viewOf(text ?? "");
