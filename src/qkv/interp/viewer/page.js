// What is chosen, the address that holds it, the keys, and the drawing of it all.

const app = { data: null, panels: [], groups: 1, hits: [], pointed: null };
const state = { panel: 0, head: 0, query: 0, key: 0, zoom: 1, x: 0, y: 0, scale: "root", kind: "", mode: "head", find: "", theme: "", focus: "heads" };
const NUMBERS = ["panel", "head", "query", "key", "zoom", "x", "y"];
const KEPT = [...NUMBERS, "scale", "kind", "mode", "find", "theme"];
const FIRST = { ...state };

function choose(changes) {
  const before = { ...state };
  Object.assign(state, changes);
  const size = ({ t, s }) => `${t}×${s}`;
  if (size(app.panels[before.panel]) !== size(app.panels[state.panel])) Object.assign(state, { zoom: 1, x: 0, y: 0 });
  settle();
  remember();
  if (before.scale !== state.scale) drawGlance();
  draw();
  openRecipe();
  if (before.focus !== state.focus) focusNow();
}

// Every choice within what there is.
function settle() {
  const within = (value, count) => Math.max(0, Math.min(Math.round(value) || 0, count - 1));
  state.panel = within(state.panel, app.panels.length);
  const { panel, t, s } = weightsNow();
  state.head = within(state.head, panel.heads);
  state.query = within(state.query, t);
  state.key = within(state.key, s);
  state.zoom = Math.max(1, state.zoom || 1);
  for (const name of ["x", "y"]) state[name] = Math.max(0, state[name] || 0);
  if (!["root", "linear", "own"].includes(state.scale)) state.scale = "root";
  if (!["head", "mean"].includes(state.mode) && !app.panels[Number(state.mode)]) state.mode = "head";
}

function remember() {
  const parts = KEPT.filter((name) => state[name] !== FIRST[name]).map((name) => {
    const value = typeof state[name] === "number" ? Number(state[name].toFixed(3)) : state[name];
    return `${name}=${encodeURIComponent(value)}`;
  });
  try {
    history.replaceState(null, "", `#${parts.join("&")}`);
  } catch {
    // inside a notebook's frame there is no address to write to
  }
  if (parent !== window) parent.postMessage({ qkv: "chosen", layer: weightsNow().panel.place, head: state.head, query: state.query }, "*");
}

function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, FIRST);
  for (const name of KEPT) if (given.has(name)) state[name] = NUMBERS.includes(name) ? Number(given.get(name)) : given.get(name);
  settle();
  search(state.find);
  document.getElementById("search").value = state.find;
  applyTheme();
}

function openRecipe() {
  const weights = weightsNow();
  if (weights.computes && !weights.recipe) weights.open().then(draw, fail);
}

function draw() {
  markGlance();
  drawName();
  drawLegend(document.getElementById("legend"), state.scale, peakNow());
  drawStage();
  drawReadout();
  drawAsked();
  drawLines();
  drawTexts();
  drawPhoto();
  for (const button of document.querySelectorAll("[data-scale]")) button.setAttribute("aria-pressed", String(button.dataset.scale === state.scale));
}

function drawName() {
  const { panel } = weightsNow();
  const title = document.getElementById("name");
  title.replaceChildren(placeName(state.panel, state.head).replace(/^./, (letter) => letter.toUpperCase()), element("span", "module", panel.derived ? "" : panel.name));
  for (const [type, score] of typesOf(state.panel, state.head)) {
    const chip = element("span", "chip", `${type} `);
    chip.append(element("b", "", score.toFixed(2)));
    title.append(chip);
  }
  const [sizes, head] = [`${panel.queries[1]} queries × ${panel.keys[1]} keys`, state.head];
  const parts = [`entropy ${panel.entropy[head].toFixed(2)} of ${Math.log(panel.keys[1]).toFixed(2)}`, `largest weight ${panel.peaks[head].toFixed(4)}`];
  if (panel.queries[0] === panel.keys[0]) parts.push(`mean distance ${panel.distance[head].toFixed(1)}`, `on the first token ${panel.first[head].toFixed(3)}`);
  document.getElementById("measures").textContent = [sizes, ...parts].join(" · ");
}

function applyTheme() {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light" : "Dark";
}

function switchTheme() {
  state.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  applyTheme();
  choose({});
}

function focusNow() {
  document.getElementById(state.focus === "map" ? "stage" : "grid").focus({ preventScroll: true });
}

function moveHead(rows, columns) {
  const panel = (state.panel + rows + app.panels.length) % app.panels.length;
  const heads = app.panels[panel].panel.heads;
  choose({ panel, head: columns ? (state.head + columns + heads) % heads : Math.min(state.head, heads - 1) });
}

function moveCell(rows, columns) {
  const { t, s } = weightsNow();
  const query = Math.max(0, Math.min(t - 1, state.query + rows));
  const key = Math.max(0, Math.min(s - 1, state.key + columns));
  reveal(query, key);
  app.pointed = null;
  choose({ query, key });
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const SCALES = { root: "linear", linear: "own", own: "root" };
const KEYS = {
  "/": () => document.getElementById("search").focus(),
  "?": () => document.getElementById("help").showModal(),
  "+": () => zoomBy(1.5),
  "=": () => zoomBy(1.5),
  "-": () => zoomBy(1 / 1.5),
  "0": () => choose({ zoom: 1, x: 0, y: 0 }),
  "[": () => choose({ query: Math.max(0, state.query - 1) }),
  "]": () => choose({ query: state.query + 1 }),
  s: () => choose({ scale: SCALES[state.scale] }),
  d: switchTheme,
  Enter: () => choose({ focus: "map" }),
  Escape: () => choose({ focus: "heads", kind: "" }),
};

function onKey(event) {
  if (document.getElementById("help").open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.id === "search") return onSearchKey(event);
  if (event.key === "Enter" && event.target.tagName === "BUTTON") return;
  const arrow = ARROWS[event.key];
  if (!arrow && !KEYS[event.key]) return;
  event.preventDefault();
  if (!arrow) KEYS[event.key]();
  else if (state.focus === "map") moveCell(...arrow);
  else moveHead(...arrow);
}

function onSearchKey(event) {
  if (event.key === "Enter") nextHit();
  else if (event.key === "Escape") {
    event.target.value = "";
    search("");
    choose({ find: "" });
    focusNow();
  } else return;
  event.preventDefault();
}

function listen() {
  const on = (id, kind, action) => document.getElementById(id).addEventListener(kind, action);
  document.addEventListener("keydown", onKey);
  on("grid", "focus", () => (state.focus = "heads"));
  on("stage", "focus", () => (state.focus = "map"));
  on("search", "input", (event) => {
    search(event.target.value);
    choose({ find: event.target.value });
  });
  on("theme", "click", switchTheme);
  on("help-button", "click", KEYS["?"]);
  on("in", "click", KEYS["+"]);
  on("out", "click", KEYS["-"]);
  on("fit", "click", KEYS["0"]);
  for (const button of document.querySelectorAll("[data-scale]")) button.addEventListener("click", () => choose({ scale: button.dataset.scale }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    applyTheme();
    draw();
  });
  addEventListener("resize", draw);
  addEventListener("hashchange", () => {
    recall();
    drawGlance();
    draw();
  });
  listenStage();
}

function writeFacts() {
  for (const [name, text] of app.data.facts) document.getElementById("facts").append(element("dt", "", name), element("dd", "", text));
  const whole = app.panels.every(({ panel }) => panel.whole);
  const why = app.panels.map(({ panel }) => panel.recipe?.why && `${panel.name}: ${panel.recipe.why}`).filter(Boolean);
  const computed = app.panels.some(({ computes }) => computes);
  const size = Math.max(...app.panels.map(({ rows, columns }) => Math.max(rows, columns)));
  document.getElementById("precision").textContent = whole
    ? `This file holds every weight to ${app.data.places} decimals.`
    : computed
      ? `This file holds queries and keys in fourteen bits a number and computes weights from them. ${why.length ? `Not embedded: ${why.join("; ")}.` : ""}`
      : `This file holds each map pooled by max to ${size} cells a side and the exact eight largest weights of every row; --full embeds the rest.`;
}

function fail(error) {
  const place = document.getElementById("failure");
  place.textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`;
  place.hidden = false;
}

async function start() {
  app.data = JSON.parse(document.getElementById("description").textContent);
  const bytes = await inflated("maps");
  app.panels = app.data.panels.map((panel) => new Weights(panel, bytes, app.data.places));
  app.groups = new Set(app.panels.map(({ panel }) => groupOf(panel))).size;
  const { picture } = app.data;
  if (!picture) FIRST.query = app.panels[0].t - 1;
  writeFacts();
  buildGlance();
  buildTexts();
  recall();
  listen();
  await buildPicture();
  drawGlance();
  draw();
  openRecipe();
  document.body.dataset.ready = "yes";
}

start().catch(fail);
