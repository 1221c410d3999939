// What moves on a page of charts: values where the pointer is, series that are switched off, tables
// of numbers, light and dark. The drawings themselves are SVG from parley/charts.
"use strict";
window.parley = (() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Map(); // link -> names that are switched off there
  const sheet = new CSSStyleSheet();
  let choice = "auto";
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

  /** "light" or "dark", as now shown. */
  const theme = () => (choice === "auto" ? (system.matches ? "dark" : "light") : choice);

  /** Shows the page in "light", "dark" or as the system does ("auto"). */
  function setTheme(name) {
    choice = name;
    document.documentElement.dataset.theme = theme();
    document.dispatchEvent(new CustomEvent("parley-theme", { detail: theme() }));
  }
  system.addEventListener("change", () => choice === "auto" && setTheme("auto"));

  /** A number in few characters: 0.0123, 12.3, 12,345. */
  function number(value, unit = "") {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    const text =
      size !== 0 && (size < 1e-3 || size >= 1e7)
        ? value.toExponential(2)
        : size >= 1000
          ? Math.round(value).toLocaleString("en")
          : String(Number(value.toPrecision(unit === "%" ? 4 : 3)));
    return unit ? `${text} ${unit}` : text;
  }

  function make(tag, properties = {}, ...children) {
    const { dataset, ...rest } = properties;
    const element = Object.assign(document.createElement(tag), rest);
    Object.assign(element.dataset, dataset);
    element.append(...children);
    return element;
  }

  /** Buttons below `root` say what is switched off, also if they are new. */
  function refresh(root = document) {
    for (const button of root.querySelectorAll(".parley-legend button")) {
      const off = hidden.get(button.parentElement.dataset.link)?.has(button.dataset.series);
      button.setAttribute("aria-pressed", String(!off));
      button.title = `${off ? "show" : "hide"} ${button.dataset.series}`;
    }
  }

  function toggle(link, name) {
    const names = hidden.get(link) ?? new Set();
    if (!names.delete(name)) names.add(name);
    hidden.set(link, names);
    const quoted = (text) => `"${CSS.escape(text)}"`;
    const rules = [...hidden].flatMap(([of, all]) => [...all].map((one) => `[data-link=${quoted(of)}] [data-of=${quoted(one)}]`));
    sheet.replaceSync(rules.length ? `${rules.join(",")}{display:none}` : "");
    refresh();
  }

  const valuesOf = (figure) => (figure.values ??= JSON.parse(figure.querySelector("script")?.textContent ?? "null"));

  const cross = make("div", { className: "parley-cross", hidden: true });
  const tip = make("div", { className: "parley-tip", hidden: true });
  document.addEventListener("DOMContentLoaded", () => document.body.append(cross, tip));

  /** The values of a chart's curves where the pointer is. */
  function point(event) {
    const figure = event.target.closest?.(".parley-canvas")?.parentElement;
    const values = figure && valuesOf(figure);
    tip.hidden = cross.hidden = true;
    if (!values) return;
    const picture = figure.querySelector(".parley-canvas > svg").getBoundingClientRect();
    const [left, top, wide, high, width, , low, end, log] = values.frame;
    const scale = picture.width / width;
    const share = ((event.clientX - picture.left) / scale - left) / wide;
    if (share < -0.03 || share > 1.03) return;
    const [from, to] = log ? [Math.log(low), Math.log(end)] : [low, end];
    const placeOf = (x) => ((log ? Math.log(x) : x) - from) / (to - from);
    const off = hidden.get(figure.dataset.link);
    const rows = [];
    for (const one of values.series) {
      if (off?.has(one.name) || !one.x.length) continue;
      let best = 0;
      one.x.forEach((x, k) => Math.abs(placeOf(x) - share) < Math.abs(placeOf(one.x[best]) - share) && (best = k));
      rows.push({ one, best, away: Math.abs(placeOf(one.x[best]) - share) });
    }
    const away = Math.min(...rows.map((row) => row.away));
    const near = rows.filter((row) => row.away <= away + 0.02);
    if (!near.length || away > 0.1) return;
    const x = near.find((row) => row.away === away);
    const at = x.one.x[x.best];
    tip.replaceChildren(
      make("b", {}, `${values.x} ${number(at)}`),
      make("table", {}, ...near.map(({ one, best }) => {
        const [lower, upper] = [one.low[best], one.high[best]];
        const range = one.spread === "range" ? ` (${number(lower)} to ${number(upper)})` : ` ± ${number((upper - lower) / 2)}`;
        const figures = number(one.y[best]) + (upper > lower ? range : "") + (values.unit ? ` ${values.unit}` : "");
        return make("tr", {}, make("td", {}, one.name), make("td", {}, figures));
      })),
    );
    tip.hidden = cross.hidden = false;
    const across = picture.left + scale * (left + placeOf(at) * wide);
    Object.assign(cross.style, { left: `${across}px`, top: `${picture.top + scale * top}px`, height: `${scale * high}px` });
    const side = across + 14 + tip.offsetWidth < innerWidth ? across + 14 : Math.max(4, across - 14 - tip.offsetWidth);
    tip.style.left = `${side}px`;
    tip.style.top = `${Math.min(Math.max(event.clientY + 12, 4), innerHeight - tip.offsetHeight - 4)}px`;
  }

  /** The values for those who cannot hover, made when somebody asks for them. */
  function fill(details) {
    const { x, y, series } = valuesOf(details.parentElement);
    const rows = new Map();
    series.forEach((s, n) => s.x.forEach((at, i) => rows.set(at, (rows.get(at) ?? Array(series.length).fill(undefined)).with(n, s.y[i]))));
    const head = [x, ...series.map((s) => s.name)].map((name) => make("th", { scope: "col" }, name));
    const body = [...rows.keys()].sort((a, b) => a - b).map((at) => make("tr", {}, ...[at, ...rows.get(at)].map((v) => make("td", {}, number(v)))));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
    table.setAttribute("aria-label", `${y} over ${x}`);
    details.append(make("div", { className: "scroll", tabIndex: 0 }, table));
  }

  /** A button that changes between light and dark; `keep` is told what was chosen. */
  function themeButton(button, keep = () => {}) {
    const other = () => (theme() === "dark" ? "light" : "dark");
    const say = () => {
      button.textContent = other() === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", `Show in ${other()} colours`);
    };
    button.hidden = false;
    button.addEventListener("click", () => setTheme(other()));
    button.addEventListener("click", () => keep(theme()));
    document.addEventListener("parley-theme", say);
    say();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".parley-legend button");
    if (button) toggle(button.parentElement.dataset.link, button.dataset.series);
  });
  document.addEventListener("pointermove", point);
  document.addEventListener("scroll", () => (tip.hidden = cross.hidden = true), { capture: true, passive: true });
  document.addEventListener("toggle", ({ target }) => target.matches?.("details.numbers[open]") && !target.querySelector("table") && fill(target), true);
  return { theme, setTheme, themeButton, number, make, refresh };
})();
