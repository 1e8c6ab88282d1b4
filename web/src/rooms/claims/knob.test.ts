import { expect, test } from "vitest";

import { STEPS, track } from "./knob";

const knob = (value: number, whole: boolean) => ({ name: "k", default: value, long: null, help: "", whole });

test.each([
  [50, false],
  [1e-8, false],
  [0, false],
  [10, true],
  [20000, true],
])("the slider of a knob of %d stands where its value is, and its ends are apart", (value, whole) => {
  const { value: at, place } = track(knob(value, whole));
  expect(at(place(value))).toBeCloseTo(value, 1 - Math.floor(Math.log10(value || 1)) - 1);
  expect(place(at(0))).toBe(0);
  expect(place(at(STEPS))).toBe(STEPS);
});

test("whole numbers stay whole, and what lies outside stands at an end", () => {
  const { value, place } = track(knob(7, true));
  expect(Array.from({ length: STEPS + 1 }, (_, i) => value(i)).every(Number.isInteger)).toBe(true);
  expect(place(10_000)).toBe(STEPS);
  expect(track(knob(5, false)).place(-1)).toBe(0);
});
