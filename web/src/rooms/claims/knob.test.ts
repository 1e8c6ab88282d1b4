import { expect, test } from "vitest";

import { STEPS, track } from "./knob";

const knob = (value: number, whole: boolean, between: [number, number] = [-1e9, 1e9], step = 1) => ({ name: "k", default: value, between, step, long: null, help: "", whole });

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

test.each([
  [10, true, 4, 20],
  [20000, true, 100, 50000],
  [5, false, 0.1, 26],
  [0, false, -1, 2],
])("the slider of a knob of %d offers nothing that cannot be tried", (value, whole, least, most) => {
  const { value: at } = track(knob(value, whole, [least, most]));
  expect(at(0)).toBe(least);
  expect(at(STEPS)).toBe(most);
});

test("whole numbers go up by their step", () => {
  const { value } = track(knob(3, true, [3, 31], 2));
  expect(Array.from({ length: STEPS + 1 }, (_, i) => value(i)).every((kernel) => kernel % 2 === 1)).toBe(true);
});
