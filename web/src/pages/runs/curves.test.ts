import { expect, test } from "vitest";

import { at, duration, extendSeries, formatTicks, makeScale, panels, smoothSeries, thinPoints, valueAt } from "./curves";

const series = (value: number[]) => ({ step: value.map((_, i) => i), seconds: value.map((_, i) => i / 2), value });

test("extendSeries appends new values and starts over on reset", () => {
  const first = extendSeries({}, { mark: "", reset: true, more: false, series: { loss: series([3, 2]) } });
  const more = extendSeries(first, { mark: "", reset: false, more: false, series: { loss: { step: [2], seconds: [1], value: [1] } } });
  expect(more.loss).toEqual(series([3, 2, 1]));
  expect(extendSeries(more, { mark: "", reset: true, more: false, series: { loss: series([9]) } }).loss.value).toEqual([9]);
  expect(first.loss.value).toEqual([3, 2]);
});

test("smoothSeries keeps a constant, and equals the formula of an unbiased average", () => {
  expect(smoothSeries([2, 2, 2], 0.9).map((value) => value.toFixed(12))).toEqual(Array(3).fill((2).toFixed(12)));
  const share = 0.6;
  const [a, b] = [5, 1];
  expect(smoothSeries([a, b], share)[1]).toBeCloseTo((share * a + b) / (share + 1), 12);
  expect(smoothSeries([1, 2], 0)).toEqual([1, 2]);
});

test("thinPoints keeps spikes and the last point", () => {
  const points: [number, number][] = Array.from({ length: 10_000 }, (_, i) => [i, i === 777 ? 100 : i === 778 ? -100 : Math.sin(i)]);
  const kept = thinPoints(points);
  expect(kept.length).toBeLessThanOrEqual(1201);
  expect(kept).toContainEqual([777, 100]);
  expect(kept).toContainEqual([778, -100]);
  expect(kept.at(-1)).toEqual(points.at(-1));
  expect(kept.every((point, i) => i === 0 || point[0] >= kept[i - 1][0])).toBe(true);
});

test("makeScale contains every value and has round ticks", () => {
  const even = makeScale([0.13, 2.31], false);
  expect(even.ticks).toEqual([0, 1, 2, 3]);
  expect([at(even.low, even), at(even.high, even)]).toEqual([0, 1]);
  const log = makeScale([0.01, 0, 10, NaN], true);
  expect(log.ticks).toEqual([0.01, 0.1, 1, 10]);
  expect(at(0.316227766, log)).toBeCloseTo(0.5, 6);
  expect(makeScale([5, 5], false).low).toBeLessThan(5);
  expect(makeScale([], false).ticks).toEqual([]);
});

test("valueAt is the last value at or before a position", () => {
  const curve = { step: [10, 20, 30], seconds: [1, 2, 3], value: [3, 2, 1] };
  expect([5, 10, 29, 99].map((place) => valueAt(curve, place, "step"))).toEqual([undefined, 3, 2, 1]);
  expect(valueAt(curve, 2.5, "seconds")).toBe(2);
});

test("panels puts training and validation of one metric together; loss comes first", () => {
  const stages = { train: { rate: series([1]), "training accuracy": series([1]), "validation loss": series([1]), "training loss": series([1]) } };
  const found = panels([{ id: "a", color: 0, stages }, { id: "b", color: 1, stages }]);
  expect(found.map((panel) => panel.name)).toEqual(["loss", "accuracy", "rate"]);
  expect(found[0].training.map((curve) => curve.run)).toEqual(["a", "b"]);
  expect(found[0].validation.length).toBe(2);
});

test("duration never shows sixty seconds", () => {
  expect(duration(1139.7)).toBe("19 min 00 s");
  expect(duration(61.2)).toBe("1 min 01 s");
});

test("formatTicks never gives two ticks of an axis the same label", () => {
  expect(formatTicks([2.30201, 2.302015, 2.30202])).toEqual(["2.30201", "2.302015", "2.30202"]);
  expect(formatTicks([0, 0.5, 1])).toEqual(["0", "0.5", "1"]);
});
