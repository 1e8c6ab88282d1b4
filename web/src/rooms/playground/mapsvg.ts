// A large map of weights as a drawing that stands alone.

import { COLOURS, shade } from "../../lib/colour";
import type { Table } from "./tables";

export function mapSvg(table: Table, side = 8): string {
  const cells: string[] = [];
  for (let i = 0; i < table.rows; i++)
    for (let j = 0; j < table.columns; j++)
      cells.push(`<rect x="${j * side}" y="${i * side}" width="${side}" height="${side}" fill="${COLOURS[shade(table.data[i * table.columns + j], "root")]}"/>`);
  const [wide, tall] = [table.columns * side, table.rows * side];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${tall}" viewBox="0 0 ${wide} ${tall}" shape-rendering="crispEdges">${cells.join("")}</svg>`;
}
