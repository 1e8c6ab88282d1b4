// Saving what is shown: CSV, SVG and PNG files.

export function download(name: string, content: BlobPart, kind: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function csv(rows: (string | number)[][]): string {
  const cell = (value: string | number) => {
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // otherwise a spreadsheet would run it as a formula
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// A drawing as it looks now: the page's colors are written into the copy, which then stands alone.
export function standalone(drawing: SVGSVGElement): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const names = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linecap", "fill-opacity", "opacity", "paint-order", "font-family", "font-size", "font-weight", "text-anchor"];
  const from = [drawing, ...drawing.querySelectorAll<SVGElement>("*")];
  const to = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of names) to[i].style.setProperty(name, style.getPropertyValue(name));
  });
  const box = drawing.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  copy.style.setProperty("background", getComputedStyle(document.body).backgroundColor);
  return new XMLSerializer().serializeToString(copy);
}

export function saveSvg(name: string, drawing: SVGSVGElement): void {
  download(`${name}.svg`, standalone(drawing), "image/svg+xml");
}

export async function savePng(name: string, drawing: SVGSVGElement | HTMLCanvasElement, scale = 2): Promise<void> {
  const canvas = drawing instanceof HTMLCanvasElement ? drawing : await rasterize(drawing, scale);
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
  if (blob) download(`${name}.png`, blob, "image/png");
}

async function rasterize(drawing: SVGSVGElement, scale: number): Promise<HTMLCanvasElement> {
  const box = drawing.getBoundingClientRect();
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(drawing))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = box.width * scale;
  canvas.height = box.height * scale;
  const pen = canvas.getContext("2d")!;
  pen.scale(scale, scale);
  pen.drawImage(image, 0, 0, box.width, box.height);
  return canvas;
}
