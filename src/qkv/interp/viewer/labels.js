// Tokens as labels: whitespace made visible, long ones cut.

const BLANKS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };

function tokensOf(axis) {
  return app.data.axes[axis].tokens;
}

function label(token) {
  const trimmed = token.trim();
  return trimmed ? trimmed.replace(/\s/g, (blank) => BLANKS[blank] ?? "␣") : [...token].map((blank) => BLANKS[blank] ?? "␣").join("") || "∅";
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > width) letters.pop();
  return `${letters.join("")}…`;
}

function found(axis, place) {
  return app.hits.some((hit) => hit.axis === axis && hit.place === place);
}

// Room for the labels of an axis, from its longest ones.
function roomFor(context, axis, size) {
  const longest = tokensOf(axis).slice(0, size).map(label).sort((a, b) => b.length - a.length).slice(0, 12);
  return Math.min(Math.max(...longest.map((text) => context.measureText(text).width), 50), 92) + 10;
}

function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Labels along one side of the map. side: "rows" (queries, to the left) or "columns" (keys, above, upright).
function drawLabels(context, box, side) {
  const rows = side === "rows";
  const { cell } = box;
  const [axis, start, shown] = rows ? [box.panel.queries[0], box.y, box.height / cell] : [box.panel.keys[0], box.x, box.width / cell];
  const size = rows ? box.t : box.s;
  const every = Math.max(1, Math.ceil(12 / cell));
  context.fillStyle = colourOf(rows ? "queries" : "keys");
  for (let place = Math.max(0, Math.floor(start)); place < Math.min(size, start + shown); place++) {
    const hit = found(axis, place);
    if (place % every && !hit) continue;
    const at = (place + 0.5 - start) * cell;
    if (at < 3 || at > (rows ? box.height : box.width) - 3) continue;
    drawLabel(context, box, rows, at, tokensOf(axis)[place], hit);
  }
}

function drawLabel(context, box, rows, at, token, strong) {
  context.save();
  context.font = `${strong ? "700 " : ""}11px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const room = (rows ? box.left : box.top) - 10;
  if (rows) {
    context.textAlign = "right";
    context.translate(box.left - 6, box.top + at);
  } else {
    context.textAlign = "left";
    context.translate(box.left + at, box.top - 6);
    context.rotate(-Math.PI / 2);
  }
  const text = fitted(context, label(token), room);
  if (strong) {
    const wide = context.measureText(text).width + 6;
    const ink = context.fillStyle;
    context.fillStyle = colourOf("paper");
    context.fillRect(rows ? -room - 4 : -3, -9, room + 7, 18); // over the labels beside it
    context.fillStyle = colourOf("source");
    context.fillRect(rows ? 3 - wide : -3, -7, wide, 14);
    context.fillStyle = ink;
  }
  context.fillText(text, 0, 0);
  context.restore();
}
