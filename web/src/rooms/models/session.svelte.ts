// A model that is open with an input: what was seen, what is changed, and the maps that were asked for so far.

import { get, maps, post, Refused } from "../../lib/api";
import type { Comparison, Edge, Given, Kinds, Opened, Seen, Small, Source, Told } from "./types";

const SMALL = 48; // cells along the side of a small map

export async function listed(): Promise<Source[]> {
  return (await get<{ models: Source[] }>("/api/models")).models;
}

export async function named(path: string): Promise<Source> {
  return post<Source>("/api/models/folder", { path });
}

export async function compared(first: string, second: string): Promise<Comparison> {
  return post<Comparison>("/api/models/compare", { look: first, other: second });
}

export class Session {
  opened = $state<Opened | null>(null);
  given = $state<Given | null>(null);
  plain = $state.raw<Seen | null>(null);
  changed = $state.raw<Seen | null>(null);
  kinds = $state.raw<Kinds | null>(null);
  small = $state<Record<string, Record<number, Small>>>({}); // by look, by layer
  told = $state.raw<Told | null>(null);
  busy = $state("");
  problem = $state("");
  long = $state<{ length: number; limit: number } | null>(null);
  silence = $state<string[]>([]);
  beta = $state<Record<string, number>>({}); // "", "layer" or "layer.head" → factor
  cut = $state<Edge[]>([]);
  before = $state(false); // whether the maps before the change are shown
  kindless = $state(""); // why the kinds of heads cannot be had
  private asked = 0;
  private asking = 0;

  get shown(): Seen | null {
    return this.changed && !this.before ? this.changed : this.plain;
  }

  get altered(): boolean {
    return this.silence.length > 0 || this.cut.length > 0 || Object.keys(this.beta).length > 0;
  }

  get betas(): string[] {
    return Object.entries(this.beta).map(([where, factor]) => `${where ? `${where}=` : ""}x${Number(factor.toPrecision(3))}`);
  }

  async open(id: string): Promise<void> {
    this.clear();
    this.opened = null;
    this.given = null;
    this.silence = [];
    this.cut = [];
    this.beta = {};
    await this.trying("reading the model …", async (still) => {
      const opened = await post<Opened>("/api/models/open", { model: id });
      if (still()) this.opened = opened;
    });
  }

  private clear(): void {
    this.plain = this.changed = this.kinds = this.told = null;
    this.small = {};
    this.problem = this.kindless = "";
    this.long = null;
  }

  private async trying(saying: string, work: (still: () => boolean) => Promise<void>): Promise<void> {
    const number = ++this.asked;
    const still = () => number === this.asked;
    this.busy = saying;
    try {
      await work(still);
    } catch (problem) {
      if (still()) this.problem = (problem as Error).message;
    } finally {
      if (still()) this.busy = "";
    }
  }

  async look(given: Given): Promise<void> {
    const opened = this.opened;
    if (!opened) return;
    this.clear();
    this.given = given;
    await this.trying("running the model …", async (still) => {
      let seen: Seen;
      try {
        seen = await post<Seen>("/api/models/look", { model: opened.id, ...given });
      } catch (problem) {
        if (!still()) return;
        if (problem instanceof Refused && problem.status === 413 && problem.message.includes("that can be looked at")) {
          const [length, limit] = problem.message.match(/[\d,]+/g)?.map((n) => Number(n.replaceAll(",", ""))) ?? [0, 0];
          this.long = { length, limit };
        }
        this.problem = (problem as Error).message;
        return;
      }
      if (!still()) return;
      this.plain = seen;
      this.told = seen.told;
      this.busy = "";
      const shown = () => this.plain === seen; // a change that is made meanwhile does not end it
      await Promise.all([this.fetch(seen, shown), this.find(seen, shown)]);
      if (this.altered && still()) await this.apply();
    });
  }

  private async find(seen: Seen, shown: () => boolean): Promise<void> {
    if (!seen.tells_kinds) return; // a long input's maps are there all the same
    try {
      const kinds = await post<Kinds>("/api/models/kinds", { look: seen.look });
      if (shown()) this.kinds = kinds;
    } catch (problem) {
      if (shown()) this.kindless = (problem as Error).message;
    }
  }

  private async fetch(seen: Seen, shown: () => boolean): Promise<void> {
    const found: Record<number, Small> = {};
    this.small = { ...this.small, [seen.look]: found };
    for (const layer of [...seen.layers.keys(), ...(seen.rolls ? [-1] : [])]) {
      if (!shown()) return;
      const { arrays } = await maps<{ layer: number }>("/api/models/layer", { look: seen.look, layer, size: SMALL });
      const [heads, rows, columns] = arrays.maps.shape;
      found[layer] = { heads, rows, columns, data: arrays.maps.data as Float32Array };
      if (shown()) this.small = { ...this.small, [seen.look]: { ...found } };
    }
  }

  // The model with what is changed now; without a change, as it is.
  async apply(): Promise<void> {
    const plain = this.plain;
    if (!plain) return;
    if (!this.altered) {
      this.asked++;
      this.changed = null;
      this.told = plain.told;
      this.problem = this.busy = "";
      return;
    }
    await this.trying("running the changed model …", async (still) => {
      const body = { look: plain.look, silence: this.silence, beta: this.betas, cut: this.cut };
      const seen = await post<Seen>("/api/models/change", body);
      if (!still()) return;
      this.problem = "";
      this.changed = seen;
      this.told = seen.told;
      await this.fetch(seen, () => this.changed === seen);
    });
  }

  // The answers at a place: of the changed model if there is one.
  async ask(place: number): Promise<void> {
    const mine = ++this.asking;
    const seen = this.changed ?? this.plain;
    if (!seen || seen.told.places < 2 || this.told?.place === place) return;
    const told = await post<Told>("/api/models/answers", { look: seen.look, place }).catch(() => null);
    if (told && mine === this.asking && (this.changed ?? this.plain) === seen) this.told = told;
  }

  toggle(head: string): void {
    this.silence = this.silence.includes(head) ? this.silence.filter((each) => each !== head) : [...this.silence, head];
    void this.apply();
  }

  snip(edge: Edge): void {
    const same = (each: Edge) => each.every((part, i) => part === edge[i]);
    this.cut = this.cut.some(same) ? this.cut.filter((each) => !same(each)) : [...this.cut, edge];
    void this.apply();
  }

  turn(where: string, factor: number): void {
    const beta = { ...this.beta };
    if (Math.abs(factor - 1) < 0.001) delete beta[where];
    else beta[where] = factor;
    this.beta = beta;
    void this.apply();
  }

  restore(): void {
    this.silence = [];
    this.cut = [];
    this.beta = {};
    void this.apply();
  }
}
