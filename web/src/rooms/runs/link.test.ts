import { expect, test } from "vitest";

import { joined, parted } from "./link";

test("names of runs come out of an address as they went in", () => {
  const names = ["vit-digits-1", "a, b", "50 %", "é/ü"];
  expect(parted(joined(names))).toEqual(names);
  expect([parted(undefined), parted("100%,b")]).toEqual([[], ["100%", "b"]]);
});
