// The texts: a token is chosen as query by a click; keys are shaded by the weight that the query gives them.

const LONGEST = 4000; // tokens of a text that are written out

function buildTexts() {
  const place = document.getElementById("texts");
  app.data.axes.forEach((axis, number) => {
    const used = app.panels.some(({ panel }) => panel.queries[0] === number || panel.keys[0] === number);
    const pictured = app.data.picture && app.data.picture.axis === number;
    if (!used || pictured) return;
    const text = element("div", "text");
    text.dataset.axis = number;
    text.append(element("h3", "", axis.name));
    const body = element("p", axis.tokens.some((token) => /\s/.test(token)) ? "" : "apart");
    axis.tokens.slice(0, LONGEST).forEach((token, at) => body.append(tokenSpan(token, number, at)));
    if (axis.tokens.length > LONGEST) body.append(` … and ${axis.tokens.length - LONGEST} more`);
    text.append(body);
    place.append(text);
  });
}

function tokenSpan(token, axis, at) {
  const span = element("span", "word", token.replace(/\n/g, "⏎\n"));
  span.dataset.at = at;
  span.title = `${at} “${label(token)}”`;
  span.addEventListener("click", () => {
    const { panel } = weightsNow();
    if (panel.queries[0] === axis && at < panel.queries[1]) choose({ query: at });
    else if (panel.keys[0] === axis && at < panel.keys[1]) choose({ key: at });
  });
  return span;
}

function drawTexts() {
  const { panel } = weightsNow();
  const row = weightsNow().shown(state.head, state.query);
  for (const text of document.querySelectorAll("#texts .text")) {
    const axis = Number(text.dataset.axis);
    const [asks, holds] = [panel.queries[0] === axis, panel.keys[0] === axis];
    text.hidden = !asks && !holds;
    if (text.hidden) continue;
    const role = asks && holds ? "" : asks ? " · queries" : " · keys";
    text.querySelector("h3").textContent = app.data.axes[axis].name + role;
    for (const span of text.querySelectorAll(".word")) {
      const at = Number(span.dataset.at);
      const depth = holds && at < row.length ? shade(row[at], state.scale, peakNow()) / 255 : 0;
      span.style.setProperty("--depth", depth.toFixed(3));
      span.classList.toggle("asked", asks && at === state.query);
      span.classList.toggle("found", found(axis, at));
    }
  }
}

function drawAsked() {
  const { panel } = weightsNow();
  const token = element("span", "query", `${state.query} “${label(tokensOf(panel.queries[0])[state.query])}”`);
  document.getElementById("asked").replaceChildren("Query ", token, " attends to");
}

// Search: every token that holds the words, in all texts; Enter goes on to the next.
function search(words) {
  app.hits = [];
  const wanted = words.toLowerCase();
  if (wanted) {
    app.data.axes.forEach((axis, number) => {
      axis.tokens.forEach((token, place) => {
        if (token.toLowerCase().includes(wanted) || label(token).toLowerCase().includes(wanted)) app.hits.push({ axis: number, place });
      });
    });
  }
  document.getElementById("found").textContent = wanted ? `${app.hits.length} found` : "";
}

function nextHit() {
  const { panel } = weightsNow();
  const here = app.hits.filter(({ axis, place }) => axis === panel.queries[0] && place < panel.queries[1]);
  const next = here.find(({ place }) => place > state.query) ?? here[0];
  if (next) {
    reveal(next.place, state.key);
    choose({ query: next.place });
    return;
  }
  const keys = app.hits.filter(({ axis, place }) => axis === panel.keys[0] && place < panel.keys[1]);
  const after = keys.find(({ place }) => place > state.key) ?? keys[0];
  if (after) {
    reveal(state.query, after.place);
    choose({ key: after.place });
  }
}
