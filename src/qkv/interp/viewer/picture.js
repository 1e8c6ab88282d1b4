// A picture with the attention of one of its tokens drawn over it: of a head, of a layer's mean, or a computed map.

const photo = { image: null, hovered: null };

async function buildPicture() {
  const { picture } = app.data;
  if (!picture) return;
  document.getElementById("picture").hidden = false;
  photo.image = new Image();
  photo.image.src = picture.source;
  await photo.image.decode();
  const place = document.getElementById("shown");
  const modes = [["head", "this head"], ["mean", "mean of the layer"]];
  app.panels.forEach(({ panel }, number) => panel.derived && panel.queries[0] === picture.axis && modes.push([String(number), panel.name]));
  for (const [mode, name] of modes) {
    const button = element("button", "", name);
    button.type = "button";
    button.dataset.mode = mode;
    button.addEventListener("click", () => choose({ mode }));
    place.append(button);
  }
  listenPicture(document.getElementById("photo"));
}

function listenPicture(canvas) {
  const tokenAt = (event) => {
    const { picture } = app.data;
    const bounds = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - bounds.top) / bounds.height) * picture.rows);
    const column = Math.floor(((event.clientX - bounds.left) / bounds.width) * picture.columns);
    const inside = row >= 0 && column >= 0 && row < picture.rows && column < picture.columns;
    return inside ? picture.lead + row * picture.columns + column : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    photo.hovered = tokenAt(event);
    drawPhoto();
  });
  canvas.addEventListener("pointerleave", () => {
    photo.hovered = null;
    drawPhoto();
  });
  canvas.addEventListener("click", (event) => {
    const token = tokenAt(event);
    if (token !== null && token < weightsNow().t) choose({ query: token });
  });
}

// The weights over all tokens that the chosen way of looking gives a query.
function picturedRow(query) {
  const weights = weightsNow();
  if (state.mode === "head") return weights.shown(state.head, query);
  if (state.mode !== "mean") return app.panels[Number(state.mode)].shown(0, query);
  const mean = new Float64Array(weights.s);
  for (let head = 0; head < weights.panel.heads; head++) {
    weights.shown(head, query).forEach((weight, key) => (mean[key] += weight / weights.panel.heads));
  }
  return mean;
}

function drawPhoto() {
  const { picture } = app.data;
  if (!picture || !photo.image) return;
  const side = Math.min(document.getElementById("picture").clientWidth, 380);
  const high = Math.round((side * photo.image.height) / photo.image.width);
  const context = sized("photo", side, high);
  const query = photo.hovered !== null && photo.hovered < weightsNow().t ? photo.hovered : state.query;
  context.imageSmoothingEnabled = photo.image.width > side;
  context.drawImage(photo.image, 0, 0, side, high);
  const row = picturedRow(query).slice(picture.lead, picture.lead + picture.rows * picture.columns);
  const most = Math.max(...row, 1e-12);
  const [wide, tall] = [side / picture.columns, high / picture.rows];
  context.globalAlpha = 0.62;
  row.forEach((weight, patch) => {
    context.fillStyle = COLOURS[Math.round(255 * Math.sqrt(weight / most))];
    context.fillRect((patch % picture.columns) * wide, Math.floor(patch / picture.columns) * tall, wide + 0.5, tall + 0.5);
  });
  context.globalAlpha = 1;
  const patch = query - picture.lead;
  if (patch >= 0) outline(context, (patch % picture.columns) * wide, Math.floor(patch / picture.columns) * tall, wide, tall, "queries");
  sayPictured(query, most);
}

function sayPictured(query, most) {
  const name = tokensOf(app.data.picture.axis)[query];
  const way = state.mode === "head" ? placeName(state.panel, state.head) : state.mode === "mean" ? `mean of ${placeName(state.panel, 0).replace(/ · head.*/, "")}` : app.panels[Number(state.mode)].panel.name;
  document.getElementById("pictured").textContent =
    `${way}: what “${label(name)}” attends to, from 0 (dark) to ${most.toPrecision(3)} (yellow). Point at a patch to ask it.`;
  for (const button of document.querySelectorAll("#shown button")) button.setAttribute("aria-pressed", String(button.dataset.mode === state.mode));
}
