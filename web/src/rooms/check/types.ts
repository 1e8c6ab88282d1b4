// What the Check room is told by the server.

export interface Pledge {
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
  found: string[]; // in the folder's files: file.py:Name
  sound: { target: string; words: string }[];
  families: Family[];
  seconds: [number, number, number];
  contracts: { name: string; words: string }[];
  promises: Pledge[];
}
export interface Finding {
  check: string;
  verdict: string;
  sign: string;
  score: string | null;
  shown: string;
  evidence: string;
  hint: string;
}
export interface Report {
  target: string;
  ok: boolean;
  kind: string;
  how: string;
  contract: string;
  findings: Finding[];
  diagnosis: string;
  hints: string[];
  influence: number[][];
  source: string;
  page: string;
  printed: string;
  command: string;
  python: string;
}
export type Contract = Record<string, string | boolean>;
