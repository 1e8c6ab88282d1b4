import { expect, test } from "vitest";

import { moveHead, typeLetters } from "./heads";
import { findTokens, visibleToken } from "./tokens";

test("visibleToken shows blanks and control characters", () => {
  expect([" cat", "\n", " ", "", "a\u0007b"].map((token) => visibleToken(token))).toEqual(["cat", "⏎", "␣", "∅", "a·b"]);
  expect(visibleToken("abcdefghijklmnop", 6)).toBe("abcde…");
});

test("findTokens finds tokens as written and as shown", () => {
  expect(findTokens(["the", " Cat", "\n", "cats"], "cat")).toEqual([1, 3]);
  expect(findTokens(["a", "\n"], "⏎")).toEqual([1]);
  expect(findTokens(["a"], "")).toEqual([]);
});

test("typeLetters gives each head type a letter of its own, and mixed none", () => {
  const letters = typeLetters(["previous-token", "positional", "mixed", "uniform"]);
  expect([...letters]).toEqual([["previous-token", "P"], ["positional", "O"], ["uniform", "U"]]);
});

test("moveHead wraps around layers and heads, and stays within a layer's heads", () => {
  const rows = [4, 4, 1].map((heads, id) => ({ id: id === 2 ? -1 : id, label: "", title: "", group: "", heads }));
  expect(moveHead(rows, 0, 3, [-1, 0])).toEqual([-1, 0]);
  expect(moveHead(rows, 1, 3, [0, 1])).toEqual([1, 0]);
  expect(moveHead(rows, -1, 0, [1, 0])).toEqual([0, 0]);
});
