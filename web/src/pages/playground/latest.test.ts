import { expect, test } from "vitest";

import { Latest } from "./latest";

test("one request is in flight, and the latest of those that waited is sent next", async () => {
  const begun: number[] = [];
  const done: number[] = [];
  const release: (() => void)[] = [];
  const latest = new Latest<number, number>(
    (question) => new Promise((resolve) => (begun.push(question), release.push(() => resolve(question)))),
    (answer) => done.push(answer),
    () => {},
  );
  const all = latest.put(1);
  latest.put(2);
  latest.put(3);
  expect(begun).toEqual([1]);
  release[0]();
  await new Promise((resolve) => setTimeout(resolve));
  expect(begun).toEqual([1, 3]);
  release[1]();
  await all;
  expect(done).toEqual([1, 3]);
});
