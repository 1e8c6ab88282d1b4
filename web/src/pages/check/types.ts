// What the server sends about checks.

export interface PromiseOption {
  name: string;
  help: string;
  kind: "choice" | "flag" | "number";
  choices: string[];
}
export interface Family {
  name: string;
  fix: string;
  mutants: { name: string; contract: string }[];
}
export interface About {
  allow_code: boolean;
  folder: string;
  targets: string[]; // in the folder's files: file.py:Name
  built_in: { target: string; description: string }[];
  families: Family[];
  time_limits: [number, number, number]; // seconds: least, default, most
  contracts: { name: string; description: string }[];
  promises: PromiseOption[];
}
export interface Finding {
  check: string;
  verdict: string;
  sign: string;
  score: string | null;
  score_text: string;
  evidence: string;
  hint: string;
}
export interface CheckReport {
  target: string;
  ok: boolean;
  state: string; // sound, NOT SOUND or NOT PROVEN, as in the terminal
  kind: string;
  how: string;
  contract: string;
  findings: Finding[];
  diagnosis: string;
  hints: string[];
  line: string; // of the code at fault; empty if it is not known
  influence: number[][];
  source: string;
  html: string;
  printed: string;
  command: string;
  python: string;
}
export type Contract = Record<string, string | boolean>;
