// Placing labels: beside their points, outward if possible, without covering labels and points.

export interface Spot {
  x: number;
  y: number;
  wide: number; // of the name
  outward: [number, number]; // away from the middle, where there is room
}
export interface Label {
  x: number;
  y: number; // of the base line
  anchor: "start" | "middle" | "end";
}
interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}
const [HIGH, REACH, AIR] = [11, 10, 2]; // of a name; from the middle of a point; around a name

// Eight places around a point, as directions (right, down).
const AROUND: [number, number][] = [[1, -1], [1, 1], [-1, -1], [-1, 1], [1, 0], [-1, 0], [0, -1], [0, 1]];

function beside(spot: Spot, [right, down]: [number, number]): Label & { box: Box } {
  const x = spot.x + right * REACH;
  const y = spot.y + (down < 0 ? (right ? -5 : -REACH) : down > 0 ? (right ? 13 : REACH + HIGH) : 4);
  const left = right > 0 ? x : right < 0 ? x - spot.wide : x - spot.wide / 2;
  return { x, y, anchor: right > 0 ? "start" : right < 0 ? "end" : "middle", box: { left: left - AIR, top: y - HIGH, right: left + spot.wide + AIR, bottom: y + AIR } };
}

const shared = (a: Box, b: Box): number => Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left)) * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));

export function placeLabels(spots: Spot[], side: number): Label[] {
  const points: Box[] = spots.map(({ x, y }) => ({ left: x - 7, top: y - 7, right: x + 7, bottom: y + 7 }));
  const taken: Box[] = [];
  return spots.map((spot, i) => {
    const size = Math.hypot(...spot.outward) || 1;
    let best: (Label & { box: Box }) | undefined;
    let least = Infinity;
    for (const way of AROUND) {
      const found = beside(spot, way);
      const { box } = found;
      const outside = Math.max(0, -box.left) + Math.max(0, box.right - side) + Math.max(0, -box.top) + Math.max(0, box.bottom - side);
      const covered = [...taken, ...points.filter((_, j) => j !== i)].reduce((sum, other) => sum + shared(box, other), 0);
      const inward = 1 - (way[0] * spot.outward[0] + way[1] * spot.outward[1]) / (size * Math.hypot(...way));
      const cost = 100 * outside + covered + 4 * inward; // covering counts by area
      if (cost < least - 1e-9) [best, least] = [found, cost];
    }
    taken.push(best!.box);
    return { x: best!.x, y: best!.y, anchor: best!.anchor };
  });
}
