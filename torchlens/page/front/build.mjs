// Builds page.js and page.css from src, and writes the licences of what is bundled.
//
// Rule  The header of each built file has a digest of everything that it was built from, so that a test can tell,
//       without node, that what is committed was built from what is committed.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const OTHERS = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"];
const sources = [...OTHERS, ...readdirSync("src").map((name) => `src/${name}`)].sort();

const digest = createHash("sha256");
for (const name of sources) {
  const text = readFileSync(name);
  digest.update(`${name} ${text.length}\n`).update(text);
}
const banner = `/* Built from src by "npm ci && npm run build"; change the sources. sha256 of them: ${digest.digest("hex")} */`;

const made = await build({
  entryPoints: { page: "src/main.ts" },
  bundle: true,
  outdir: ".",
  format: "iife",
  target: "es2022",
  minify: true,
  charset: "ascii",
  legalComments: "none",
  metafile: true,
  banner: { js: banner, css: banner },
  logLevel: "warning",
});

const bundled = new Set();
for (const name of Object.keys(made.metafile.inputs)) {
  const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(name);
  if (found) bundled.add(found[1]);
}
const parts = ["page.js has parts of these packages, each under its licence.\n"];
for (const name of [...bundled].sort()) {
  const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  const file = readdirSync(`node_modules/${name}`).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name} ships no licence`);
  const text = readFileSync(`node_modules/${name}/${file}`, "utf8").trim();
  parts.push(`${"-".repeat(78)}\n${name} ${version} (${license})\n\n${text}\n`);
}
writeFileSync("THIRD_PARTY", parts.join("\n"));
