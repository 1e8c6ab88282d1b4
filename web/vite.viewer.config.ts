import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The viewer of exported attention pages: one script and one style sheet, which qkv.interp.viewer.page writes into the HTML file.
export default defineConfig({
  logLevel: "warn",
  plugins: [svelte()],
  publicDir: false,
  build: {
    outDir: process.env.QKV_VIEWER ?? "../src/qkv/interp/viewer/static",
    emptyOutDir: true,
    target: "es2022",
    lib: { entry: "src/viewer/exported/main.ts", formats: ["iife"], name: "qkvViewer", fileName: () => "viewer.js", cssFileName: "viewer" },
  },
});
