// The store of the Runs page: the list of runs and their curves, polled while something trains.
import { get } from "../../lib/api";
import { extendSeries, type Series, type SeriesUpdate } from "./curves";

export type RunState = "training" | "testing" | "finished" | "stopped" | "failed" | "unfinished" | "unreadable";
export const isActive = (state: RunState): boolean => state === "training" || state === "testing";
export interface Metric {
  part: string;
  name: string;
  value: number;
  text: string;
}
export interface RunSummary {
  id: string;
  state: RunState;
  problem?: string;
  own: boolean; // started by the studio
  recipe: string;
  model: string;
  seed: number;
  parameters: number;
  step: number;
  steps: number;
  seconds: number;
  results: Metric[];
  error: string;
}
export interface Listing {
  folder: string;
  runs: RunSummary[];
  starting: { id: string }[];
  problem: string;
}
export interface RunDetail extends RunSummary {
  stages: Record<string, SeriesUpdate>;
  checkpoint: string; // stage and step of the newest
  toml: string;
  report: boolean;
  notes: string[];
  command: string;
  python: string;
}

export class RunStore {
  listing = $state.raw<Listing | null>(null);
  details = $state.raw<Record<string, RunDetail>>({});
  curves = $state.raw<Record<string, Record<string, Record<string, Series>>>>({});
  problem = $state("");
  private ended = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private asking: Promise<void> | null = null;

  constructor(private readonly shown: () => string[]) {}

  start(): () => void {
    void this.poll();
    return () => {
      this.ended = true;
      clearTimeout(this.timer);
    };
  }

  // Polls now; the next poll follows, sooner while something trains.
  poll(): Promise<void> {
    this.asking ??= this.ask().finally(() => {
      this.asking = null;
      clearTimeout(this.timer);
      if (!this.ended) this.timer = setTimeout(() => (document.hidden ? this.later() : void this.poll()), this.pause());
    });
    return this.asking;
  }

  private later(): void {
    document.addEventListener("visibilitychange", () => !this.ended && void this.poll(), { once: true });
  }

  private pause(): number {
    if (this.problem) return 5000;
    const busy = this.listing?.starting.length || this.listing?.runs.some((run) => isActive(run.state));
    return busy ? 1000 : 3000;
  }

  private async ask(): Promise<void> {
    try {
      const listing = await get<Listing>("/api/runs");
      if (this.ended) return;
      this.listing = listing;
      for (const run of listing.runs) {
        const held = this.details[run.id];
        // a run that has changed is read again
        const stale = !held || isActive(run.state) || run.state !== held.state || run.step !== held.step;
        if (this.shown().includes(run.id) && stale) await this.read(run.id);
      }
      this.problem = "";
    } catch (problem) {
      this.problem = (problem as Error).message;
    }
  }

  private async read(id: string): Promise<void> {
    for (let more = true; more && !this.ended; ) {
      const marks = Object.entries(this.details[id]?.stages ?? {}).map(([stage, piece]) => [`mark.${stage}`, piece.mark]);
      const found = await get<RunDetail>(`/api/runs/run/${encodeURIComponent(id)}?${new URLSearchParams(marks)}`);
      const held = this.curves[id] ?? {};
      const stages = Object.fromEntries(Object.entries(found.stages).map(([stage, piece]) => [stage, extendSeries(held[stage] ?? {}, piece)]));
      this.details = { ...this.details, [id]: found };
      this.curves = { ...this.curves, [id]: stages };
      more = Object.values(found.stages).some((piece) => piece.more);
    }
  }
}
