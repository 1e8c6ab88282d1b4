import { afterEach, expect, test, vi } from "vitest";

import { followJob, unpackArrays } from "./api";

test("unpackArrays reads what the server wrote", () => {
  const head = JSON.stringify({ name: "a", arrays: { w: { dtype: "float32", shape: [1, 2], offset: 0 } } });
  const padded = head + " ".repeat((8 - ((head.length + 4) % 8)) % 8);
  const bytes = new Uint8Array(4 + padded.length + 8);
  new DataView(bytes.buffer).setUint32(0, padded.length, true);
  bytes.set(new TextEncoder().encode(padded), 4);
  new Float32Array(bytes.buffer, 4 + padded.length, 2).set([0.25, 0.75]);
  const found = unpackArrays<{ name: string }>(bytes.buffer);
  expect(found.head.name).toBe("a");
  expect([...found.arrays.w.data]).toEqual([0.25, 0.75]);
});

class Stream {
  static last: Stream;
  static CLOSED = 2;
  readyState = 0;
  onmessage = (_: { data: string }) => {};
  onerror = () => {};
  constructor() {
    Stream.last = this;
  }
  close() {
    this.readyState = Stream.CLOSED;
  }
}

afterEach(() => vi.unstubAllGlobals());

test("aborting followJob closes its stream, and no new one is opened", async () => {
  vi.stubGlobal("EventSource", Stream);
  const leaving = new AbortController();
  const ended = followJob("1", () => {}, leaving.signal);
  const first = Stream.last;
  leaving.abort();
  await expect(ended).rejects.toThrow("abort");
  expect(first.readyState).toBe(Stream.CLOSED);
  await expect(followJob("1", () => {}, leaving.signal)).rejects.toThrow("abort");
  expect(Stream.last).toBe(first);
});

test("followJob reports a stopped server and waits for a slow one", async () => {
  vi.stubGlobal("EventSource", Stream);
  const fetching = vi.fn().mockResolvedValueOnce(new Response('{"state": "running"}')).mockRejectedValueOnce(new TypeError("refused"));
  vi.stubGlobal("fetch", fetching);
  const ended = followJob("1", () => {}, new AbortController().signal);
  Stream.last.onerror();
  await new Promise((resolve) => setTimeout(resolve));
  expect(Stream.last.readyState).toBe(0);
  Stream.last.onerror();
  await expect(ended).rejects.toThrow("the server does not answer");
  expect(Stream.last.readyState).toBe(Stream.CLOSED);
});
