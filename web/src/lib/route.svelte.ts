// Where the person is: a room, and its state, both in the address after '#', so that a link restores what was seen.

export type State = Record<string, string>;

class Place {
  room = $state("playground");
  state = $state<State>({});
  private known = ""; // the address as it was last read or written

  constructor() {
    this.read();
    window.addEventListener("hashchange", () => this.read());
  }

  private read(): void {
    this.known = location.hash;
    const [room, query] = this.known.replace(/^#\/?/, "").split("?");
    this.room = room || "playground";
    this.state = Object.fromEntries(new URLSearchParams(query ?? ""));
  }

  // Keeps the state of the room in the address without a new entry in the browser's history. Where the address has
  // changed already, the person is on the way to another place, and nothing is kept.
  keep(state: State): void {
    if (location.hash !== this.known) return;
    const shown = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== ""));
    const query = new URLSearchParams(shown).toString();
    history.replaceState(null, "", `#/${this.room}${query ? `?${query}` : ""}`);
    this.known = location.hash;
  }
}

export const place = new Place();
