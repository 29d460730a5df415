import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The built files are committed (crates/ui/dist), so that building the binary needs no Node. Their names don't change with
// their content: the server sends an ETag.
const names = { entryFileNames: "[name].js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" };

export default defineConfig({
  base: "/ui/",
  plugins: [svelte({ compilerOptions: { fragments: "tree", css: "external" } })],
  build: {
    outDir: "../crates/ui/dist",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: { output: names },
  },
  worker: { format: "es", rollupOptions: { output: names } },
  server: { proxy: { "/v1": "http://127.0.0.1:7400" } },
});
