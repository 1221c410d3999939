// Builds web/src into parley/web, which is committed: users of the wheel need no Node.
//
// Every built file begins with the hash of all sources, by which a test tells whether it is stale.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "parley", "web");
const echarts = join(here, "node_modules", "echarts");

// tests/test_web.py computes the same: names in order, each with its content.
const sources = [
  "../parley/web/palette.json",
  "build.mjs",
  "package-lock.json",
  "package.json",
  ...readdirSync(join(here, "src")).map((name) => `src/${name}`),
].sort();
const hash = createHash("sha256");
for (const name of sources) {
  hash.update(`${name}\n`).update(readFileSync(join(here, name)));
}
const { version } = JSON.parse(readFileSync(join(echarts, "package.json"), "utf8"));
const banner = `/* sources ${hash.digest("hex")} */`;

const common = { bundle: true, minify: true, charset: "utf8", legalComments: "none", absWorkingDir: here };
await esbuild.build({
  ...common,
  entryPoints: ["src/charts.js"],
  outfile: join(out, "charts.js"),
  format: "iife",
  globalName: "parley",
  target: "es2020",
  banner: { js: `${banner}\n/* Contains Apache ECharts ${version}, Apache-2.0: licences in THIRD-PARTY-LICENSES.txt. */` },
});
// Pages use the global `parley` of charts.js, so that its charts are shipped once.
for (const name of readdirSync(join(here, "src"))) {
  if (name === "charts.js" || name.startsWith("_")) continue;
  const script = name.endsWith(".js");
  await esbuild.build({
    ...common,
    entryPoints: [`src/${name}`],
    outfile: join(out, name),
    ...(script ? { format: "iife", target: "es2020", banner: { js: banner } } : { banner: { css: banner } }),
  });
}
// What is bundled, each with its licence.
const licences = ["echarts/NOTICE", "echarts/LICENSE", "zrender/LICENSE", "tslib/LICENSE.txt"];
const texts = licences.map((name) => `${name}\n\n${readFileSync(join(here, "node_modules", name), "utf8").trim()}\n`);
writeFileSync(join(out, "THIRD-PARTY-LICENSES.txt"), texts.join(`\n${"=".repeat(80)}\n\n`));
