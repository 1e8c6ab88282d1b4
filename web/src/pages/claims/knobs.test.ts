import { expect, test } from "vitest";

import { STEPS, makeTrack } from "./knobs";

const knob = (value: number, whole: boolean, between: [number, number] = [-1e9, 1e9], step = 1) => ({ name: "k", default: value, between, step, long: null, help: "", is_integer: whole });

test.each([
  [50, false],
  [1e-8, false],
  [0, false],
  [10, true],
  [20000, true],
])("the slider of a knob of %d stands at its value, and its ends differ", (value, whole) => {
  const { value: at, position } = makeTrack(knob(value, whole));
  expect(at(position(value))).toBeCloseTo(value, 1 - Math.floor(Math.log10(value || 1)) - 1);
  expect(position(at(0))).toBe(0);
  expect(position(at(STEPS))).toBe(STEPS);
});

test("whole numbers stay whole, and values outside the range stand at an end", () => {
  const { value, position } = makeTrack(knob(7, true));
  expect(Array.from({ length: STEPS + 1 }, (_, i) => value(i)).every(Number.isInteger)).toBe(true);
  expect(position(10_000)).toBe(STEPS);
  expect(makeTrack(knob(5, false)).position(-1)).toBe(0);
});

test.each([
  [10, true, 4, 20],
  [20000, true, 100, 50000],
  [5, false, 0.1, 26],
  [0, false, -1, 2],
])("the slider of a knob of %d stays within its range", (value, whole, least, most) => {
  const { value: at } = makeTrack(knob(value, whole, [least, most]));
  expect(at(0)).toBe(least);
  expect(at(STEPS)).toBe(most);
});

test("whole numbers change by their step", () => {
  const { value } = makeTrack(knob(3, true, [3, 31], 2));
  expect(Array.from({ length: STEPS + 1 }, (_, i) => value(i)).every((kernel) => kernel % 2 === 1)).toBe(true);
});
