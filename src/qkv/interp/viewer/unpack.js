// Packed numbers, as pack.py wrote them: base64, deflated, integers as planes of bytes. A place is [offset, count, planes].

function decoded(id) {
  const raw = atob(document.getElementById(id).textContent.trim());
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function inflated(id) {
  const stream = new Blob([decoded(id)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Integers of 0 or more; `from` and `count` cut a run out of them.
function integers(bytes, [offset, total, planes], from = 0, count = total) {
  const values = new Uint32Array(count);
  for (let plane = 0; plane < planes; plane++) {
    const start = offset + plane * total + from;
    for (let i = 0; i < count; i++) values[i] |= bytes[start + i] << (8 * plane);
  }
  return values;
}

function signed(bytes, [offset, total]) {
  const values = new Int16Array(total);
  for (let i = 0; i < total; i++) values[i] = bytes[offset + i] | (bytes[offset + total + i] << 8);
  return values;
}

function floats(bytes, place) {
  return new Float32Array(integers(bytes, place).buffer);
}

function bit(bytes, [offset], index) {
  return (bytes[offset + (index >> 3)] >> (index & 7)) & 1;
}
