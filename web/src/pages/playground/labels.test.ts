import { expect, test } from "vitest";

import { placeLabels } from "./labels";

const spot = (x: number, y: number, outward: [number, number] = [1, -1]) => ({ x, y, wide: 16, outward });

test("placeLabels puts a label outward of its point and inside the figure", () => {
  expect(placeLabels([spot(200, 100)], 320)).toEqual([{ x: 210, y: 95, anchor: "start" }]);
  expect(placeLabels([spot(100, 200, [-1, 1])], 320)[0].anchor).toBe("end");
  const [edge] = placeLabels([spot(315, 5)], 320);
  expect([edge.anchor, edge.y > 5]).toEqual(["end", true]);
});

test("labels of two points at one place do not overlap", () => {
  const names = placeLabels([spot(160, 160), spot(161, 160)], 320);
  const [one, two] = names.map(({ x, y, anchor }) => ({ left: x - { start: 0, middle: 8, end: 16 }[anchor], y }));
  expect(Math.abs(one.left - two.left) >= 16 || Math.abs(one.y - two.y) >= 11).toBe(true);
});
