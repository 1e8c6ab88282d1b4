import { expect, test } from "vitest";

import { decimal, pieces, valued } from "./format";

test("decimals are written as qkv byhand writes them", () => {
  const shown = [-1.99315, 2.5, 2.4999999999999996, 2.2e-10, 0, 0.0000123, 0.98765, 1 / 3, 3e9].map((value) => decimal(value));
  expect(shown).toEqual(["-1.9931", "2.5", "2.5", "2.2e-10", "0", "0.000012", "0.9877", "0.3333", "3e9"]);
});

test("powers are raised, indices lowered, minus signs proper", () => {
  expect(pieces("-e^(3/2)/2")).toEqual([{ text: "−e" }, { text: "3/2", raised: true }, { text: "/2" }]);
  expect(pieces("W_Q")).toEqual([{ text: "W" }, { text: "Q", lowered: true }]);
  expect(pieces("1.2e-7")).toEqual([{ text: "1." }, { text: "2·10" }, { text: "−7", raised: true }]);
});

test("a cell has a value when it is a number or a fraction", () => {
  expect(["0", "1/2", "-0.25", " 3 / 4 ", "", "1/", "1/0", "a", "1/2/3"].map(valued)).toEqual([0, 0.5, -0.25, 0.75, null, null, null, null, null]);
});
