// The theme, light or dark: the system's, until the user chooses one.

const KEY = "qkv-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

class Theme {
  dark = $state(false);

  constructor() {
    const stored = localStorage.getItem(KEY);
    this.set(stored ? stored === "dark" : system.matches);
    system.addEventListener("change", (event) => {
      if (!localStorage.getItem(KEY)) this.set(event.matches);
    });
  }

  private set(dark: boolean): void {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }

  toggle(): void {
    this.set(!this.dark);
    localStorage.setItem(KEY, this.dark ? "dark" : "light");
  }
}

export const theme = new Theme();
