// Where a knob's slider begins and ends, and what its places mean: even steps, or even factors for numbers that span many sizes.

import type { Knob } from "./types";

export const STEPS = 240;

export interface Track {
  value(place: number): number; // place: 0 to STEPS
  place(value: number): number;
}

const rounded = (value: number) => Number(value.toPrecision(3));

export function track(knob: Knob): Track {
  const within = (low: number, high: number) => [Math.max(low, knob.between[0]), Math.min(high, knob.between[1])] as const;
  const whole = (value: number) => knob.between[0] + knob.step * Math.round((value - knob.between[0]) / knob.step);
  if (knob.whole && knob.default <= 64) return even(...within(Math.min(1, knob.default), Math.max(8, 4 * knob.default)), whole);
  if (knob.whole) return factors(...within(1, 10 * knob.default), whole);
  if (knob.default > 0) return factors(...within(knob.default / 1000, knob.default * 1000), rounded);
  return even(...within(knob.default - 3, knob.default + 3), (value) => Number(value.toFixed(2)));
}

function even(low: number, high: number, kept: (value: number) => number): Track {
  return {
    value: (place) => kept(low + ((high - low) * place) / STEPS),
    place: (value) => clamped((STEPS * (value - low)) / (high - low)),
  };
}

function factors(low: number, high: number, kept: (value: number) => number): Track {
  const span = Math.log(high / low);
  return {
    value: (place) => kept(low * Math.exp((span * place) / STEPS)),
    place: (value) => (value > 0 ? clamped((STEPS * Math.log(value / low)) / span) : 0),
  };
}

function clamped(place: number): number {
  return Math.max(0, Math.min(STEPS, Math.round(place)));
}
