// A state as a link: readable where it is short, packed (deflate, base64url) where it is long; and back.

import { FORMS, type Matrix, type Name, type State } from "./state";

export type Fields = Record<string, string>;
const LONG = 900;

const written = (matrix: Matrix): string => matrix.map((row) => row.map((cell) => cell.replaceAll(/[,;]/g, " ")).join(",")).join(";");
const read = (text: string): Matrix => text.split(";").map((row) => row.split(","));
const listed = (names: string[] | undefined): string => (names?.some((name) => name) ? names.map(encodeURIComponent).join(",") : "");
const unlisted = (text: string): string[] => text.split(",").map(decodeURIComponent);

export function fields(state: State): Fields {
  const found: Fields = { form: state.form };
  for (const name of [...FORMS[state.form], "wo"] as Name[]) if (state[name]) found[name] = written(state[name]!);
  if (state.heads > 1) found.heads = String(state.heads);
  if (state.beta) found.beta = state.beta;
  if (state.mask !== "none") found.mask = state.mask;
  if (state.mask === "own") found.allowed = state.allowed!.join(",");
  if (state.mask === "window") found.window = `${state.left ?? 1},${state.right ?? 0}`;
  if (state.positions) found.positions = state.positions;
  if (state.form === "qkv" && state.scales?.some((by) => by !== "1")) found.scales = state.scales.join(",");
  if (state.title) found.title = state.title;
  if (listed(state.names)) found.names = listed(state.names);
  if (listed(state.queryNames)) found.queryNames = listed(state.queryNames);
  return found;
}

export function fromFields(found: Fields): State {
  const form = found.form === "qkv" ? "qkv" : "x";
  const mask = (["causal", "window", "own"] as const).find((each) => each === found.mask) ?? "none";
  const state: State = { title: found.title ?? "", form, heads: Number(found.heads ?? 1) || 1, beta: found.beta ?? "", mask, positions: found.positions ?? "" };
  for (const name of [...FORMS[form], "wo"] as Name[]) if (found[name]) state[name] = read(found[name]);
  for (const name of FORMS[form]) if (!state[name]) throw new Error(`the link lacks ${name}`);
  if (mask === "own") state.allowed = (found.allowed ?? "").split(",");
  if (found.window) [state.left, state.right] = found.window.split(",").map(Number);
  if (found.scales) state.scales = found.scales.split(",");
  if (found.names) state.names = unlisted(found.names);
  if (found.queryNames) state.queryNames = unlisted(found.queryNames);
  return state;
}

export async function packed(found: Fields): Promise<Fields> {
  const plain = new URLSearchParams(found).toString();
  if (plain.length <= LONG) return found;
  return { z: await deflated(plain) };
}

export async function unpacked(found: Fields): Promise<Fields> {
  if (!found.z) return found;
  return { ...Object.fromEntries(new URLSearchParams(await inflated(found.z))), ...found };
}

async function through(bytes: Uint8Array<ArrayBuffer>, change: CompressionStream | DecompressionStream, most = 1_000_000): Promise<Uint8Array<ArrayBuffer>> {
  const reader = new Blob([bytes]).stream().pipeThrough(change).getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) throw new Error("the link holds more than a playground takes");
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

async function deflated(text: string): Promise<string> {
  const bytes = await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw"));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function inflated(text: string): Promise<string> {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (sign) => sign.charCodeAt(0));
  return new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw")));
}
