import { expect, test } from "vitest";

import { COLORS } from "../../viewer/colors";
import { influenceColor } from "./influence";

test("the largest effect has the last color, a thousandth of it the middle one, and no effect has none", () => {
  expect(influenceColor(1)).toBe(COLORS[255]);
  expect(influenceColor(1e-3)).toBe(COLORS[128]);
  expect(influenceColor(0)).toBeNull();
  expect(influenceColor(1e-6)).toBeNull();
  expect(influenceColor(NaN)).toBeNull();
});
