import { expect, test } from "vitest";

import { unpacked } from "./api";

test("maps come out of bytes as they went in", () => {
  const head = JSON.stringify({ name: "a", arrays: { w: { dtype: "float32", shape: [1, 2], offset: 0 } } });
  const padded = head + " ".repeat((8 - ((head.length + 4) % 8)) % 8);
  const bytes = new Uint8Array(4 + padded.length + 8);
  new DataView(bytes.buffer).setUint32(0, padded.length, true);
  bytes.set(new TextEncoder().encode(padded), 4);
  new Float32Array(bytes.buffer, 4 + padded.length, 2).set([0.25, 0.75]);
  const found = unpacked<{ name: string }>(bytes.buffer);
  expect(found.head.name).toBe("a");
  expect([...found.arrays.w.data]).toEqual([0.25, 0.75]);
});
