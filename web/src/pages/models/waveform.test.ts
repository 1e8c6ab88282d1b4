import { expect, test } from "vitest";

import { loudness, wordRows } from "./waveform";

test("loudness is the largest sample of each part, and the length is in seconds", () => {
  const file = new ArrayBuffer(44 + 2 * 8);
  new DataView(file).setUint32(24, 4, true); // four samples a second
  new Int16Array(file, 44).set([0, 16384, 0, -32768, 0, 0, 8192, 0]);
  expect(loudness(file, 4)).toEqual({ seconds: 2, peaks: [0.5, 1, 0, 0.25] });
  expect(loudness(file, 100).peaks).toHaveLength(8);
});

test("wordRows puts overlapping words into rows and leaves out words without room", () => {
  const words = [0, 1, 2, 9].map((start) => ({ text: "one", start, end: start + 1 }));
  expect(wordRows(words, () => 4, (word) => word.start, 2)).toEqual([0, 1, null, 0]);
});
