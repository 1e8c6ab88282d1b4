// Text with powers and indices, in pieces: each raised or lowered one stands with what it belongs to, and never alone on a line.

export interface Piece {
  text: string;
  raised?: boolean;
  lowered?: boolean;
}

export const minus = (text: string): string => text.replaceAll("-", "−");

// Sentences: v_j, e^(−β²), e^β. Words with an underscore stay as they are.
export function typeset(written: string): Piece[] {
  return split(written, /\^\(([^()]*)\)|\^([\p{L}\d])|(?<=[\p{L}\d])_([\p{L}\d])(?![\p{L}\d]{2})/gu, (match) =>
    match[3] !== undefined ? [{ text: match[3], lowered: true }] : [{ text: match[1] ?? match[2], raised: true }],
  );
}

export function split(written: string, pattern: RegExp, found: (match: RegExpMatchArray) => Piece[]): Piece[] {
  const pieces: Piece[] = [];
  let place = 0;
  for (const match of written.matchAll(pattern)) {
    pieces.push({ text: written.slice(place, match.index) }, ...found(match));
    place = match.index + match[0].length;
  }
  pieces.push({ text: written.slice(place) });
  return pieces.filter((piece) => piece.text);
}

export interface Whole {
  text: string; // what may be broken before it
  base: string; // what stays on one line with its powers and indices
  more: Piece[];
}

// The pieces with those raised or lowered beside their base; a line may be broken between wholes, and after a sign in a text.
export function wholes(pieces: Piece[]): Whole[] {
  const found: Whole[] = [];
  for (const piece of pieces) {
    const last = found.at(-1);
    if (!piece.raised && !piece.lowered) found.push({ text: piece.text, base: "", more: [] });
    else if (last?.more.length) last.more.push(piece);
    else if (last) {
      const base = /[\p{L}\d.√]*[\p{L}\d)\]√‖]$/u.exec(last.text)?.[0] ?? "";
      last.text = last.text.slice(0, last.text.length - base.length);
      [last.base, last.more] = [base, [piece]];
    } else found.push({ text: "", base: "", more: [piece] });
  }
  return found;
}

// A text in parts between which a line may be broken: before a sum's sign, after a sign of division.
export function parts(text: string): string[] {
  return text.split(/(?<=[/·])(?=.)|(?=(?<=[\p{L}\d)])[+−])/u);
}
