import { expect, test } from "vitest";

import { decimal, defaultScale, pieces, cellValue } from "./format";

test("decimal writes numbers as qkv byhand does", () => {
  const shown = [-1.99315, 2.5, 2.4999999999999996, 2.2e-10, 0, 0.0000123, 0.98765, 1 / 3, 3e9].map((value) => decimal(value));
  expect(shown).toEqual(["-1.9931", "2.5", "2.5", "2.2e-10", "0", "0.000012", "0.9877", "0.3333", "3e9"]);
});

test("pieces raises powers, lowers indices and writes minus signs", () => {
  expect(pieces("-e^(3/2)/2")).toEqual([{ text: "−e" }, { text: "3/2", raised: true }, { text: "/2" }]);
  expect(pieces("W_Q")).toEqual([{ text: "W" }, { text: "Q", lowered: true }]);
  expect(pieces("1.2e-7")).toEqual([{ text: "1." }, { text: "2·10" }, { text: "−7", raised: true }]);
});

test("cellValue reads numbers and fractions", () => {
  expect(["0", "1/2", "-0.25", " 3 / 4 ", "", "1/", "1/0", "a", "1/2/3"].map(cellValue)).toEqual([0, 0.5, -0.25, 0.75, null, null, null, null, null]);
});

test("defaultScale is 1, not 1/√1, for a head dim of 1", () => {
  expect([1, 2, 4].map(defaultScale)).toEqual(["1", "1/√2", "1/√4"]);
});
