import { expect, test } from "vitest";

import { betasOf, cutsOf, viewOf } from "./link";
import { visible } from "./types";

test("cuts and β come out of an address as they went in, and what is no edge is left out", () => {
  expect(cutsOf("0.all.3.2,1.2.0.1,oops,1.x.2.3")).toEqual([[0, null, 3, 2], [1, 2, 0, 1]]);
  expect(betasOf("all:2,1.3:0.5,x:y")).toEqual({ "": 2, "1.3": 0.5 });
  expect(cutsOf(undefined)).toEqual([]);
  expect([viewOf("3.9.0.6"), viewOf("3.9.0"), viewOf(undefined)]).toEqual([{ rows: [3, 9], columns: [0, 6] }, null, null]);
});

test("a token is shown so that blanks and control characters are seen", () => {
  expect([" cat", "\n", " ", "", "a\u0007b"].map((token) => visible(token))).toEqual(["cat", "⏎", "␣", "∅", "a·b"]);
  expect(visible("abcdefghijklmnop", 6)).toBe("abcde…");
});
