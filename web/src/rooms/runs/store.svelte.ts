// What the room knows of the runs: the list and the curves, asked for again as long as something trains.
import { get } from "../../lib/api";
import { grown, type Piece, type Series } from "./curves";

export type RunState = "running" | "finished" | "stopped" | "unreadable";
export interface Figure {
  part: string;
  name: string;
  value: number;
  shown: string;
}
export interface Listed {
  id: string;
  state: RunState;
  problem?: string;
  here: boolean; // begun by a page, not by a terminal
  recipe: string;
  model: string;
  seed: number;
  parameters: number;
  step: number;
  steps: number;
  seconds: number;
  figures: Figure[];
  said: string;
}
export interface Listing {
  folder: string;
  runs: Listed[];
  beginning: { id: string }[];
  problem: string;
}
export interface Detail extends Listed {
  stages: Record<string, Piece>;
  checkpoint: string; // the newest: its stage and step
  toml: string;
  report: boolean;
  notes: string[];
  again: string;
  python: string;
}

export class Watch {
  listing = $state.raw<Listing | null>(null);
  details = $state.raw<Record<string, Detail>>({});
  curves = $state.raw<Record<string, Record<string, Record<string, Series>>>>({});
  problem = $state("");
  private ended = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private asking: Promise<void> | null = null;

  constructor(private readonly shown: () => string[]) {}

  begin(): () => void {
    void this.look();
    return () => {
      this.ended = true;
      clearTimeout(this.timer);
    };
  }

  // Looks now; the next look comes by itself, sooner while something trains.
  look(): Promise<void> {
    this.asking ??= this.ask().finally(() => {
      this.asking = null;
      clearTimeout(this.timer);
      if (!this.ended) this.timer = setTimeout(() => (document.hidden ? this.later() : void this.look()), this.pause());
    });
    return this.asking;
  }

  private later(): void {
    document.addEventListener("visibilitychange", () => !this.ended && void this.look(), { once: true });
  }

  private pause(): number {
    if (this.problem) return 5000;
    const busy = this.listing?.beginning.length || this.listing?.runs.some((run) => run.state === "running");
    return busy ? 1000 : 3000;
  }

  private async ask(): Promise<void> {
    try {
      const listing = await get<Listing>("/api/runs");
      if (this.ended) return;
      this.listing = listing;
      for (const run of listing.runs) {
        const held = this.details[run.id];
        // a run that has changed since it was read is read once more
        const stale = !held || run.state === "running" || run.state !== held.state || run.step !== held.step;
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
      const found = await get<Detail>(`/api/runs/run/${encodeURIComponent(id)}?${new URLSearchParams(marks)}`);
      const held = this.curves[id] ?? {};
      const stages = Object.fromEntries(Object.entries(found.stages).map(([stage, piece]) => [stage, grown(held[stage] ?? {}, piece)]));
      this.details = { ...this.details, [id]: found };
      this.curves = { ...this.curves, [id]: stages };
      more = Object.values(found.stages).some((piece) => piece.more);
    }
  }
}
