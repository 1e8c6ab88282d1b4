// The current page and its state, both in the address after '#', so that a link restores what was shown.

export type State = Record<string, string>;

class Route {
  page = $state("playground");
  state = $state<State>({});
  private hash = ""; // the address as it was last read or written

  constructor() {
    this.read();
    window.addEventListener("hashchange", () => this.read());
  }

  private read(): void {
    this.hash = location.hash;
    const [page, query] = this.hash.replace(/^#\/?/, "").split("?");
    this.page = page || "playground";
    this.state = Object.fromEntries(new URLSearchParams(query ?? ""));
  }

  // Writes the page's state into the address, without a new entry in the browser's history. Does nothing if the
  // address has changed already, because the user is going to another page.
  keep(state: State): void {
    if (location.hash !== this.hash) return;
    const kept = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== ""));
    const query = new URLSearchParams(kept).toString();
    history.replaceState(null, "", `#/${this.page}${query ? `?${query}` : ""}`);
    this.hash = location.hash;
  }
}

export const route = new Route();
