// Drawing a recording: its loudness along time, and its words in rows that do not overlap.

import type { SpokenWord } from "./types";

const HEADER = 44; // bytes before the samples of the server's WAV files

// The largest sample of each part, 0 to 1, and the length in seconds.
export function loudness(file: ArrayBuffer, parts: number): { seconds: number; peaks: number[] } {
  const rate = new DataView(file).getUint32(24, true);
  const samples = new Int16Array(file, HEADER, Math.floor((file.byteLength - HEADER) / 2));
  const size = Math.max(samples.length / parts, 1);
  const peaks = Array.from({ length: Math.min(parts, samples.length) }, (_, part) => {
    let most = 0;
    for (let i = Math.floor(part * size); i < Math.min(Math.floor((part + 1) * size), samples.length); i++) most = Math.max(most, Math.abs(samples[i]));
    return most / 32768;
  });
  return { seconds: samples.length / rate, peaks };
}

// The row of each word: the first with room for it; null if there is none.
export function wordRows(words: SpokenWord[], width: (word: SpokenWord) => number, place: (word: SpokenWord) => number, most = 3): (number | null)[] {
  const ends: number[] = [];
  return words.map((word) => {
    const from = place(word) - width(word) / 2;
    const row = Array.from({ length: most }, (_, i) => i).find((i) => (ends[i] ?? -Infinity) <= from);
    if (row === undefined) return null;
    ends[row] = from + width(word);
    return row;
  });
}
