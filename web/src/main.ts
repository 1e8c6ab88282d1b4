// Entry point of the studio: mounts App.svelte.
import { mount } from "svelte";

import App from "./App.svelte";
import "./viewer/theme.css";
import "./style.css";

export default mount(App, { target: document.getElementById("page")! });
