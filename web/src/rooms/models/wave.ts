// A recording as it is drawn: its loudness along time, and its words in rows that do not overlap.

import type { Word } from "./types";

const HEAD = 44; // bytes before the samples of a wav file of the server's

// The largest samples of as many parts of equal length, 0 to 1.
export function loudness(file: ArrayBuffer, parts: number): { seconds: number; peaks: number[] } {
  const rate = new DataView(file).getUint32(24, true);
  const samples = new Int16Array(file, HEAD, Math.floor((file.byteLength - HEAD) / 2));
  const size = Math.max(samples.length / parts, 1);
  const peaks = Array.from({ length: Math.min(parts, samples.length) }, (_, part) => {
    let most = 0;
    for (let i = Math.floor(part * size); i < Math.min(Math.floor((part + 1) * size), samples.length); i++) most = Math.max(most, Math.abs(samples[i]));
    return most / 32768;
  });
  return { seconds: samples.length / rate, peaks };
}

// The row of each word, the first in which it has room; null where none has.
export function rows(words: Word[], width: (word: Word) => number, place: (word: Word) => number, most = 3): (number | null)[] {
  const ends: number[] = [];
  return words.map((word) => {
    const from = place(word) - width(word) / 2;
    const row = Array.from({ length: most }, (_, i) => i).find((i) => (ends[i] ?? -Infinity) <= from);
    if (row === undefined) return null;
    ends[row] = from + width(word);
    return row;
  });
}
