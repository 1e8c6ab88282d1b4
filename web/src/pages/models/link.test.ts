import { expect, test } from "vitest";

import { parseEdges, parseScales } from "./link";

test("masked edges and scales come out of the address as they went in, and nonsense is left out", () => {
  expect(parseEdges("0.all.3.2,1.2.0.1,oops,1.x.2.3")).toEqual([[0, null, 3, 2], [1, 2, 0, 1]]);
  expect(parseScales("all:2,1.3:0.5,x:y")).toEqual({ "": 2, "1.3": 0.5 });
  expect(parseEdges(undefined)).toEqual([]);
});
