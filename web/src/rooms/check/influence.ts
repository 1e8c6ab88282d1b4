// The colours of influence: a share of the largest move, by powers of ten, on the scale of weights.

import { COLOURS } from "../../lib/colour";

export const FAINTEST = -6; // the power of ten below which a move is none

export function colour(move: number): string | null {
  if (!(move > 10 ** FAINTEST)) return null;
  const depth = (Math.log10(Math.min(move, 1)) - FAINTEST) / -FAINTEST;
  return COLOURS[Math.round(255 * depth)];
}
