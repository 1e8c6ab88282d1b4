// The store of the playground: the state, the last valid numbers, the exact solution when input rests, the link.

import { tick } from "svelte";

import { get, post, postForArrays } from "../../lib/api";
import { route } from "../../lib/route.svelte";
import { Latest } from "./latest";
import { fromFields, pack, toFields, unpack } from "./link";
import { toRequest, fitMask, headChoices, keys, queries, type Name, type State } from "./state";
import { equal, reuse, rowTexts, toMatrix, type Step, type Table } from "./tables";

export interface Numbers {
  of: State;
  scale: number;
  notice: string;
  queries: Table;
  keys: Table;
  values: Table;
  joined: Table;
  output: Table;
  scores: Table[]; // one for each head
  scaled: Table[];
  weights: Table[];
  mask: Uint8Array;
}
export interface Bad {
  matrix: string;
  row: number;
  column: number;
  message: string;
}
export interface Exact {
  of: State;
  why: string;
  solution: { steps: Record<string, Step>; scale: string; setting: string; agreement: string } | null;
  reproduce: { command: string; python: string; file: string };
}
export interface Derivation {
  name: string;
  lines: string[];
  sources: string[];
}
interface Example {
  name: string;
  state: State;
}
interface Pending {
  state: State;
  query: number;
  head: number;
  since: number;
}
const REST = 140; // milliseconds without a change until the exact solution is requested

const NO_SOURCES = new Set<string>();
const NONE_BAD: Bad[] = [];

class PlaygroundStore {
  state = $state.raw<State | null>(null);
  numbers = $state.raw<Numbers | null>(null);
  exact = $state.raw<Exact | null>(null);
  bad = $state.raw<Bad[]>(NONE_BAD);
  problem = $state("");
  note = $state("");
  examples = $state.raw<Example[]>([]);
  example = $state("");
  query = $state(0);
  head = $state(0);
  showExact = $state(false); // numbers are written as they are, not as decimals
  derivation = $state.raw<(Derivation & { at: string; of: State }) | null>(null);
  sources = $derived(this.derivation && this.derivation.of === this.state ? new Set(this.derivation.sources) : NO_SOURCES);
  took = $state(0);
  shown = $state(0); // how often new numbers were shown
  saved = $state.raw<State | null>(null); // X and W, kept when vectors are moved by hand
  private turn = 0;
  private solved: State | null = null; // whose exact solution was requested last
  private resting: ReturnType<typeof setTimeout> | undefined;
  private latest = new Latest<Pending, Awaited<ReturnType<typeof postForArrays<any>>>>(
    (pending) => postForArrays<any>("/api/playground/numbers", { ...toRequest(pending.state), query: pending.query, head: pending.head }),
    (answer, pending) => this.receive(answer, pending),
    (problem) => (this.problem = problem.message),
  );

  // The exact solution, if it belongs to the numbers that are shown.
  get current(): Exact | null {
    return this.exact && this.exact.of === this.numbers?.of ? this.exact : null;
  }

  // Whether everything that is shown belongs to the state, the exact solution too.
  get rested(): boolean {
    return this.current !== null && this.exact?.of === this.state;
  }

  async start(found: Record<string, string>): Promise<void> {
    const turn = ++this.turn; // a newer link overtakes an older one
    if (!this.examples.length) this.examples = await get<Example[]>("/api/playground/examples");
    if (turn !== this.turn) return;
    if (!Object.keys(found).length && this.state) return this.rest();
    try {
      const known = await unpack(found);
      if (turn !== this.turn) return;
      const example = this.examples.find((each) => each.name === known.example);
      if (known.example && !example) throw new Error(`there is no example “${known.example}”`);
      this.open(known.form ? fromFields(known) : (example ?? this.examples[0]).state, known.form ? "" : (example ?? this.examples[0]).name);
      this.showExact = known.exact === "1";
      this.choose(Number(known.query ?? 1) - 1, Number(known.head ?? 1) - 1);
    } catch (problem) {
      this.open(this.examples[0].state, this.examples[0].name);
      this.note = `The link cannot be read: ${(problem as Error).message}`;
    }
  }

  open(state: State, example = ""): void {
    this.saved = null;
    this.query = this.head = 0;
    this.set(state);
    this.example = example;
  }

  change(next: Partial<State>): void {
    if (this.state) this.set({ ...this.state, ...next });
  }

  set(state: State): void {
    if (this.state !== state) this.example = "";
    this.state = state;
    this.problem = this.note = "";
    this.query = Math.min(this.query, queries(state) - 1);
    this.head = Math.min(this.head, state.heads - 1);
    this.request();
  }

  choose(query: number, head = this.head): void {
    if (!this.state) return;
    this.query = Math.max(0, Math.min(queries(this.state) - 1, Number.isInteger(query) ? query : 0));
    this.head = Math.max(0, Math.min(this.state.heads - 1, Number.isInteger(head) ? head : 0));
    this.request();
  }

  private request(): void {
    void this.latest.put({ state: this.state!, query: this.query, head: this.head, since: performance.now() });
    this.rest();
  }

  private rest(): void {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => void this.solve(), REST);
  }

  private receive({ head, arrays }: { head: any; arrays: Record<string, any> }, { state, since }: Pending): void {
    this.bad = head.bad.length ? head.bad : NONE_BAD;
    this.problem = "";
    if (head.bad.length) return; // the last valid numbers stay
    const before = this.numbers;
    const table = (name: string, old?: Table): Table => reuse({ rows: arrays[name].shape[0], columns: arrays[name].shape[1], data: arrays[name].data }, old);
    const tables = (name: string): Table[] => {
      const [h, rows, columns] = arrays[name].shape;
      return Array.from({ length: h }, (_, i) => ({ rows, columns, data: arrays[name].data.subarray(i * rows * columns, (i + 1) * rows * columns) }));
    };
    this.numbers = {
      of: state, scale: head.scale, notice: head.notice, mask: before && equal(before.mask, arrays.mask.data) ? before.mask : arrays.mask.data,
      queries: table("queries", before?.queries), keys: table("keys", before?.keys), values: table("values", before?.values), joined: table("heads_output"), output: table("output"),
      scores: tables("scores"), scaled: tables("scaled"), weights: tables("weights"),
    };
    this.shown += 1;
    if (this.solved !== state) this.rest(); // input may have rested before the numbers came
    void tick().then(() => requestAnimationFrame(() => setTimeout(() => (this.took = performance.now() - since))));
  }

  // When nothing has changed for a moment: request the exact solution and write the link.
  private async solve(): Promise<void> {
    const state = this.state!;
    const link = await this.link();
    if (route.page === "playground") route.keep(link);
    if (this.bad.length || this.problem || this.solved === state) return;
    this.solved = state;
    try {
      const found = await post<Omit<Exact, "of">>("/api/playground/exact", toRequest(state));
      if (this.state === state) this.exact = { ...found, of: state };
    } catch (problem) {
      this.solved = null;
      if (this.state === state) this.problem = (problem as Error).message;
    }
  }

  async link(): Promise<Record<string, string>> {
    const base: Record<string, string> = this.example ? { example: this.example } : await pack(toFields(this.state!));
    if (this.query) base.query = String(this.query + 1);
    if (this.head) base.head = String(this.head + 1);
    if (this.showExact) base.exact = "1";
    return base;
  }

  async explain(at: string, step: string, row: number, column: number): Promise<void> {
    const state = this.state!;
    if (this.bad.length) return;
    const found = await post<Derivation>("/api/playground/derivation", { ...toRequest(state), step, row, column });
    this.derivation = { ...found, at, of: state };
  }

  // Vectors moved by hand are no longer X times W: Q, K and V become the inputs.
  toVectors(): State {
    const state = this.state!;
    if (state.form === "qkv" || !this.numbers) return state;
    this.saved = state;
    const steps = this.current?.solution?.steps;
    const [q, k, v] = (["queries", "keys", "values"] as const).map((name) => toMatrix(this.numbers![name], steps?.[name]));
    return fitMask({ ...state, form: "qkv", q, k, v, query_names: state.names, key_scales: undefined });
  }

  move(kind: Name & ("q" | "k" | "v"), row: number, x: string, y: string): void {
    const state = this.toVectors();
    if (state.form !== "qkv" || !this.numbers) return;
    const heads = state.heads;
    const width = state[kind]![0].length / heads;
    const scale = kind === "k" ? (state.key_scales?.[row] ?? "1") : "1";
    const cells = scale === "1" ? [...state[kind]![row]] : rowTexts(this.numbers.keys, row);
    cells[this.head * width] = x;
    if (width > 1) cells[this.head * width + 1] = y;
    const key_scales = scale === "1" ? state.key_scales : state.key_scales!.map((by, i) => (i === row ? "1" : by));
    this.set({ ...state, [kind]: state[kind]!.map((each, i) => (i === row ? cells : each)), key_scales });
  }

  scaleKey(row: number, by: string): void {
    const state = this.toVectors();
    const key_scales = Array.from({ length: keys(state) }, (_, i) => (i === row ? by : (state.key_scales?.[i] ?? "1")));
    this.set({ ...state, key_scales });
  }

  setExact(showExact: boolean): void {
    this.showExact = showExact;
    this.rest();
  }

  backToInputs(): void {
    if (this.saved) this.open({ ...this.saved, scale: this.state!.scale });
  }

  setHeads(heads: number): void {
    if (this.state && headChoices(this.state).includes(heads)) this.change({ heads });
  }

  toggle(row: number, column: number): void {
    if (!this.state || !this.numbers || this.bad.length) return;
    const [t, s] = [queries(this.state), keys(this.state)];
    const rows = Array.from({ length: t }, (_, i) => Array.from(this.numbers!.mask.subarray(i * s, (i + 1) * s)));
    rows[row][column] = 1 - rows[row][column];
    this.change({ mask: "custom", mask_rows: rows.map((signs) => signs.join("")) });
  }
}

export const playground = new PlaygroundStore();
