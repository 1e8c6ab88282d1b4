// The sliders of knobs: linear, or logarithmic for numbers that span several orders of magnitude.

import type { Knob } from "./types";

export const STEPS = 240;

export interface Track {
  value(position: number): number; // position: 0 to STEPS
  position(value: number): number;
}

const rounded = (value: number) => Number(value.toPrecision(3));

export function makeTrack(knob: Knob): Track {
  const within = (low: number, high: number) => [Math.max(low, knob.between[0]), Math.min(high, knob.between[1])] as const;
  const whole = (value: number) => knob.between[0] + knob.step * Math.round((value - knob.between[0]) / knob.step);
  if (knob.is_integer && knob.default <= 64) return linear(...within(Math.min(1, knob.default), Math.max(8, 4 * knob.default)), whole);
  if (knob.is_integer) return logarithmic(...within(1, 10 * knob.default), whole);
  if (knob.default > 0) return logarithmic(...within(knob.default / 1000, knob.default * 1000), rounded);
  return linear(...within(knob.default - 3, knob.default + 3), (value) => Number(value.toFixed(2)));
}

function linear(low: number, high: number, round: (value: number) => number): Track {
  return {
    value: (position) => round(low + ((high - low) * position) / STEPS),
    position: (value) => clampStep((STEPS * (value - low)) / (high - low)),
  };
}

function logarithmic(low: number, high: number, round: (value: number) => number): Track {
  const span = Math.log(high / low);
  return {
    value: (position) => round(low * Math.exp((span * position) / STEPS)),
    position: (value) => (value > 0 ? clampStep((STEPS * Math.log(value / low)) / span) : 0),
  };
}

function clampStep(position: number): number {
  return Math.max(0, Math.min(STEPS, Math.round(position)));
}
