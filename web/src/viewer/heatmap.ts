// Drawing a map of weights: one pixel per weight, scaled up by CSS or SVG.

import { COLORS, PALETTE, shade, type Scale } from "./colors";

export function largest(numbers: ArrayLike<number>): number {
  let most = 0;
  for (let i = 0; i < numbers.length; i++) if (numbers[i] > most) most = numbers[i];
  return most;
}

// Draws rows × columns weights. Weights that are not exact (only an upper bound is known) are drawn faint.
export function paintWeights(canvas: HTMLCanvasElement, weights: ArrayLike<number>, rows: number, columns: number, scale: Scale, peak = largest(weights), exact?: Uint8Array): void {
  if (!rows || !columns) return;
  [canvas.width, canvas.height] = [columns, rows];
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) {
    const color = PALETTE[shade(weights[i], scale, peak)];
    pixels[i] = exact && !exact[i] ? (color & 0x00ffffff) | (115 << 24) : color;
  }
  canvas.getContext("2d")!.putImageData(image, 0, 0);
}

// The same as a PNG data URL, for an SVG <image>.
export function weightsImage(...[weights, ...options]: Parameters<typeof paintWeights> extends [unknown, ...infer Rest] ? Rest : never): string {
  const canvas = document.createElement("canvas");
  paintWeights(canvas, weights, ...options);
  return canvas.toDataURL();
}

// A map of weights as a standalone SVG document.
export function weightsSvg(table: { rows: number; columns: number; data: ArrayLike<number> }, side = 8): string {
  const cells: string[] = [];
  for (let i = 0; i < table.rows; i++)
    for (let j = 0; j < table.columns; j++)
      cells.push(`<rect x="${j * side}" y="${i * side}" width="${side}" height="${side}" fill="${COLORS[shade(table.data[i * table.columns + j], "root")]}"/>`);
  const [wide, tall] = [table.columns * side, table.rows * side];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${tall}" viewBox="0 0 ${wide} ${tall}" shape-rendering="crispEdges">${cells.join("")}</svg>`;
}
