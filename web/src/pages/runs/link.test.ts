import { expect, test } from "vitest";

import { joinIds, splitIds } from "./link";

test("ids of runs come out of the address as they went in", () => {
  const names = ["vit-digits-1", "a, b", "50 %", "é/ü"];
  expect(splitIds(joinIds(names))).toEqual(names);
  expect([splitIds(undefined), splitIds("100%,b")]).toEqual([[], ["100%", "b"]]);
});
