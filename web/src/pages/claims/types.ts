// What the server sends about claims.

export type Verdict = "holds" | "holds-if" | "fails" | "undecided";
export interface Knob {
  name: string;
  default: number;
  between: [number, number]; // the allowed range
  step: number; // of whole numbers
  long: number | null;
  help: string;
  is_integer: boolean;
}
export interface VerdictSummary {
  verdict: Verdict;
  verdict_text: string;
  expected: Verdict;
  seconds: number;
}
export interface Claim {
  name: string;
  statement: string;
  cost: "instant" | "seconds" | "minutes";
  expected: Verdict;
  question: string;
  caption: string;
  knobs: Knob[];
  mutants: { name: string; description: string }[];
  overturn: Record<string, number>;
  breaks: { knob: string; value: number; why: string }[];
  result: VerdictSummary | null;
}
export interface Family {
  name: string;
  claims: Claim[];
}
export interface Measurement {
  name: string;
  text: string;
  value: string;
  low?: string;
  high?: string;
}
export interface Predicate {
  part: string;
  name: string;
  measured: string;
  bound: string;
  outcome: string;
  as_expected: boolean;
}
export interface ClaimResult {
  name: string;
  verdict: Verdict;
  verdict_text: string;
  expected: Verdict;
  expected_text: string;
  caption: string;
  condition: string;
  seed: number;
  seconds: number;
  knobs: Record<string, number>;
  mutant: string;
  numbers: Measurement[];
  predicates: Predicate[];
  command: string;
  python: string;
  figures?: string[]; // one SVG per panel
}
