import { expect, test } from "vitest";

import { COLOURS } from "../../lib/colour";
import { colour } from "./influence";

test("the largest move has the last colour, a thousandth of it the middle one, none has none", () => {
  expect(colour(1)).toBe(COLOURS[255]);
  expect(colour(1e-3)).toBe(COLOURS[128]);
  expect(colour(0)).toBeNull();
  expect(colour(1e-6)).toBeNull();
  expect(colour(NaN)).toBeNull();
});
