import { expect, test } from "vitest";

import { Latest } from "./latest";

test("one request is in flight, and the latest of those that waited is sent next", async () => {
  const sent: number[] = [];
  const done: number[] = [];
  const release: (() => void)[] = [];
  const latest = new Latest<number, number>(
    (request) => new Promise((resolve) => (sent.push(request), release.push(() => resolve(request)))),
    (answer) => done.push(answer),
    () => {},
  );
  const all = latest.put(1);
  latest.put(2);
  latest.put(3);
  expect(sent).toEqual([1]);
  release[0]();
  await new Promise((resolve) => setTimeout(resolve));
  expect(sent).toEqual([1, 3]);
  release[1]();
  await all;
  expect(done).toEqual([1, 3]);
});
