// What the Claims room is told by the server.

export type Verdict = "holds" | "holds-if" | "fails" | "undecided";
export interface Knob {
  name: string;
  default: number;
  between: [number, number]; // the lowest and the highest value that can be tried
  step: number; // of whole numbers
  long: number | null;
  help: string;
  whole: boolean;
}
export interface Found {
  verdict: Verdict;
  word: string;
  expected: Verdict;
  seconds: number;
}
export interface Claim {
  name: string;
  statement: string;
  cost: "instant" | "seconds" | "minutes";
  expected: Verdict;
  figure: string;
  knobs: Knob[];
  wrong: { name: string; words: string }[];
  overturn: Record<string, number>;
  breaks: { knob: string; value: number; words: string }[];
  found: Found | null;
}
export interface Family {
  name: string;
  claims: Claim[];
}
export interface Measure {
  name: string;
  shown: string;
  value: string;
  low?: string;
  high?: string;
}
export interface Tested {
  part: string;
  name: string;
  measured: string;
  bound: string;
  outcome: string;
  as_expected: boolean;
}
export interface Result {
  name: string;
  verdict: Verdict;
  word: string;
  expected: Verdict;
  expected_word: string;
  condition: string;
  seed: number;
  seconds: number;
  knobs: Record<string, number>;
  wrong: string;
  numbers: Measure[];
  predicates: Tested[];
  command: string;
  python: string;
  pictures?: string[]; // one for each panel
}
