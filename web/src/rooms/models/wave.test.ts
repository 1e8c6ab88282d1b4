import { expect, test } from "vitest";

import { loudness, rows } from "./wave";

test("a recording's loudness is the largest sample of each part, and its length is in seconds", () => {
  const file = new ArrayBuffer(44 + 2 * 8);
  new DataView(file).setUint32(24, 4, true); // four samples a second
  new Int16Array(file, 44).set([0, 16384, 0, -32768, 0, 0, 8192, 0]);
  expect(loudness(file, 4)).toEqual({ seconds: 2, peaks: [0.5, 1, 0, 0.25] });
  expect(loudness(file, 100).peaks).toHaveLength(8);
});

test("words that would overlap stand in rows, and what has no room in any is left out", () => {
  const words = [0, 1, 2, 9].map((start) => ({ text: "one", start, end: start + 1 }));
  expect(rows(words, () => 4, (word) => word.start, 2)).toEqual([0, 1, null, 0]);
});
