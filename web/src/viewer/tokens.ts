// Tokens as labels: whitespace made visible, long ones shortened; and searching for tokens.

const BLANKS: Record<string, string> = { "\n": "⏎", "\t": "⇥", " ": "␣" };

// A token on one line: whitespace is shown where there is nothing else, control characters become dots.
export function visibleToken(token: string, most = 12): string {
  const stripped = token.replace(/^[ \n\t]+|[ \n\t]+$/g, "");
  const shown = (stripped || [...token].map((letter) => BLANKS[letter] ?? letter).join("") || "∅").replace(/[\p{C}\p{Z}]/gu, (letter) => (letter === " " ? " " : "·"));
  return [...shown].length <= most ? shown : [...shown].slice(0, most - 1).join("") + "…";
}

// A token inside running text: every blank keeps its width.
export function inlineToken(token: string): string {
  return token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "\u00a0") || "∅";
}

// The positions of the tokens that contain the words, as written or as shown.
export function findTokens(tokens: string[], words: string): number[] {
  const wanted = words.toLowerCase();
  if (!wanted) return [];
  const matches = (token: string) => token.toLowerCase().includes(wanted) || visibleToken(token, Infinity).toLowerCase().includes(wanted);
  return tokens.flatMap((token, position) => (matches(token) ? [position] : []));
}
