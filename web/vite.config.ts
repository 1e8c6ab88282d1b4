import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The studio's page, which ships inside the Python package. File names have no hashes, so that a rebuilt page can be compared file by file.
export default defineConfig({
  base: "/",
  logLevel: "warn",
  plugins: [svelte()],
  build: {
    outDir: process.env.QKV_PAGE ?? "../src/qkv/studio/page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
});
