// The state as a link: readable if it is short, packed (deflate, base64url) if it is long; and back.

import { FORMS, type Matrix, type Name, type State } from "./state";

export type Fields = Record<string, string>;
const MAX_READABLE = 900;

const matrixText = (matrix: Matrix): string => matrix.map((row) => row.map((cell) => cell.replaceAll(/[,;]/g, " ")).join(",")).join(";");
const parseMatrix = (text: string): Matrix => text.split(";").map((row) => row.split(","));
const joinNames = (names: string[] | undefined): string => (names?.some((name) => name) ? names.map(encodeURIComponent).join(",") : "");
const splitNames = (text: string): string[] => text.split(",").map(decodeURIComponent);

export function toFields(state: State): Fields {
  const found: Fields = { form: state.form };
  for (const name of [...FORMS[state.form], "wo"] as Name[]) if (state[name]) found[name] = matrixText(state[name]!);
  if (state.heads > 1) found.heads = String(state.heads);
  if (state.scale) found.scale = state.scale;
  if (state.mask !== "none") found.mask = state.mask;
  if (state.mask === "custom") found.mask_rows = state.mask_rows!.join(",");
  if (state.mask === "window") found.window = `${state.left ?? 1},${state.right ?? 0}`;
  if (state.positions) found.positions = state.positions;
  if (state.form === "qkv" && state.key_scales?.some((by) => by !== "1")) found.key_scales = state.key_scales.join(",");
  if (state.title) found.title = state.title;
  if (joinNames(state.names)) found.names = joinNames(state.names);
  if (joinNames(state.query_names)) found.query_names = joinNames(state.query_names);
  return found;
}

export function fromFields(found: Fields): State {
  const form = found.form === "qkv" ? "qkv" : "x";
  const mask = (["causal", "window", "custom"] as const).find((each) => each === found.mask) ?? "none";
  const state: State = { title: found.title ?? "", form, heads: Number(found.heads ?? 1) || 1, scale: found.scale ?? "", mask, positions: found.positions ?? "" };
  for (const name of [...FORMS[form], "wo"] as Name[]) if (found[name]) state[name] = parseMatrix(found[name]);
  for (const name of FORMS[form]) if (!state[name]) throw new Error(`the link lacks ${name}`);
  if (mask === "custom") state.mask_rows = (found.mask_rows ?? "").split(",");
  if (found.window) [state.left, state.right] = found.window.split(",").map(Number);
  if (found.key_scales) state.key_scales = found.key_scales.split(",");
  if (found.names) state.names = splitNames(found.names);
  if (found.query_names) state.query_names = splitNames(found.query_names);
  return state;
}

export async function pack(found: Fields): Promise<Fields> {
  const plain = new URLSearchParams(found).toString();
  if (plain.length <= MAX_READABLE) return found;
  return { z: await deflate(plain) };
}

export async function unpack(found: Fields): Promise<Fields> {
  if (!found.z) return found;
  return { ...Object.fromEntries(new URLSearchParams(await inflate(found.z))), ...found };
}

async function pipe(bytes: Uint8Array<ArrayBuffer>, change: CompressionStream | DecompressionStream, most = 1_000_000): Promise<Uint8Array<ArrayBuffer>> {
  const reader = new Blob([bytes]).stream().pipeThrough(change).getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) throw new Error("the link contains too much for the playground");
    parts.push(value);
  }
  const whole = new Uint8Array(size);
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

async function deflate(text: string): Promise<string> {
  const bytes = await pipe(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function inflate(text: string): Promise<string> {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (sign) => sign.charCodeAt(0));
  return new TextDecoder().decode(await pipe(bytes, new DecompressionStream("deflate-raw")));
}
