// A claim's picture as a document that stands alone: its size is written into it, and its ink is the page's.

export function inked(svg: string, ink: string): string {
  const end = svg.indexOf(">");
  const [, , , width, height] = /viewBox="([-\d.]+) ([-\d.]+) ([\d.]+) ([\d.]+)"/.exec(svg.slice(0, end)) ?? ["", "0", "0", "270", "200"];
  const head = svg.slice(0, end).replace(/ style="[^"]*"/, "");
  const size = `width="${1.35 * Number(width)}" height="${1.35 * Number(height)}"`;
  return `${head} ${size} style="color: ${ink}; font-family: sans-serif">${svg.slice(end + 1)}`;
}

export function address(svg: string): string {
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

// The picture as pixels, on the page's paper.
export async function pixels(svg: string, paper: string, scale = 2): Promise<Blob | null> {
  const picture = new Image();
  picture.src = address(svg);
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = picture.naturalWidth * scale;
  canvas.height = picture.naturalHeight * scale;
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = paper;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve));
}
