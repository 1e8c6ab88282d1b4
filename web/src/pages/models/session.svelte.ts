// An open model with its input: looks, interventions, predictions, and the maps that were loaded so far.

import { ApiError, get, post, postForArrays } from "../../lib/api";
import type { MapWindow, Range } from "../../viewer/types";
import type { Comparison, Edge, HeadTypes, InputValue, LayerMaps, Look, ModelSource, OpenModel, Predictions } from "./types";

const SMALL = 48; // cells along the side of a small map
const LARGE = 512; // cells along the side of the large map
const ROW = 1024; // keys that are requested at a time

export async function listModels(): Promise<ModelSource[]> {
  return (await get<{ models: ModelSource[] }>("/api/models")).models;
}

export async function addFolder(path: string): Promise<ModelSource> {
  return post<ModelSource>("/api/models/folder", { path });
}

export async function compareLooks(look: string, other: string): Promise<Comparison> {
  return post<Comparison>("/api/models/compare", { look, other });
}

export async function loadWindow(look: string, layer: number, head: number, rows: Range, columns: Range, signal?: AbortSignal, size = LARGE): Promise<MapWindow> {
  const found = await postForArrays<{ rows: Range; columns: Range; step: number }>("/api/models/window", { look, layer, head, rows, columns, size }, signal);
  const { data, shape } = found.arrays.weights;
  return { weights: data as Float32Array, rows: found.head.rows, columns: found.head.columns, step: found.head.step, height: shape[0], width: shape[1], digits: 6 };
}

// All weights of one query, unpooled.
export async function loadRow(look: string, layer: number, head: number, query: number, keys: number, signal?: AbortSignal): Promise<Float32Array> {
  const row = new Float32Array(keys);
  for (let start = 0; start < keys; start += ROW) {
    const { weights } = await loadWindow(look, layer, head, [query, query + 1], [start, Math.min(start + ROW, keys)], signal, ROW);
    row.set(weights, start);
  }
  return row;
}

export class Session {
  model = $state<OpenModel | null>(null);
  input = $state<InputValue | null>(null);
  original = $state.raw<Look | null>(null); // without interventions
  intervened = $state.raw<Look | null>(null);
  headTypes = $state.raw<HeadTypes | null>(null);
  maps = $state<Record<string, Record<number, LayerMaps>>>({}); // by look, by layer
  predictions = $state.raw<Predictions | null>(null);
  busy = $state("");
  problem = $state("");
  tooLong = $state<{ length: number; limit: number } | null>(null);
  ablated = $state<string[]>([]); // "layer.head"
  scales = $state<Record<string, number>>({}); // "", "layer" or "layer.head" → factor
  masked = $state<Edge[]>([]);
  showOriginal = $state(false); // whether the maps before the interventions are shown
  headTypesProblem = $state("");
  private turn = 0;
  private predictionTurn = 0;

  get shown(): Look | null {
    return this.intervened && !this.showOriginal ? this.intervened : this.original;
  }

  get hasInterventions(): boolean {
    return this.ablated.length > 0 || this.masked.length > 0 || Object.keys(this.scales).length > 0;
  }

  get scaleOptions(): string[] {
    return Object.entries(this.scales).map(([where, factor]) => `${where ? `${where}=` : ""}x${Number(factor.toPrecision(3))}`);
  }

  async open(id: string): Promise<void> {
    this.clear();
    this.model = this.input = null;
    this.resetInterventions();
    await this.attempt("loading the model …", async (current) => {
      const model = await post<OpenModel>("/api/models/open", { model: id });
      if (current()) this.model = model;
    });
  }

  private clear(): void {
    this.original = this.intervened = this.headTypes = this.predictions = null;
    this.maps = {};
    this.problem = this.headTypesProblem = "";
    this.tooLong = null;
  }

  private resetInterventions(): void {
    this.ablated = [];
    this.masked = [];
    this.scales = {};
  }

  // Runs work that a newer attempt overtakes; a failure becomes the problem that is shown.
  private async attempt(busy: string, work: (current: () => boolean) => Promise<void>): Promise<void> {
    const turn = ++this.turn;
    const current = () => turn === this.turn;
    this.busy = busy;
    try {
      await work(current);
    } catch (problem) {
      if (current()) this.problem = (problem as Error).message;
    } finally {
      if (current()) this.busy = "";
    }
  }

  async look(input: InputValue): Promise<void> {
    const model = this.model;
    if (!model) return;
    this.clear();
    this.input = input;
    await this.attempt("running the model …", async (current) => {
      let look: Look;
      try {
        look = await post<Look>("/api/models/look", { model: model.id, ...input });
      } catch (problem) {
        if (!current()) return;
        if (problem instanceof ApiError && problem.status === 413 && problem.body.limit) this.tooLong = { length: problem.body.length, limit: problem.body.limit };
        this.problem = (problem as Error).message;
        return;
      }
      if (!current()) return;
      this.original = look;
      this.predictions = look.predictions;
      this.busy = "";
      const stillShown = () => this.original === look; // an intervention does not stop it
      await Promise.all([this.loadMaps(look, stillShown), this.loadHeadTypes(look, stillShown)]);
      if (this.hasInterventions && current()) await this.apply();
    });
  }

  private async loadHeadTypes(look: Look, stillShown: () => boolean): Promise<void> {
    if (!look.can_classify) return;
    try {
      const found = await post<HeadTypes>("/api/models/head_types", { look: look.look });
      if (stillShown()) this.headTypes = found;
    } catch (problem) {
      if (stillShown()) this.headTypesProblem = (problem as Error).message;
    }
  }

  private async loadMaps(look: Look, stillShown: () => boolean): Promise<void> {
    const found: Record<number, LayerMaps> = {};
    this.maps = { ...this.maps, [look.look]: found };
    for (const layer of [...look.layers.keys(), ...(look.has_rollout ? [-1] : [])]) {
      if (!stillShown()) return;
      const { arrays } = await postForArrays<{ layer: number }>("/api/models/layer", { look: look.look, layer, size: SMALL });
      const [heads, rows, columns] = arrays.maps.shape;
      found[layer] = { heads, rows, columns, data: arrays.maps.data as Float32Array };
      if (stillShown()) this.maps = { ...this.maps, [look.look]: { ...found } };
    }
  }

  // Runs the model with the current interventions.
  async apply(): Promise<void> {
    const original = this.original;
    if (!original) return;
    if (!this.hasInterventions) {
      this.turn++;
      this.intervened = null;
      this.predictions = original.predictions;
      this.problem = this.busy = "";
      return;
    }
    await this.attempt("running the model with interventions …", async (current) => {
      const body = { look: original.look, ablate: this.ablated, scale: this.scaleOptions, mask: this.masked };
      const look = await post<Look>("/api/models/intervene", body);
      if (!current()) return;
      this.problem = "";
      this.intervened = look;
      this.predictions = look.predictions;
      await this.loadMaps(look, () => this.intervened === look);
    });
  }

  // Loads the predictions at a position, under the interventions if there are any.
  async predictAt(position: number): Promise<void> {
    const turn = ++this.predictionTurn;
    const look = this.intervened ?? this.original;
    if (!look || look.predictions.positions < 2 || this.predictions?.position === position) return;
    const found = await post<Predictions>("/api/models/predictions", { look: look.look, position }).catch(() => null);
    if (found && turn === this.predictionTurn && (this.intervened ?? this.original) === look) this.predictions = found;
  }

  toggleAblation(head: string): void {
    this.ablated = this.ablated.includes(head) ? this.ablated.filter((each) => each !== head) : [...this.ablated, head];
    void this.apply();
  }

  toggleMask(edge: Edge): void {
    const same = (each: Edge) => each.every((part, i) => part === edge[i]);
    this.masked = this.masked.some(same) ? this.masked.filter((each) => !same(each)) : [...this.masked, edge];
    void this.apply();
  }

  setScale(where: string, factor: number): void {
    const scales = { ...this.scales };
    if (Math.abs(factor - 1) < 0.001) delete scales[where];
    else scales[where] = factor;
    this.scales = scales;
    void this.apply();
  }

  undoAll(): void {
    this.resetInterventions();
    void this.apply();
  }
}
