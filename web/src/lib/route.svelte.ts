// Where the person is: a room, and its state, both in the address after '#', so that a link restores what was seen.

export type State = Record<string, string>;

class Place {
  room = $state("playground");
  state = $state<State>({});

  constructor() {
    this.read();
    window.addEventListener("hashchange", () => this.read());
  }

  private read(): void {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    this.room = path || "playground";
    this.state = Object.fromEntries(new URLSearchParams(query ?? ""));
  }

  // Keeps the state of the room in the address without a new entry in the browser's history.
  keep(state: State): void {
    const shown = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== ""));
    const query = new URLSearchParams(shown).toString();
    history.replaceState(null, "", `#/${this.room}${query ? `?${query}` : ""}`);
  }
}

export const place = new Place();
