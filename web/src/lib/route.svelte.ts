// Where the person is: a room, and its state, both in the address after '#', so that a link restores what was seen.

export type State = Record<string, string>;

function parts(): [string, string | undefined] {
  const [room, query] = location.hash.replace(/^#\/?/, "").split("?");
  return [room || "playground", query];
}

class Place {
  room = $state("playground");
  state = $state<State>({});

  constructor() {
    this.read();
    window.addEventListener("hashchange", () => this.read());
  }

  private read(): void {
    const [room, query] = parts();
    this.room = room;
    this.state = Object.fromEntries(new URLSearchParams(query ?? ""));
  }

  // Keeps the state of the room in the address without a new entry in the browser's history. Where the address names
  // another room already, the person is on the way there, and nothing is kept.
  keep(state: State): void {
    if (parts()[0] !== this.room) return;
    const shown = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== ""));
    const query = new URLSearchParams(shown).toString();
    history.replaceState(null, "", `#/${this.room}${query ? `?${query}` : ""}`);
  }
}

export const place = new Place();
