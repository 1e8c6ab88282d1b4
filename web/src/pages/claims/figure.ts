// The figures of a claim as standalone SVG documents, with their size and the page's text color.

const SCALE = 1.3; // pixels a point

interface SizedFigure {
  width: number;
  height: number;
  text: string;
}

export function styleFigure(svg: string, ink: string): SizedFigure {
  const end = svg.indexOf(">");
  const head = svg.slice(0, end);
  const box = /viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"/.exec(head) ?? ["", "270", "200"];
  const [width, height] = [Math.round(SCALE * Number(box[1])), Math.round(SCALE * Number(box[2]))];
  const plain = head.replace(/ style="[^"]*"/, "");
  return { width, height, text: `${plain} width="${width}" height="${height}" style="color: ${ink}">${svg.slice(end + 1)}` };
}

// All panels side by side in one document.
export function joinFigures(svgs: string[], ink: string): string {
  const parts = svgs.map((svg) => styleFigure(svg, ink));
  const width = parts.reduce((sum, part) => sum + part.width, 0);
  const height = Math.max(...parts.map((part) => part.height));
  let place = 0;
  const panels = parts.map((part) => {
    const text = part.text.replace("<svg", `<svg x="${place}"`);
    place += part.width;
    return text;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${panels.join("")}</svg>`;
}

export function dataUrl(svg: string): string {
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

// A figure as a PNG file on the page's background.
export async function toPng(svg: string, paper: string, scale = 2): Promise<Blob | null> {
  const image = new Image();
  image.src = dataUrl(svg);
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * scale;
  canvas.height = image.naturalHeight * scale;
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = paper;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve));
}
