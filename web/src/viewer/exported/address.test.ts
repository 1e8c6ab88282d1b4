import { expect, test } from "vitest";

import { FIRST, fromHash, toHash, viewOf } from "./address";

test("the state comes out of the address as it went in, and defaults are left out", () => {
  const state = { ...FIRST, panel: 2, head: 3, view: { rows: [4, 9], columns: [2, 7] }, scale: "own", search: "a & b", theme: "dark" } as const;
  expect(fromHash(toHash({ ...state, view: { rows: [4, 9], columns: [2, 7] } }))).toEqual(state);
  expect(toHash(FIRST)).toBe("#");
  expect(fromHash(toHash({ ...FIRST, key: 0 })).key).toBe(0);
});

test("nonsense in the address becomes the default", () => {
  expect(fromHash("#panel=x&head=-3&scale=loud&view=1.2")).toEqual(FIRST);
  expect([viewOf("3.9.0.6"), viewOf("3.9.0"), viewOf("")]).toEqual([{ rows: [3, 9], columns: [0, 6] }, null, null]);
});
