import { expect, test } from "vitest";

import { inked, joined } from "./picture";

const svg = '<svg xmlns:xlink="x" style="width:100%;max-width:333px" viewBox="0 0 200 100" xmlns="http://www.w3.org/2000/svg"><path stroke="currentColor"/></svg>';

test("a picture gets a size and the page's ink, and nothing in it is changed", () => {
  const { width, height, text } = inked(svg, "#123456");
  expect([width, height]).toEqual([260, 130]);
  expect(text).toContain('width="260" height="130" style="color: #123456"><path stroke="currentColor"/></svg>');
  expect(text).not.toContain("max-width");
});

test("panels stand side by side", () => {
  const whole = joined([svg, svg], "red");
  expect(whole).toContain('viewBox="0 0 520 130"');
  expect(whole.match(/<svg x="(\d+)"/g)).toEqual(['<svg x="0"', '<svg x="260"']);
});
