// Exact weights from a layer's recipe: softmax(softcap(q·k) + bias) over what the mask allows; the scale is in the queries.

class RecipeRows {
  constructor(recipe, heads, keys, bytes) {
    this.heads = heads;
    this.keys = keys;
    this.bytes = bytes;
    this.known = new Map(); // queries and keys by where they stand
    this.pieces = recipe.pieces;
    this.rows = new Map();
  }

  vectors([numbers, factors], width) {
    const name = numbers[0];
    if (!this.known.has(name)) {
      const whole = signed(this.bytes, numbers);
      const factor = floats(this.bytes, factors);
      const vectors = new Float32Array(whole.length);
      for (let i = 0; i < whole.length; i++) vectors[i] = whole[i] * factor[(i / width) | 0];
      this.known.set(name, vectors);
    }
    return this.known.get(name);
  }

  numbers(place) {
    if (!this.known.has(place[0])) this.known.set(place[0], floats(this.bytes, place));
    return this.known.get(place[0]);
  }

  row(head, query) {
    const name = `${head}.${query}`;
    if (!this.rows.has(name)) {
      if (this.rows.size > 4096) this.rows.clear();
      this.rows.set(name, this.compute(head, query));
    }
    return this.rows.get(name);
  }

  compute(head, query) {
    const row = new Float32Array(this.keys);
    for (const piece of this.pieces) {
      const i = query - piece.row;
      if (i < 0 || i >= piece.t) continue;
      row.set(piece.weights ? this.written(piece, head, i) : this.softmax(piece, head, i), piece.column);
    }
    return row;
  }

  written(piece, head, i) {
    const from = (head * piece.t + i) * piece.s;
    return Float32Array.from(integers(this.bytes, piece.weights, from, piece.s), (whole) => whole / 65535);
  }

  softmax(piece, head, i) {
    const scores = this.scores(piece, head, i);
    const floor = piece.floor === null ? -Infinity : piece.floor;
    for (let j = 0; j < piece.s; j++) if (!this.allowed(piece, head, i, j)) scores[j] = floor;
    let most = -Infinity;
    for (const score of scores) if (score > most) most = score;
    const sink = piece.sink ? this.sink(piece.sink, head, i) : -Infinity;
    if (most === -Infinity) return new Float32Array(piece.s); // nothing allowed: attends to nothing
    most = Math.max(most, sink);
    let sum = Math.exp(sink - most);
    for (let j = 0; j < piece.s; j++) sum += scores[j] = Math.exp(scores[j] - most);
    return Float32Array.from(scores, (part) => part / sum);
  }

  scores(piece, head, i) {
    const { width, s, t } = piece;
    const q = this.vectors(piece.q, width);
    const k = this.vectors(piece.k, width);
    const group = Math.floor(head / (this.heads / piece.groups));
    const scores = new Float64Array(s);
    const from = (head * t + i) * width;
    for (let j = 0; j < s; j++) {
      let sum = 0;
      for (let c = 0, at = (group * s + j) * width; c < width; c++) sum += q[from + c] * k[at + c];
      scores[j] = piece.softcap ? piece.softcap * Math.tanh(sum / piece.softcap) : sum;
    }
    if (piece.bias) this.addBias(piece, scores, head, i);
    return scores;
  }

  addBias({ bias, s }, scores, head, i) {
    const table = this.numbers(bias.at);
    const own = bias.heads > 1 ? head : 0;
    if (bias.distance !== undefined) {
      for (let j = 0; j < s; j++) scores[j] += table[own * bias.size + j - i + bias.distance];
      return;
    }
    const from = (own * bias.rows + (bias.rows > 1 ? i : 0)) * bias.columns;
    for (let j = 0; j < s; j++) scores[j] += table[from + (bias.columns > 1 ? j : 0)];
  }

  sink(sink, head, i) {
    return this.numbers(sink.at)[(sink.heads > 1 ? head : 0) * sink.rows + (sink.rows > 1 ? i : 0)];
  }

  allowed(piece, head, i, j) {
    for (const mask of piece.mask) {
      if (mask.at) {
        const row = (mask.heads > 1 ? head : 0) * mask.rows + (mask.rows > 1 ? i : 0);
        if (!bit(this.bytes, mask.at, row * piece.s + j)) return false;
      } else {
        const ahead = j - i - mask.shift;
        if ((mask.left !== null && ahead < -mask.left) || (mask.right !== null && ahead > mask.right)) return false;
      }
    }
    return true;
  }
}
