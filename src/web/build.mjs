// Builds the pages: node build.mjs [FOLDER].  The folder gets index.html, app-HASH.js, app-HASH.css and LICENSES.txt.
// The hash is of the content, so that browsers may keep these files for ever.

import { build } from "esbuild";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "brokerd", "pages");
const SHIPPED = ["preact", "uplot"]; // what ends up in app.js

const made = await build({
  entryPoints: { app: join(here, "app.tsx") },
  outdir: out,
  entryNames: "[name]-[hash]",
  bundle: true,
  minify: true,
  write: false,
  metafile: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});

const packages = new Set(Object.keys(made.metafile.inputs).map((path) => /node_modules\/([^/]+)\//.exec(path)?.[1]));
packages.delete(undefined);
for (const name of packages) {
  if (!SHIPPED.includes(name)) throw new Error(`${name} is in app.js, but its licence is not in LICENSES.txt`);
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const names = {};
for (const file of made.outputFiles) {
  const name = file.path.slice(out.length + 1);
  names[name.split(".").pop()] = name;
  writeFileSync(join(out, name), file.contents);
}
const page = readFileSync(join(here, "index.html"), "utf8");
writeFileSync(join(out, "index.html"), page.replace("app.js", names.js).replace("app.css", names.css));

const licences = SHIPPED.map((name) => {
  const folder = join(here, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});
writeFileSync(join(out, "LICENSES.txt"), licences.join(`\n${"-".repeat(78)}\n\n`));
