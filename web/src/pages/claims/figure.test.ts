import { expect, test } from "vitest";

import { joinFigures, styleFigure } from "./figure";

const svg = '<svg xmlns:xlink="x" style="width:100%;max-width:333px" viewBox="0 0 200 100" xmlns="http://www.w3.org/2000/svg"><path stroke="currentColor"/></svg>';

test("styleFigure sets the size and the text color, and changes nothing else", () => {
  const { width, height, text } = styleFigure(svg, "#123456");
  expect([width, height]).toEqual([260, 130]);
  expect(text).toContain('width="260" height="130" style="color: #123456"><path stroke="currentColor"/></svg>');
  expect(text).not.toContain("max-width");
});

test("joinFigures puts panels side by side", () => {
  const whole = joinFigures([svg, svg], "red");
  expect(whole).toContain('viewBox="0 0 520 130"');
  expect(whole.match(/<svg x="(\d+)"/g)).toEqual(['<svg x="0"', '<svg x="260"']);
});
