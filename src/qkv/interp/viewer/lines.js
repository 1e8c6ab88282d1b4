// Token lines: from the chosen query to the eight keys that it attends to most, thicker where it attends more.

const SVG = "http://www.w3.org/2000/svg";
const PITCH = 24; // between two tokens
const ALL = 26; // tokens up to which all keys are drawn; of more, the largest and their neighbours' count

function svg(tag, attributes, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

// The keys drawn, in order: places, or { skipped: count } for those left out between them.
function keysDrawn(top, count) {
  if (count <= ALL) return Array.from({ length: count }, (_, place) => place);
  const drawn = [];
  let last = -1;
  for (const place of top.map(([key]) => key).sort((a, b) => a - b)) {
    if (place - last > 1) drawn.push({ skipped: place - last - 1 });
    drawn.push(place);
    last = place;
  }
  if (last < count - 1) drawn.push({ skipped: count - 1 - last });
  return drawn;
}

// The queries drawn: all of them, or the chosen one and its neighbours.
function queriesDrawn(query, count, rows) {
  const shown = Math.min(count, rows);
  const first = Math.max(0, Math.min(query - Math.floor(shown / 2), count - shown));
  return Array.from({ length: shown }, (_, place) => first + place);
}

function drawLines() {
  const { panel, t, s } = weightsNow();
  const top = weightsNow().top(state.head, state.query);
  const keys = keysDrawn(top, s);
  const queries = queriesDrawn(state.query, t, Math.min(Math.max(keys.length, 9), ALL));
  const high = Math.max(keys.length, queries.length) * PITCH + 30;
  const wide = Math.max(240, Math.min(document.getElementById("lines").clientWidth, 460));
  const picture = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img" });
  picture.append(svg("title", {}, "From the chosen query to the keys that it attends to most"));
  const [left, right] = [wide * 0.3, wide * 0.62];
  picture.append(svg("text", { x: left, y: 12, class: "head query", "text-anchor": "end" }, "query"));
  picture.append(svg("text", { x: right, y: 12, class: "head key" }, "key"));
  const rowOf = (list, place) => 34 + (list.indexOf(place) + (high - 30 - list.length * PITCH) / (2 * PITCH)) * PITCH;
  for (const [key, weight] of [...top].reverse()) {
    picture.append(lineTo(left + 8, rowOf(queries, state.query), right - 8, rowOf(keys, key), weight));
  }
  for (const query of queries) picture.append(tokenAt(left, rowOf(queries, query), panel.queries[0], query, "query", query === state.query, left - 26));
  for (const key of keys) picture.append(keyAt(right, rowOf(keys, key), panel.keys[0], key, top, wide));
  document.getElementById("lines").replaceChildren(picture);
}

function lineTo(x0, y0, x1, y1, weight) {
  const bend = (x1 - x0) / 2;
  const path = svg("path", { d: `M${x0} ${y0} C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`, class: "line" });
  path.style.strokeWidth = `${1 + 7 * weight}`;
  path.style.opacity = `${0.25 + 0.75 * Math.sqrt(weight)}`;
  return path;
}

function tokenAt(x, y, axis, place, kind, strong, room) {
  const group = svg("g", { class: `token ${kind}${strong ? " strong" : ""}${found(axis, place) ? " found" : ""}` });
  const end = kind === "query";
  group.append(svg("text", { x, y: y + 4, "text-anchor": end ? "end" : "start" }, shortened(tokensOf(axis)[place], room)));
  if (end) {
    group.append(svg("text", { x: 4, y: y + 4, class: "place" }, String(place)));
    group.addEventListener("click", () => choose({ query: place }));
  }
  return group;
}

function keyAt(x, y, axis, key, top, wide) {
  if (typeof key === "object") return svg("text", { x, y: y + 4, class: "skipped" }, `⋯ ${key.skipped}`);
  const known = top.find(([place]) => place === key);
  const group = tokenAt(x, y, axis, key, "key", Boolean(known), wide - x - 84);
  group.addEventListener("click", () => choose({ key }));
  if (known) group.append(svg("text", { x: wide - 4, y: y + 4, class: "weight", "text-anchor": "end" }, known[1].toFixed(4)));
  group.append(svg("title", {}, `key ${key}`));
  return group;
}

function shortened(token, room) {
  const letters = [...label(token)];
  const most = Math.max(3, Math.floor(room / 7.2));
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
}
