import { expect, test } from "vitest";

import { countTypes, moveHead, TYPE_LETTERS } from "./heads";
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

test("TYPE_LETTERS gives each head type a letter of its own, and mixed none", () => {
  const letters = Object.values(TYPE_LETTERS);
  expect(new Set(letters).size).toBe(letters.length);
  expect([TYPE_LETTERS.positional, TYPE_LETTERS.offset, TYPE_LETTERS.mixed]).toEqual(["T", "O", undefined]);
});

test("countTypes counts each head once, by the type whose letter the grid shows", () => {
  const heads: [string, number][][] = [[["previous-token", 0.8], ["positional", 0.6]], [["positional", 0.7]], [], [["previous-token", 0.5]]];
  expect(countTypes(heads)).toEqual([["previous-token", 2], ["positional", 1]]);
});

test("moveHead wraps around layers and heads, and stays within a layer's heads", () => {
  const rows = [4, 4, 1].map((heads, id) => ({ id: id === 2 ? -1 : id, label: "", title: "", group: "", heads }));
  expect(moveHead(rows, 0, 3, [-1, 0])).toEqual([-1, 0]);
  expect(moveHead(rows, 1, 3, [0, 1])).toEqual([1, 0]);
  expect(moveHead(rows, -1, 0, [1, 0])).toEqual([0, 0]);
});
