// Colors of the influence map: logarithmic shares of the largest effect, on the color scale of weights.

import { COLORS } from "../../viewer/colors";

export const FAINTEST = -6; // the power of ten below which an effect counts as none

export function influenceColor(effect: number): string | null {
  if (!(effect > 10 ** FAINTEST)) return null;
  const depth = (Math.log10(Math.min(effect, 1)) - FAINTEST) / -FAINTEST;
  return COLORS[Math.round(255 * depth)];
}
