import { expect, test } from "vitest";

import { groupPieces, splitLines, typeset } from "./formula";

test("indices are lowered and powers raised, and names with an underscore stay", () => {
  expect(typeset("‖h − v_j‖ ≤ e^(−margin)")).toEqual([{ text: "‖h − v" }, { text: "j", lowered: true }, { text: "‖ ≤ e" }, { text: "−margin", raised: true }]);
  expect(typeset("e^β/(e^β + n)").filter((piece) => piece.raised).map((piece) => piece.text)).toEqual(["β", "β"]);
  expect(typeset("μ_aμ_aᵀ").filter((piece) => piece.lowered)).toHaveLength(2);
  expect(typeset("scaled_dot_product")).toEqual([{ text: "scaled_dot_product" }]);
});

test("a power stays on a line with its base", () => {
  const found = groupPieces([{ text: "(5/2·e" }, { text: "3√2/4", raised: true }, { text: "−2e" }, { text: "4√2", raised: true }, { text: ")" }]);
  expect(found.map(({ text, base, more }) => [text, base, more.map((piece) => piece.text).join("")])).toEqual([["(5/2·", "e", "3√2/4"], ["−", "2e", "4√2"], [")", "", ""]]);
});

test("a long number is broken at its signs", () => {
  expect(splitLines("(1+5e")).toEqual(["(1", "+5e"]);
  expect(splitLines(")/(2")).toEqual([")/", "(2"]);
  expect(splitLines("−3")).toEqual(["−3"]);
  expect(splitLines("5/2·")).toEqual(["5/", "2·"]);
});
