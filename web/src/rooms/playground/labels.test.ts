import { expect, test } from "vitest";

import { placed } from "./labels";

const spot = (x: number, y: number, outward: [number, number] = [1, -1]) => ({ x, y, wide: 16, outward });

test("a name stands outward of its point, and inside of the picture", () => {
  expect(placed([spot(200, 100)], 320)).toEqual([{ x: 210, y: 95, anchor: "start" }]);
  expect(placed([spot(100, 200, [-1, 1])], 320)[0].anchor).toBe("end");
  const [edge] = placed([spot(315, 5)], 320);
  expect([edge.anchor, edge.y > 5]).toEqual(["end", true]);
});

test("two points in one place have names that can both be read", () => {
  const names = placed([spot(160, 160), spot(161, 160)], 320);
  const [one, two] = names.map(({ x, y, anchor }) => ({ left: x - { start: 0, middle: 8, end: 16 }[anchor], y }));
  expect(Math.abs(one.left - two.left) >= 16 || Math.abs(one.y - two.y) >= 11).toBe(true);
});
