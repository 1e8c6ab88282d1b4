// A claim's pictures as documents that stand alone: their size is written into them, and their ink is the page's.

const SCALE = 1.3; // pixels a point

interface Sized {
  width: number;
  height: number;
  text: string;
}

export function inked(svg: string, ink: string): Sized {
  const end = svg.indexOf(">");
  const head = svg.slice(0, end);
  const box = /viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"/.exec(head) ?? ["", "270", "200"];
  const [width, height] = [Math.round(SCALE * Number(box[1])), Math.round(SCALE * Number(box[2]))];
  const plain = head.replace(/ style="[^"]*"/, "");
  return { width, height, text: `${plain} width="${width}" height="${height}" style="color: ${ink}">${svg.slice(end + 1)}` };
}

// All panels side by side in one document.
export function joined(svgs: string[], ink: string): string {
  const parts = svgs.map((svg) => inked(svg, ink));
  const width = parts.reduce((sum, part) => sum + part.width, 0);
  const height = Math.max(...parts.map((part) => part.height));
  let place = 0;
  const placed = parts.map((part) => {
    const text = part.text.replace("<svg", `<svg x="${place}"`);
    place += part.width;
    return text;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${placed.join("")}</svg>`;
}

export function address(svg: string): string {
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

// A picture as pixels, on the page's paper.
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
