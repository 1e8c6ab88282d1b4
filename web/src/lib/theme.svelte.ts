// Light or dark: as the system says, until the person says otherwise.

const KEY = "qkv-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

class Theme {
  dark = $state(false);

  constructor() {
    const kept = localStorage.getItem(KEY);
    this.set(kept ? kept === "dark" : system.matches);
    system.addEventListener("change", (event) => {
      if (!localStorage.getItem(KEY)) this.set(event.matches);
    });
  }

  private set(dark: boolean): void {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }

  turn(): void {
    this.set(!this.dark);
    localStorage.setItem(KEY, this.dark ? "dark" : "light");
  }
}

export const theme = new Theme();
