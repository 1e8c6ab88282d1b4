// The scale of weights: perceptually even, from dark blue to yellow, the same nine stops as in the terminal.

const STOPS = ["#00204d", "#16386b", "#414d6b", "#62636f", "#7f7c75", "#a09877", "#c2b36b", "#e5cf52", "#ffea46"];
const PALETTE = new Uint32Array(256); // as pixels: 0xAABBGGRR
const COLOURS = [];

for (let i = 0; i < 256; i++) {
  const place = (i / 255) * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  const [a, b] = [STOPS[low], STOPS[low + 1]].map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const [red, green, blue] = a.map((part, c) => Math.round(part + (b[c] - part) * (place - low)));
  PALETTE[i] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  COLOURS.push(`rgb(${red} ${green} ${blue})`);
}

// How far along the palette a weight stands, 0 to 255.
function shade(weight, scale, peak) {
  const share = scale === "own" ? weight / Math.max(peak, 1e-12) : weight;
  return Math.max(0, Math.min(255, Math.round(255 * (scale === "root" ? Math.sqrt(share) : share))));
}

// Pixels of a picture of bytes on the root scale (255 √(w / peak)).
function pixels(cells, scale, peak) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++) table[i] = PALETTE[shade((i / 255) ** 2 * peak, scale, peak)];
  const image = new Uint32Array(cells.length);
  for (let i = 0; i < cells.length; i++) image[i] = table[cells[i]];
  return new Uint8ClampedArray(image.buffer);
}

function drawLegend(place, scale, peak) {
  const canvas = element("canvas");
  canvas.width = 256;
  canvas.height = 1;
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(PALETTE.buffer.slice(0)), 256, 1), 0, 0);
  const most = scale === "own" ? peak : 1;
  const marks = scale === "root" ? [0, 0.05, 0.25, 0.5, 1] : [0, most / 4, most / 2, (3 * most) / 4, most];
  const row = element("div", "marks");
  for (const mark of marks) {
    const label = element("span", "", Number(mark.toPrecision(2)).toString());
    label.style.left = `${(100 * shade(mark, scale, peak)) / 255}%`;
    row.append(label);
  }
  place.replaceChildren(canvas, row);
  place.title = "The colours of the weights";
}

function element(tag, className = "", text = null) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}
