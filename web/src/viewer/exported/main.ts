// The exported attention page: one HTML file that holds its data and this script, and needs no network.

import { mount } from "svelte";

import "../theme.css";
import { EmbeddedWeights, type PageData } from "./embedded";
import { inflate } from "./unpack";
import Viewer from "./Viewer.svelte";

export { LazyWeights } from "./lazy_weights";
export { inflate };

async function start(description: HTMLElement): Promise<void> {
  const data: PageData = JSON.parse(description.textContent!);
  const blob = (id: string) => document.getElementById(id)!.textContent!;
  const bytes = await inflate(blob("maps"));
  const panels = data.panels.map((panel) => new EmbeddedWeights(panel, bytes, data.digits, blob));
  mount(Viewer, { target: document.getElementById("viewer")!, props: { data, panels } });
  document.body.dataset.ready = "yes";
}

const description = document.getElementById("description");
if (description) {
  start(description).catch((error: Error) => {
    const place = document.getElementById("failure")!;
    place.textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`;
    place.hidden = false;
  });
}
