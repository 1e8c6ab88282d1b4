// Text with powers and indices, in pieces: a raised or lowered piece stays on one line with its base.

export interface Piece {
  text: string;
  raised?: boolean;
  lowered?: boolean;
}

export const minus = (text: string): string => text.replaceAll("-", "−");

// Text such as v_j, e^(−β²), e^β; words with an underscore are not changed.
export function typeset(written: string): Piece[] {
  return splitPieces(written, /\^\(([^()]*)\)|\^([\p{L}\d])|(?<=[\p{L}\d])_([\p{L}\d])(?![\p{L}\d]{2})/gu, (match) =>
    match[3] !== undefined ? [{ text: match[3], lowered: true }] : [{ text: match[1] ?? match[2], raised: true }],
  );
}

export function splitPieces(written: string, pattern: RegExp, found: (match: RegExpMatchArray) => Piece[]): Piece[] {
  const pieces: Piece[] = [];
  let place = 0;
  for (const match of written.matchAll(pattern)) {
    pieces.push({ text: written.slice(place, match.index) }, ...found(match));
    place = match.index + match[0].length;
  }
  pieces.push({ text: written.slice(place) });
  return pieces.filter((piece) => piece.text);
}

export interface PieceGroup {
  text: string; // a line may break inside
  base: string; // stays on one line with its powers and indices
  more: Piece[];
}

// Groups raised and lowered pieces with their base; a line may break between groups.
export function groupPieces(pieces: Piece[]): PieceGroup[] {
  const found: PieceGroup[] = [];
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

// Parts of a text between which a line may break: before + and −, after / and ·.
export function splitLines(text: string): string[] {
  return text.split(/(?<=[/·])(?=.)|(?=(?<=[\p{L}\d)])[+−])/u);
}
