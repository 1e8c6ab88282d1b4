// All heads at a glance: a small map for each, a row for each layer; letters name the types.

const LETTERS = new Map(); // a letter for each type of head

function letterOf(type) {
  if (!LETTERS.has(type)) {
    const taken = new Set(LETTERS.values());
    const wanted = [...type.toUpperCase().replace(/[^A-Z]/g, ""), ..."ABCDEFGHIJKLMNOPQRSTUVWXYZ"];
    LETTERS.set(type, wanted.find((letter) => !taken.has(letter)) ?? "•");
  }
  return LETTERS.get(type);
}

function typesOf(panel, head) {
  return app.panels[panel].panel.types[head] ?? [];
}

function placeName(panel, head) {
  const { panel: described } = app.panels[panel];
  const heads = described.heads > 1 ? ` · head ${head}` : "";
  if (described.derived) return `${described.name}${heads}`;
  return `${app.groups > 1 ? `${groupOf(described)}, ` : ""}layer ${described.number}${heads}`;
}

function buildGlance() {
  const grid = document.getElementById("grid");
  const widest = Math.max(...app.panels.map(({ panel }) => panel.heads));
  grid.style.setProperty("--heads", widest);
  grid.append(headNumbers(widest));
  let group = null;
  app.panels.forEach((weights, place) => {
    const title = groupOf(weights.panel);
    if (title !== group && app.groups > 1) grid.append(element("div", "group", title));
    group = title;
    grid.append(layerRow(weights, place));
  });
  buildKinds();
}

function groupOf(panel) {
  if (panel.derived) return panel.name;
  const [from, to] = [panel.queries[0], panel.keys[0]].map((place) => app.data.axes[place].name);
  return from === to ? from : `${from} → ${to}`;
}

function headNumbers(widest) {
  const row = element("div", "layer numbers");
  row.setAttribute("aria-hidden", "true");
  row.append(element("span", "label", "head"));
  for (let head = 0; head < widest; head++) row.append(element("span", "", String(head)));
  return row;
}

function layerRow(weights, place) {
  const row = element("div", "layer");
  row.setAttribute("role", "row");
  const label = element("span", "label", weights.panel.derived ? "" : String(weights.panel.number));
  label.title = weights.panel.name;
  row.append(label);
  for (let head = 0; head < weights.panel.heads; head++) row.append(smallMap(weights, place, head));
  return row;
}

function smallMap(weights, place, head) {
  const cell = element("div", "cell");
  cell.id = `cell-${place}-${head}`;
  cell.setAttribute("role", "gridcell");
  const types = typesOf(place, head);
  const named = types.map(([type, score]) => `${type} ${score.toFixed(2)}`).join(", ");
  cell.setAttribute("aria-label", `${placeName(place, head)}${named ? `: ${named}` : ""}`);
  cell.title = `${weights.panel.name} · head ${head}${named ? `\n${named}` : ""}`;
  const canvas = element("canvas");
  canvas.width = weights.columns;
  canvas.height = weights.rows;
  cell.append(canvas);
  if (types.length) cell.append(element("span", "letter", letterOf(types[0][0])));
  cell.addEventListener("click", () => choose({ panel: place, head, focus: "heads" }));
  cell.addEventListener("dblclick", () => choose({ panel: place, head, focus: "map" }));
  return cell;
}

function drawGlance() {
  app.panels.forEach((weights, place) => {
    for (let head = 0; head < weights.panel.heads; head++) {
      const canvas = document.querySelector(`#cell-${place}-${head} canvas`);
      if (!canvas.width || !canvas.height) continue;
      const image = pixels(weights.cells(head), state.scale, weights.panel.peaks[head]);
      canvas.getContext("2d").putImageData(new ImageData(image, canvas.width, canvas.height), 0, 0);
    }
  });
}

function markGlance() {
  document.querySelector(".cell.chosen")?.classList.remove("chosen");
  const cell = document.getElementById(`cell-${state.panel}-${state.head}`);
  cell.classList.add("chosen");
  cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  document.getElementById("grid").setAttribute("aria-activedescendant", cell.id);
  for (const each of document.querySelectorAll(".cell")) {
    const [, place, head] = each.id.split("-").map(Number);
    const faded = state.kind && !typesOf(place, head).some(([type]) => type === state.kind);
    each.classList.toggle("faded", Boolean(faded));
  }
  for (const kind of document.querySelectorAll("#kinds button")) {
    kind.setAttribute("aria-pressed", String(kind.dataset.kind === state.kind));
  }
}

// The types that were found, each with its letter and its count; a click shows its heads alone.
function buildKinds() {
  const counts = new Map();
  for (const { panel } of app.panels) {
    for (const types of panel.types) for (const [type] of types) counts.set(type, (counts.get(type) ?? 0) + 1);
  }
  const place = document.getElementById("kinds");
  for (const [type, count] of [...counts].sort((a, b) => b[1] - a[1])) {
    const kind = element("button");
    kind.type = "button";
    kind.dataset.kind = type;
    kind.append(element("span", "letter", letterOf(type)), ` ${type} `, element("span", "count", String(count)));
    kind.addEventListener("click", () => choose({ kind: state.kind === type ? "" : type }));
    place.append(kind);
  }
}
