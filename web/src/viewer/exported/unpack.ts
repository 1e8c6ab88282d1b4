// Packed numbers, as interp/viewer/pack.py wrote them: base64, deflated, integers as planes of bytes.

export type Packed = [offset: number, count: number, planes: number];

export async function inflate(base64: string): Promise<Uint8Array> {
  const raw = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Integers of 0 or more; `from` and `count` select a part of them.
export function integers(bytes: Uint8Array, [offset, total, planes]: Packed, from = 0, count = total): Uint32Array {
  const values = new Uint32Array(count);
  for (let plane = 0; plane < planes; plane++) {
    const start = offset + plane * total + from;
    for (let i = 0; i < count; i++) values[i] |= bytes[start + i] << (8 * plane);
  }
  return values;
}

export function signed(bytes: Uint8Array, [offset, total]: Packed): Int16Array {
  const values = new Int16Array(total);
  for (let i = 0; i < total; i++) values[i] = bytes[offset + i] | (bytes[offset + total + i] << 8);
  return values;
}

export function floats(bytes: Uint8Array, packed: Packed): Float32Array {
  return new Float32Array(integers(bytes, packed).buffer);
}

export function bit(bytes: Uint8Array, [offset]: Packed, index: number): number {
  return (bytes[offset + (index >> 3)] >> (index & 7)) & 1;
}
