// The color scale of attention weights: perceptually uniform, from dark blue to yellow, the same nine stops as in the terminal.

const STOPS = ["#00204d", "#16386b", "#414d6b", "#62636f", "#7f7c75", "#a09877", "#c2b36b", "#e5cf52", "#ffea46"];
export const PALETTE = new Uint32Array(256); // pixels: 0xAABBGGRR
export const COLORS: string[] = [];

for (let i = 0; i < 256; i++) {
  const position = (i / 255) * (STOPS.length - 1);
  const low = Math.min(Math.floor(position), STOPS.length - 2);
  const [from, to] = [STOPS[low], STOPS[low + 1]].map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const [red, green, blue] = from.map((part, c) => Math.round(part + (to[c] - part) * (position - low)));
  PALETTE[i] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  COLORS.push(`rgb(${red} ${green} ${blue})`);
}

export type Scale = "linear" | "root" | "own"; // 0 to 1 · its square root, which shows small weights · up to the map's largest weight
export const SCALES: [Scale, string][] = [["linear", "0 to 1"], ["root", "root"], ["own", "to its largest"]];

// The palette index of a weight, 0 to 255.
export function shade(weight: number, scale: Scale = "linear", peak = 1): number {
  const share = scale === "own" ? weight / Math.max(peak, 1e-12) : weight;
  return Math.max(0, Math.min(255, Math.round(255 * (scale === "root" ? Math.sqrt(Math.max(share, 0)) : share))));
}

// A text color that is readable on a cell of this palette index.
export function textColor(level: number): string {
  return level > 140 ? "#1d2126" : "#ffffff";
}
