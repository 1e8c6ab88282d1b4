// Curves of runs: extending, smoothing, thinning, axes and panels.

export const RUN_COLORS = 12; // runs that have a color of their own

export interface Series {
  step: number[];
  seconds: number[];
  value: number[];
}
export type Over = "step" | "seconds";
export interface SeriesUpdate {
  mark: string;
  reset: boolean;
  more: boolean;
  series: Record<string, Series>;
}
export interface Curve {
  run: string;
  color: number;
  series: Series;
}
export interface Panel {
  stage: string;
  name: string;
  training: Curve[];
  validation: Curve[];
}

// The series of a stage with newly arrived values; `reset` starts over.
export function extendSeries(known: Record<string, Series>, update: SeriesUpdate): Record<string, Series> {
  const result: Record<string, Series> = update.reset ? {} : { ...known };
  for (const [name, more] of Object.entries(update.series)) {
    const before = result[name];
    result[name] = before
      ? { step: before.step.concat(more.step), seconds: before.seconds.concat(more.seconds), value: before.value.concat(more.value) }
      : more;
  }
  return result;
}

// An exponential moving average without bias towards the first values; share 0: no smoothing.
export function smoothSeries(values: number[], share: number): number[] {
  if (share <= 0) return values;
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    sum = share * sum + (1 - share) * value;
    weight = share * weight + (1 - share);
    return sum / weight;
  });
}

// At most about 2 × `most` points: the minimum and maximum of every bucket, so that no spike is lost.
export function thinPoints(points: [number, number][], most = 600): [number, number][] {
  if (points.length <= 2 * most) return points;
  const kept: [number, number][] = [];
  const size = points.length / most;
  for (let bucket = 0; bucket < most; bucket++) {
    const part = points.slice(Math.floor(bucket * size), Math.floor((bucket + 1) * size));
    let [low, high] = [0, 0];
    part.forEach((point, i) => {
      if (point[1] < part[low][1]) low = i;
      if (point[1] > part[high][1]) high = i;
    });
    for (const i of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) kept.push(part[i]);
  }
  kept.push(points[points.length - 1]);
  return kept;
}

export interface Scale {
  low: number;
  high: number;
  log: boolean;
  ticks: number[];
}

export function makeScale(values: number[], log: boolean): Scale {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return { low: log ? 0.1 : 0, high: 1, log, ticks: [] };
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  if (log) return { low, high, log, ticks: logTicks(low, high) };
  const step = niceStep((high - low) / 4);
  low = Math.floor(low / step + 1e-9) * step;
  high = Math.ceil(high / step - 1e-9) * step;
  const ticks = [];
  for (let i = 0; i <= Math.round((high - low) / step); i++) ticks.push(Number((low + i * step).toPrecision(12)));
  return { low, high, log, ticks };
}

function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((part) => part * power).find((each) => each >= rough * 0.999) ?? rough;
}

function logTicks(low: number, high: number): number[] {
  const decades = Math.log10(high / low);
  const parts = decades > 2.5 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const part of parts) ticks.push(Number((part * 10 ** power).toPrecision(3)));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}

// The position of a value on an axis, 0 to 1.
export function at(value: number, { low, high, log }: Scale): number {
  return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

export function formatNumber(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

// The labels of an axis: with as many digits as it takes to tell neighboring ticks apart.
export function formatTicks(ticks: number[]): string[] {
  for (let digits = 4; digits <= 12; digits++) {
    const labels = ticks.map((tick) => (digits === 4 ? formatNumber(tick) : tick.toLocaleString("en", { maximumSignificantDigits: digits })));
    if (new Set(labels).size === new Set(ticks).size) return labels;
  }
  return ticks.map(String);
}

export function duration(seconds: number): string {
  if (seconds === 0) return "0";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${String(whole % 60).padStart(2, "0")} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// The value at a position: the last one at or before it.
export function valueAt(series: Series, place: number, over: Over): number | undefined {
  const xs = series[over];
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= place) low = middle + 1;
    else high = middle;
  }
  return low ? series.value[low - 1] : undefined;
}

// Groups the series of runs into panels: training and validation of one metric share a panel.
export function panels(runs: { id: string; color: number; stages: Record<string, Record<string, Series>> }[]): Panel[] {
  const found = new Map<string, Panel>();
  for (const { id, color, stages } of runs) {
    for (const [stage, all] of Object.entries(stages)) {
      for (const [key, series] of Object.entries(all)) {
        const [, part, name] = /^(training|validation) (.*)$/.exec(key) ?? [key, "training", key];
        const place = `${stage}/${name}`;
        if (!found.has(place)) found.set(place, { stage, name, training: [], validation: [] });
        found.get(place)![part as "training" | "validation"].push({ run: id, color, series });
      }
    }
  }
  const last = ["rate", "gradient_norm", "items_per_second"];
  const order = (panel: Panel) => (panel.name === "loss" ? -1 : last.indexOf(panel.name) + 1);
  const stages = [...new Set([...found.values()].map((panel) => panel.stage))];
  return [...found.values()].sort((a, b) => stages.indexOf(a.stage) - stages.indexOf(b.stage) || order(a) - order(b));
}

export const TITLES: Record<string, string> = { rate: "learning rate", gradient_norm: "gradient norm", items_per_second: "items per second" };

export function title(panel: Panel, several: boolean): string {
  const name = TITLES[panel.name] ?? panel.name.replaceAll("_", " ");
  return several ? `${panel.stage}: ${name}` : name;
}
