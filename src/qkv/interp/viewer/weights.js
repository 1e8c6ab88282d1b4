// What is known of a panel's weights: all of them as decimals, or a pooled picture and the largest of every row, or,
// where the page holds a recipe, any row computed exactly.

class Weights {
  constructor(panel, bytes, places) {
    Object.assign(this, { panel, bytes, places, unit: 10 ** -places });
    this.t = panel.queries[1];
    this.s = panel.keys[1];
    this.rows = Math.ceil(this.t / panel.step);
    this.columns = Math.ceil(this.s / panel.step);
    this.pictures = new Map();
    this.recipe = null;
    this.opening = null;
  }

  // Bytes on the root scale, one for each cell of the picture.
  cells(head) {
    const count = this.rows * this.columns;
    if (!this.pictures.has(head)) this.pictures.set(head, this.panel.whole ? this.squeezed(head, count) : this.kept(head, count));
    return this.pictures.get(head);
  }

  kept(head, count) {
    return Uint8Array.from(integers(this.bytes, this.panel.cells, head * count, count), (step) => Math.round((step * 255) / 127));
  }

  squeezed(head, count) {
    const peak = Math.max(this.panel.peaks[head], 1e-12);
    const whole = integers(this.bytes, this.panel.whole, head * count, count);
    return Uint8Array.from(whole, (w) => Math.min(255, Math.round(255 * Math.sqrt((w * this.unit) / peak))));
  }

  // A row of exact weights, or null where only its largest are known.
  row(head, query) {
    if (this.panel.whole) {
      const from = (head * this.t + query) * this.s;
      return Float64Array.from(integers(this.bytes, this.panel.whole, from, this.s), (w) => w * this.unit);
    }
    return this.recipe ? this.recipe.row(head, query) : null;
  }

  // The largest weights of a row: [[key, weight], …]; those of 0 are left out.
  top(head, query, count = 8) {
    if (!this.panel.whole) return this.keptTop(head, query).slice(0, count);
    const row = Array.from(this.row(head, query), (weight, key) => [key, weight]);
    return row.filter(([, weight]) => weight > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, count);
  }

  keptTop(head, query) {
    const found = [];
    const k = this.panel.top[0];
    let whole = 0;
    for (let rank = 0; rank < k; rank++) {
      const at = (head * k + rank) * this.t + query;
      const kept = integers(this.bytes, this.panel.top_weights, at, 1)[0]; // the first, then how far each is below
      whole = rank ? whole - kept : kept;
      const weight = whole * this.unit;
      if (weight > 0) found.push([integers(this.bytes, this.panel.top_keys, at, 1)[0], weight]);
    }
    return found;
  }

  // { value, exact } of one weight; where it is not known, the most that it can be.
  value(head, query, key) {
    if (this.panel.whole) {
      const at = (head * this.t + query) * this.s + key;
      return { value: integers(this.bytes, this.panel.whole, at, 1)[0] * this.unit, exact: true, places: this.places };
    }
    const top = this.keptTop(head, query);
    const found = top.find(([place]) => place === key);
    if (found) return { value: found[1], exact: true, places: this.places };
    if (this.recipe) return { value: this.recipe.row(head, query)[key], exact: true, places: 4 };
    const least = top.length < this.panel.top[0] ? 0 : top[top.length - 1][1];
    return { value: Math.min(least, this.cell(head, query, key, 1.6)), exact: false, places: this.places };
  }

  // The pooled weight of the cell in which a query and a key lie; `more` steps of rounding up.
  cell(head, query, key, more = 0) {
    const at = Math.floor(query / this.panel.step) * this.columns + Math.floor(key / this.panel.step);
    return ((this.cells(head)[at] + more) / 255) ** 2 * this.panel.peaks[head];
  }

  // A row for colouring: exact where known, else what the picture says.
  shown(head, query) {
    const row = this.row(head, query);
    if (row) return row;
    const pooled = Float64Array.from({ length: this.s }, (_, key) => this.cell(head, query, key));
    if (this.panel.step > 1) pooled.fill(0);
    for (const [key, weight] of this.keptTop(head, query)) pooled[key] = weight;
    return pooled;
  }

  get computes() {
    return Boolean(this.panel.recipe && this.panel.recipe.pieces);
  }

  // Unpack the recipe, once; resolves when rows can be computed.
  open() {
    if (!this.computes) return Promise.resolve();
    this.opening ??= inflated(this.panel.recipe.blob).then((bytes) => {
      this.recipe = new RecipeRows(this.panel.recipe, this.panel.heads, this.s, bytes);
    });
    return this.opening;
  }
}

function written({ value, exact, places }) {
  return exact ? value.toFixed(places) : `≤ ${value.toFixed(places)}`;
}
