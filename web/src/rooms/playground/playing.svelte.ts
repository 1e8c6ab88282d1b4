// The playground's life: a state, the last good numbers, the exact working when the hand rests, the link.

import { tick } from "svelte";

import { get, maps, post } from "../../lib/api";
import { place } from "../../lib/route.svelte";
import { Latest } from "./latest";
import { fields, fromFields, packed, unpacked } from "./link";
import { asked, fitted, headChoices, keys, queries, type Name, type State } from "./state";
import { alike, asText, kept, texts, type Step, type Table } from "./tables";

export interface Numbers {
  of: State;
  beta: number;
  notice: string;
  queries: Table;
  keys: Table;
  values: Table;
  joined: Table;
  output: Table;
  scores: Table[]; // one for each head
  scaled: Table[];
  weights: Table[];
  allowed: Uint8Array;
}
export interface Bad {
  matrix: string;
  row: number;
  column: number;
  sentence: string;
}
export interface Exact {
  of: State;
  why: string;
  working: { steps: Record<string, Step>; beta: string; setting: string; agreement: string } | null;
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
interface Question {
  state: State;
  query: number;
  head: number;
  since: number;
}
const REST = 140; // milliseconds without a change until the exact working is asked for

const NO_SOURCES = new Set<string>();
const NONE_BAD: Bad[] = [];

class Playing {
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
  exactly = $state(false); // numbers are written as they are, not as decimals
  derivation = $state.raw<(Derivation & { at: string; of: State }) | null>(null);
  sources = $derived(this.derivation && this.derivation.of === this.state ? new Set(this.derivation.sources) : NO_SOURCES);
  took = $state(0);
  shown = $state(0); // how many pictures there were
  saved = $state.raw<State | null>(null); // X and its W, set aside when vectors are moved themselves
  private turn = 0;
  private worked: State | null = null; // whose exact working was asked for last
  private resting: ReturnType<typeof setTimeout> | undefined;
  private latest = new Latest<Question, Awaited<ReturnType<typeof maps<any>>>>(
    (question) => maps<any>("/api/playground/numbers", { ...asked(question.state), query: question.query, head: question.head }),
    (answer, question) => this.came(answer, question),
    (problem) => (this.problem = problem.message),
  );

  // The exact working, where it belongs to the numbers that are shown.
  get current(): Exact | null {
    return this.exact && this.exact.of === this.numbers?.of ? this.exact : null;
  }

  // Whether everything that is shown belongs to the state, the exact working too.
  get rested(): boolean {
    return this.current !== null && this.exact?.of === this.state;
  }

  async begin(found: Record<string, string>): Promise<void> {
    const turn = ++this.turn; // a newer link overtakes an older one
    if (!this.examples.length) this.examples = await get<Example[]>("/api/playground/examples");
    if (turn !== this.turn) return;
    if (!Object.keys(found).length && this.state) return this.settle();
    try {
      const known = await unpacked(found);
      if (turn !== this.turn) return;
      const example = this.examples.find((each) => each.name === known.example);
      if (known.example && !example) throw new Error(`there is no example “${known.example}”`);
      this.open(known.form ? fromFields(known) : (example ?? this.examples[0]).state, known.form ? "" : (example ?? this.examples[0]).name);
      this.exactly = known.exact === "1";
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
    this.ask();
  }

  choose(query: number, head = this.head): void {
    if (!this.state) return;
    this.query = Math.max(0, Math.min(queries(this.state) - 1, Number.isInteger(query) ? query : 0));
    this.head = Math.max(0, Math.min(this.state.heads - 1, Number.isInteger(head) ? head : 0));
    this.ask();
  }

  private ask(): void {
    void this.latest.put({ state: this.state!, query: this.query, head: this.head, since: performance.now() });
    this.settle();
  }

  private settle(): void {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => void this.resolve(), REST);
  }

  private came({ head, arrays }: { head: any; arrays: Record<string, any> }, { state, since }: Question): void {
    this.bad = head.bad.length ? head.bad : NONE_BAD;
    this.problem = "";
    if (head.bad.length) return; // the last good picture stays
    const before = this.numbers;
    const table = (name: string, old?: Table): Table => kept({ rows: arrays[name].shape[0], columns: arrays[name].shape[1], data: arrays[name].data }, old);
    const tables = (name: string): Table[] => {
      const [h, rows, columns] = arrays[name].shape;
      return Array.from({ length: h }, (_, i) => ({ rows, columns, data: arrays[name].data.subarray(i * rows * columns, (i + 1) * rows * columns) }));
    };
    this.numbers = {
      of: state, beta: head.beta, notice: head.notice, allowed: before && alike(before.allowed, arrays.allowed.data) ? before.allowed : arrays.allowed.data,
      queries: table("queries", before?.queries), keys: table("keys", before?.keys), values: table("values", before?.values), joined: table("heads_output"), output: table("output"),
      scores: tables("scores"), scaled: tables("scaled"), weights: tables("weights"),
    };
    this.shown += 1;
    if (this.worked !== state) this.settle(); // the hand may have rested before the numbers came
    void tick().then(() => requestAnimationFrame(() => setTimeout(() => (this.took = performance.now() - since))));
  }

  // When nothing changed for a moment: the exact working, and the link.
  private async resolve(): Promise<void> {
    const state = this.state!;
    const link = await this.link();
    if (place.room === "playground") place.keep(link);
    if (this.bad.length || this.problem || this.worked === state) return;
    this.worked = state;
    try {
      const found = await post<Omit<Exact, "of">>("/api/playground/exact", asked(state));
      if (this.state === state) this.exact = { ...found, of: state };
    } catch (problem) {
      this.worked = null;
      if (this.state === state) this.problem = (problem as Error).message;
    }
  }

  async link(): Promise<Record<string, string>> {
    const base: Record<string, string> = this.example ? { example: this.example } : await packed(fields(this.state!));
    if (this.query) base.query = String(this.query + 1);
    if (this.head) base.head = String(this.head + 1);
    if (this.exactly) base.exact = "1";
    return base;
  }

  async explain(at: string, step: string, row: number, column: number): Promise<void> {
    const state = this.state!;
    if (this.bad.length) return;
    const found = await post<Derivation>("/api/playground/derivation", { ...asked(state), step, row, column });
    this.derivation = { ...found, at, of: state };
  }

  // Vectors moved by hand are no longer X times W: Q, K and V become what is given.
  detached(): State {
    const state = this.state!;
    if (state.form === "qkv" || !this.numbers) return state;
    this.saved = state;
    const steps = this.current?.working?.steps;
    const [q, k, v] = (["queries", "keys", "values"] as const).map((name) => asText(this.numbers![name], steps?.[name]));
    return fitted({ ...state, form: "qkv", q, k, v, queryNames: state.names, scales: undefined });
  }

  move(kind: Name & ("q" | "k" | "v"), row: number, x: string, y: string): void {
    const state = this.detached();
    if (state.form !== "qkv" || !this.numbers) return;
    const heads = state.heads;
    const width = state[kind]![0].length / heads;
    const scale = kind === "k" ? (state.scales?.[row] ?? "1") : "1";
    const cells = scale === "1" ? [...state[kind]![row]] : texts(this.numbers.keys, row);
    cells[this.head * width] = x;
    if (width > 1) cells[this.head * width + 1] = y;
    const scales = scale === "1" ? state.scales : state.scales!.map((by, i) => (i === row ? "1" : by));
    this.set({ ...state, [kind]: state[kind]!.map((each, i) => (i === row ? cells : each)), scales });
  }

  scale(row: number, by: string): void {
    const state = this.detached();
    const scales = Array.from({ length: keys(state) }, (_, i) => (i === row ? by : (state.scales?.[i] ?? "1")));
    this.set({ ...state, scales });
  }

  write(exactly: boolean): void {
    this.exactly = exactly;
    this.settle();
  }

  back(): void {
    if (this.saved) this.open({ ...this.saved, beta: this.state!.beta });
  }

  setHeads(heads: number): void {
    if (this.state && headChoices(this.state).includes(heads)) this.change({ heads });
  }

  toggle(row: number, column: number): void {
    if (!this.state || !this.numbers || this.bad.length) return;
    const [t, s] = [queries(this.state), keys(this.state)];
    const rows = Array.from({ length: t }, (_, i) => Array.from(this.numbers!.allowed.subarray(i * s, (i + 1) * s)));
    rows[row][column] = 1 - rows[row][column];
    this.change({ mask: "own", allowed: rows.map((signs) => signs.join("")) });
  }
}

export const playing = new Playing();
