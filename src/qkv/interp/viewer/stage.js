// One head, large: zoomed and panned, labelled with its tokens, each weight shown under the pointer.

const stage = { box: null, picture: null, drag: null };

function weightsNow() {
  return app.panels[state.panel];
}

// Where everything stands: margins for labels, the size of a cell, the first cell shown.
function layOut() {
  const { panel, t, s } = weightsNow();
  const context = document.getElementById("map").getContext("2d");
  context.font = "700 11px system-ui, sans-serif";
  const left = roomFor(context, panel.queries[0], t);
  const top = roomFor(context, panel.keys[0], s);
  const wide = document.getElementById("stage").clientWidth;
  const high = Math.max(280, Math.min(wide, window.innerHeight - 190));
  const whole = Math.max(Math.min((wide - left - 2) / s, (high - top - 2) / t, 44), 1e-3);
  const cell = whole * Math.max(state.zoom, 1);
  const width = Math.min(wide - left - 2, s * cell);
  const height = Math.min(high - top - 2, t * cell);
  state.x = Math.max(0, Math.min(state.x, s - width / cell));
  state.y = Math.max(0, Math.min(state.y, t - height / cell));
  stage.box = { panel, t, s, left, top, whole, cell, width, height, wide, high: top + height + 2, x: state.x, y: state.y };
}

function sized(id, wide, high) {
  const canvas = document.getElementById(id);
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(high * ratio);
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function drawStage() {
  layOut();
  const box = stage.box;
  const place = document.getElementById("stage");
  place.style.height = `${box.high}px`;
  Object.assign(place.dataset, { left: box.left, top: box.top, cell: box.cell, x: box.x, y: box.y });
  const context = sized("map", box.wide, box.high);
  context.save();
  context.beginPath();
  context.rect(box.left, box.top, box.width, box.height);
  context.clip();
  context.imageSmoothingEnabled = false;
  drawWeights(context, box);
  context.restore();
  context.strokeStyle = colourOf("line");
  context.strokeRect(box.left - 0.5, box.top - 0.5, box.width + 1, box.height + 1);
  drawLabels(context, box, "rows");
  drawLabels(context, box, "columns");
  drawCorner(context, box);
  drawCross();
}

function drawCorner(context, box) {
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "alphabetic";
  context.fillStyle = colourOf("keys");
  context.fillText("keys →", box.left - 6, box.top - 17);
  context.fillStyle = colourOf("queries");
  context.fillText("queries ↓", box.left - 6, box.top - 5);
}

function drawWeights(context, box) {
  const weights = weightsNow();
  const rows = Math.min(box.t, Math.ceil(box.y + box.height / box.cell)) - Math.floor(box.y);
  const work = rows * box.s * (weights.recipe ? weights.recipe.pieces[0].width ?? 1 : 0);
  if (weights.recipe && !weights.panel.whole && work < 6e7) {
    drawExact(context, box, weights, Math.floor(box.y), rows);
    return;
  }
  const step = weights.panel.step;
  const near = step > 1 && box.cell >= 5; // so near that single weights can be told apart
  context.globalAlpha = near ? 0.45 : 1;
  drawPicture(context, box, pixels(weights.cells(state.head), state.scale, peakNow()), weights.columns, weights.rows, step, 0);
  context.globalAlpha = 1;
  if (near) drawTop(context, box, weights, Math.floor(box.y), rows);
}

function peakNow() {
  return weightsNow().panel.peaks[state.head];
}

// A picture whose pixels stand for step × step weights, its first row being query `first`.
function drawPicture(context, box, image, columns, rows, step, first) {
  if (!columns || !rows) return;
  const canvas = new OffscreenCanvas(columns, rows);
  canvas.getContext("2d").putImageData(new ImageData(image, columns, rows), 0, 0);
  const side = step * box.cell;
  context.drawImage(canvas, box.left - box.x * box.cell, box.top + (first - box.y) * box.cell, columns * side, rows * side);
}

function drawExact(context, box, weights, first, rows) {
  const image = new Uint32Array(rows * box.s);
  for (let i = 0; i < rows; i++) {
    const row = weights.row(state.head, first + i);
    for (let j = 0; j < box.s; j++) image[i * box.s + j] = PALETTE[shade(row[j], state.scale, peakNow())];
  }
  drawPicture(context, box, new Uint8ClampedArray(image.buffer), box.s, rows, 1, first);
}

function drawTop(context, box, weights, first, rows) {
  for (let query = first; query < first + rows; query++) {
    for (const [key, weight] of weights.top(state.head, query)) {
      context.fillStyle = COLOURS[shade(weight, state.scale, peakNow())];
      const [x, y] = [box.left + (key - box.x) * box.cell, box.top + (query - box.y) * box.cell];
      context.fillRect(x, y, box.cell + 0.3, box.cell + 0.3);
    }
  }
}

// The crosshair: the cell that is pointed at, or the chosen one.
function drawCross() {
  const box = stage.box;
  const context = sized("cross", box.wide, box.high);
  const at = app.pointed ?? (state.focus === "map" ? { query: state.query, key: state.key } : { query: state.query });
  const side = Math.max(box.cell, 1);
  context.save();
  context.beginPath();
  context.rect(box.left - 1, box.top - 1, box.width + 2, box.height + 2);
  context.clip();
  const [x, y] = [box.left + ((at.key ?? 0) - box.x) * box.cell, box.top + (at.query - box.y) * box.cell];
  outline(context, box.left - 1, y, box.width + 2, side, "queries");
  if (at.key !== undefined) outline(context, x, box.top - 1, side, box.height + 2, "keys");
  context.restore();
  const [queries, keys] = [tokensOf(box.panel.queries[0]), tokensOf(box.panel.keys[0])];
  const inside = (place, start, length) => place + 0.5 >= start && place + 0.5 <= start + length / box.cell;
  if (inside(at.query, box.y, box.height)) {
    context.fillStyle = colourOf("queries");
    drawLabel(context, box, true, (at.query + 0.5 - box.y) * box.cell, queries[at.query], true);
  }
  if (at.key !== undefined && inside(at.key, box.x, box.width)) {
    context.fillStyle = colourOf("keys");
    drawLabel(context, box, false, (at.key + 0.5 - box.x) * box.cell, keys[at.key], true);
  }
}

function outline(context, x, y, width, height, name) {
  context.strokeStyle = "rgb(255 255 255 / .85)";
  context.lineWidth = 3;
  context.strokeRect(x, y, width, height);
  context.strokeStyle = colourOf(name);
  context.lineWidth = 1.5;
  context.strokeRect(x, y, width, height);
}

function cellAt(event) {
  const box = stage.box;
  const bounds = document.getElementById("map").getBoundingClientRect();
  const [x, y] = [event.clientX - bounds.left - box.left, event.clientY - bounds.top - box.top];
  if (x < 0 || y < 0 || x >= box.width || y >= box.height) return null;
  return { query: Math.min(box.t - 1, Math.floor(box.y + y / box.cell)), key: Math.min(box.s - 1, Math.floor(box.x + x / box.cell)) };
}

function said({ query, key }) {
  const { panel } = weightsNow();
  const [from, to] = [tokensOf(panel.queries[0])[query], tokensOf(panel.keys[0])[key]];
  return [`${query} “${label(from)}”`, `${key} “${label(to)}”`, written(weightsNow().value(state.head, query, key))];
}

function point(event) {
  app.pointed = event ? cellAt(event) : null;
  const tip = document.getElementById("tip");
  tip.hidden = !app.pointed;
  if (app.pointed) {
    const [query, key, weight] = said(app.pointed);
    tip.replaceChildren(element("b", "", weight), element("span", "query", query), element("span", "key", key));
    const bounds = document.getElementById("stage").getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    tip.style.left = `${x + 16 + tip.offsetWidth > bounds.width ? x - tip.offsetWidth - 12 : x + 16}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > bounds.height ? y - tip.offsetHeight - 10 : y + 18}px`;
  }
  drawCross();
  drawReadout();
}

function drawReadout() {
  const at = app.pointed ?? { query: state.query, key: state.key };
  const place = document.getElementById("readout");
  const [query, key, weight] = said(at);
  place.replaceChildren("query ", element("span", "query", query), " → key ", element("span", "key", key), ": ", element("b", "", weight));
}

// Zoom by a factor about a point of the stage (its middle if none is given).
function zoomBy(factor, event = null) {
  const box = stage.box;
  const bounds = document.getElementById("map").getBoundingClientRect();
  const x = event ? event.clientX - bounds.left - box.left : box.width / 2;
  const y = event ? event.clientY - bounds.top - box.top : box.height / 2;
  const most = Math.max(1, 44 / box.whole);
  const zoom = Math.max(1, Math.min(most, state.zoom * factor));
  const cell = box.whole * zoom;
  choose({ zoom, x: box.x + x / box.cell - x / cell, y: box.y + y / box.cell - y / cell });
}

// Bring a cell of the map into view.
function reveal(query, key) {
  const box = stage.box;
  const [wide, high] = [box.width / box.cell, box.height / box.cell];
  if (query < state.y || query + 1 > state.y + high) state.y = query - high / 2;
  if (key < state.x || key + 1 > state.x + wide) state.x = key - wide / 2;
}

function listenStage() {
  const place = document.getElementById("stage");
  place.addEventListener("pointermove", (event) => (stage.drag ? dragTo(event) : point(event)));
  place.addEventListener("pointerleave", () => point(null));
  place.addEventListener("pointerdown", (event) => {
    stage.drag = { x: event.clientX, y: event.clientY, from: { x: state.x, y: state.y }, moved: false };
    place.setPointerCapture(event.pointerId);
  });
  place.addEventListener("pointerup", (event) => {
    const clicked = stage.drag && !stage.drag.moved ? cellAt(event) : null;
    stage.drag = null;
    if (clicked) choose({ ...clicked, focus: "map" });
  });
  place.addEventListener("pointercancel", () => (stage.drag = null));
  place.addEventListener("dblclick", () => choose({ zoom: 1, x: 0, y: 0 }));
  place.addEventListener(
    "wheel",
    (event) => {
      if (event.deltaY > 0 && state.zoom <= 1) return;
      event.preventDefault();
      zoomBy(Math.exp(-event.deltaY / 300), event);
    },
    { passive: false },
  );
}

function dragTo(event) {
  const { drag, box } = stage;
  const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
  drag.moved ||= Math.hypot(x, y) > 4;
  if (drag.moved && state.zoom > 1) choose({ x: drag.from.x - x / box.cell, y: drag.from.y - y / box.cell });
}
