// Charts of the report and of the live page: a plain description in, an ECharts chart out.
//
//   const chart = parley.lineChart(element, {title, x: {name}, y: {name, unit}, series: [...]});
//   chart.update(description);   // new data; what was switched off stays off
//   parley.setTheme("dark");     // all charts; "auto" follows the system
//
// A description is data only, so that Python can write it as JSON. Series are switched off by
// buttons above the chart (not on the canvas: they take the keyboard, and screen readers see them);
// charts that give the same `link` switch together.
import * as echarts from "echarts/core";
import { CustomChart, GraphChart, HeatmapChart, LineChart, LinesChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent,
  DataZoomInsideComponent,
  GridComponent,
  TooltipComponent,
  VisualMapComponent,
} from "echarts/components";
import { LabelLayout } from "echarts/features";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";
import palette from "../../parley/web/palette.json";

echarts.use([
  CustomChart, GraphChart, HeatmapChart, LineChart, LinesChart, ScatterChart, AriaComponent,
  GridComponent, DataZoomInsideComponent, TooltipComponent, VisualMapComponent, LabelLayout,
  CanvasRenderer, SVGRenderer,
]);

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
const DASHES = ["solid", [7, 4], [2, 3], [9, 3, 2, 3]];
const charts = new Set();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let choice = "auto";

/** "light" or "dark", as now shown. */
export function theme() {
  return choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
}

/** The theme's colours. */
export function colours() {
  return palette[theme()];
}

/** Shows all charts in "light", "dark" or as the system does ("auto"). */
export function setTheme(name) {
  choice = name;
  document.documentElement.dataset.theme = theme();
  charts.forEach((chart) => chart.render());
  document.dispatchEvent(new CustomEvent("parley-theme", { detail: theme() }));
}

dark.addEventListener("change", () => choice === "auto" && setTheme("auto"));
// Paper is white, and of another width: drawings scale with it.
window.addEventListener("beforeprint", () => {
  const before = choice;
  setTheme("light");
  for (const { chart } of charts) {
    chart?.getZr().flush(); // the next frame would come too late
    chart?.getDom().querySelector("svg")?.setAttribute("viewBox", `0 0 ${chart.getWidth()} ${chart.getHeight()}`);
  }
  window.addEventListener("afterprint", () => setTheme(before), { once: true });
});

/** A series' colour: the first eight differ by hue, the next by dashes. */
export function lineColour(slot) {
  const { lines } = colours();
  return lines[slot % lines.length];
}

/** A class's colour: ten that all readers can tell apart, else a graded scale. */
export function classColour(index, classes) {
  const scale = colours().classes;
  if (classes <= scale.length) return scale[index];
  const hue = 260 - (220 * index) / Math.max(classes - 1, 1);
  return `hsl(${hue} 55% ${theme() === "dark" ? 45 + (30 * index) / classes : 30 + (35 * index) / classes}%)`;
}

/** A number in few characters: 0.0123, 12.3, 12,345. */
export function number(value, unit = "") {
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

/** Text as HTML. */
export const escaped = (text) => echarts.format.encodeHTML(String(text));

class Chart {
  constructor(element, description, build) {
    this.element = element;
    this.build = build;
    this.hidden = new Set();
    element.classList.add("parley-chart");
    element.replaceChildren();
    this.legend = element.appendChild(document.createElement("div"));
    this.legend.className = "parley-legend";
    if (build) {
      this.canvas = element.appendChild(document.createElement("div"));
      this.canvas.className = "parley-canvas";
      this.canvas.setAttribute("role", "img");
      this.chart = echarts.init(this.canvas, null, { renderer: description.renderer ?? "svg" });
      this.observer = new ResizeObserver(() => this.resize());
      this.observer.observe(this.canvas);
    }
    charts.add(this);
    this.update(description);
  }

  /** Shows other data; what was switched off stays off. */
  update(description) {
    this.description = description;
    this.canvas?.setAttribute("aria-label", description.about ?? description.title ?? "chart");
    this.drawLegend();
    this.render();
  }

  render() {
    this.drawSwatches();
    if (!this.build) return;
    const shown = { ...this.description };
    if (shown.series) shown.series = shown.series.filter((s) => !this.hidden.has(s.name));
    const option = this.build(shown, colours(), this);
    this.chart.setOption(
      {
        backgroundColor: "transparent",
        animation: this.description.animation ?? false,
        textStyle: { fontFamily: FONT, color: colours().faint },
        aria: { enabled: false }, // the container's label says it, in one sentence
        ...option,
      },
      // A live chart keeps its tooltip and whatever moves; it never loses a part but series.
      this.description.live ? { replaceMerge: ["series"] } : { notMerge: true },
    );
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height || this.chart.isDisposed()) return;
    if (width === this.chart.getWidth() && height === this.chart.getHeight()) return;
    this.chart.resize({ width, height });
    if (this.description.nodes) this.render(); // symbols are as large as there is room for
  }

  /** Shows or hides a series, here and in the charts linked with this one. */
  toggle(name, shown = this.hidden.has(name)) {
    const { link } = this.description;
    const linked = link ? [...charts].filter((c) => c.description.link === link) : [this];
    for (const chart of linked) {
      if (shown) chart.hidden.delete(name);
      else chart.hidden.add(name);
      chart.drawLegend();
      chart.render();
    }
  }

  drawLegend() {
    const { series = [], legend = true } = this.description;
    const names = legend ? [...new Set(series.map((s) => s.name))] : [];
    const held = document.activeElement?.dataset?.series;
    const inside = this.legend.contains(document.activeElement);
    this.legend.replaceChildren(
      ...(names.length > 1 ? names : []).map((name) => {
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.series = name;
        button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        button.title = this.hidden.has(name) ? `show ${name}` : `hide ${name}`;
        button.append(document.createElement("i"), name);
        button.addEventListener("click", () => this.toggle(name));
        return button;
      }),
    );
    if (inside) [...this.legend.children].find((b) => b.dataset.series === held)?.focus();
    this.drawSwatches();
  }

  drawSwatches() {
    for (const button of this.legend.children) {
      const series = this.description.series.find((s) => s.name === button.dataset.series);
      const style = DASHES[(series.dash ?? 0) % DASHES.length] === "solid" ? "solid" : "dashed";
      button.firstChild.style.borderTop = `3px ${style} ${lineColour(series.slot ?? 0)}`;
    }
  }

  dispose() {
    this.observer?.disconnect();
    charts.delete(this);
    this.chart?.dispose();
    this.element.replaceChildren();
  }
}

function axis(about, ink, horizontal) {
  return {
    type: about.log ? "log" : "value",
    name: about.name,
    nameLocation: "middle",
    nameGap: horizontal ? 28 : 44,
    logBase: about.base,
    min: about.min,
    max: about.max,
    interval: about.interval,
    minInterval: about.integer ? 1 : undefined,
    scale: true,
    nameTextStyle: { color: ink.faint },
    axisLine: { show: horizontal, lineStyle: { color: ink.line } },
    axisTick: { show: false },
    splitLine: { show: !horizontal || about.log, lineStyle: { color: ink.line, opacity: 0.7 } },
    axisLabel: { color: ink.faint, hideOverlap: true, formatter: (v) => number(v) },
    axisPointer: { label: { show: false } },
  };
}

/** Round numbers around a range, so that no label stands at an odd place. */
function rounded(low, high, parts = 5) {
  const rough = (high - low || Math.abs(high) || 1) / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= rough * 0.999);
  const tidy = (value) => Number(value.toPrecision(12));
  return [tidy(Math.floor(low / step + 1e-9) * step), tidy(Math.ceil(high / step - 1e-9) * step), tidy(step)];
}

function range(about, series, key) {
  const values = series.flatMap((s) => [...s[key], ...(key === "y" ? [...(s.low ?? []), ...(s.high ?? [])] : [])]);
  const finite = values.filter((v) => Number.isFinite(v) && (!about.log || v > 0));
  if (!finite.length) return about;
  let low = finite[0];
  let high = finite[0];
  for (const v of finite) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (about.log) {
    // Below two decades the powers of ten are too few to read by.
    const base = high / low < 100 ? 2 : 10;
    const power = (v) => Math.log(v) / Math.log(base);
    return { ...about, base, min: base ** Math.floor(power(low) + 1e-9), max: base ** Math.ceil(power(high) - 1e-9) };
  }
  if (about.integer) return { ...about, min: low, max: low === high ? low + 1 : high };
  if (about.min !== undefined) [low, high] = [about.min, about.max];
  if (key === "x" && low > 0) low = 0;
  const [min, max, interval] = rounded(low, high);
  return { ...about, min, max: about.unit === "%" && max > 100 ? 100 : max, interval };
}

function frame(description, ink, xs, ys) {
  const x = range(description.x, xs, "x");
  const y = range(description.y, ys, "y");
  return {
    grid: { left: y.name ? 20 : 4, right: 16, top: 14, bottom: 8, outerBoundsMode: "same", outerBoundsContain: "all" },
    xAxis: axis(x, ink, true),
    yAxis: axis(y, ink, false),
  };
}

/** The look of all tooltips. */
export const tooltip = (ink) => ({
  confine: true,
  backgroundColor: ink.paper,
  borderColor: ink.line,
  textStyle: { color: ink.ink, fontFamily: FONT, fontSize: 13 },
  extraCssText: "box-shadow: 0 2px 10px rgb(0 0 0 / .18)",
});

const swatch = (colour) =>
  `<span style="display:inline-block;width:.7em;height:.7em;border-radius:50%;background:${colour}"></span>`;

function valueRow(series, index, unit) {
  const [low, high] = [series.low?.[index], series.high?.[index]];
  const spread = !(high > low)
    ? ""
    : series.spread === "range"
      ? ` (${number(low)} to ${number(high)})`
      : ` ± ${number((high - low) / 2)}`;
  return (
    `<tr><td>${swatch(lineColour(series.slot ?? 0))} ${escaped(series.name)}</td>` +
    `<td style="text-align:right;padding-left:1em;font-variant-numeric:tabular-nums">` +
    `${number(series.y[index])}${spread}${unit ? ` ${unit}` : ""}</td></tr>`
  );
}

function band(series, colour) {
  const rows = series.x.map((x, i) => [x, series.low[i], series.high[i]]);
  const known = rows.filter((row) => row.every(Number.isFinite));
  return {
    type: "custom",
    name: series.name,
    silent: true,
    clip: true,
    z: 1,
    data: known.length ? [known[0]] : [],
    // The axes' range must count all of it; one item draws the whole band.
    encode: { x: 0, y: [1, 2] },
    renderItem: (_, api) => ({
      type: "polygon",
      shape: {
        points: [
          ...known.map(([x, low]) => api.coord([x, low])),
          ...[...known].reverse().map(([x, , high]) => api.coord([x, high])),
        ],
      },
      style: { fill: colour, opacity: 0.16 },
    }),
  };
}

function nearest(sorted, value) {
  let best = 0;
  sorted.forEach((x, i) => {
    if (Math.abs(x - value) < Math.abs(sorted[best] - value)) best = i;
  });
  return best;
}

function lineOption(description, ink) {
  const { series, x, y } = description;
  const lines = series.map((s) => {
    const colour = lineColour(s.slot ?? 0);
    return {
      type: "line",
      name: s.name,
      data: s.x.map((at, i) => [at, y.log && !(s.y[i] > 0) ? null : s.y[i]]),
      showSymbol: s.x.length === 1,
      symbolSize: 7,
      connectNulls: false,
      lineStyle: { color: colour, width: 2, type: DASHES[(s.dash ?? 0) % DASHES.length] },
      itemStyle: { color: colour },
      emphasis: { disabled: true },
      z: 3,
    };
  });
  const floor = (value) => (y.log && !(value > 0) ? null : value);
  const bands = series
    .filter((s) => s.low && s.x.length > 1)
    .map((s) => band({ ...s, low: s.low.map(floor), high: s.high.map(floor) }, lineColour(s.slot ?? 0)));
  return {
    ...frame(description, ink, series, series),
    ...(description.zoom ? { dataZoom: [{ type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }] } : {}),
    tooltip: {
      ...tooltip(ink),
      trigger: "axis",
      axisPointer: { type: "line", lineStyle: { color: ink.faint }, snap: true },
      formatter: (items) => {
        const at = (Array.isArray(items) ? items[0] : items).axisValue;
        const rows = series
          .map((s) => [s, nearest(s.x, at)])
          .filter(([s, i]) => s.x.length && Math.abs(s.x[i] - at) <= (s.x.at(-1) - s.x[0]) / 50 + 1e-9)
          .map(([s, i]) => valueRow(s, i, y.unit));
        return `<b>${escaped(x.name)} ${number(at)}</b><table>${rows.join("")}</table>`;
      },
    },
    series: [...bands, ...lines],
  };
}

function scatterOption(description, ink) {
  const { series, x, y } = description;
  return {
    ...frame(description, ink, series, series),
    tooltip: {
      ...tooltip(ink),
      trigger: "item",
      formatter: ({ seriesIndex, dataIndex }) => {
        const s = series[seriesIndex];
        const note = s.notes?.[dataIndex] ? `<br>${escaped(s.notes[dataIndex])}` : "";
        return (
          `<b>${escaped(s.name)}</b>${note}<br>${escaped(x.name)}: ${number(s.x[dataIndex], x.unit)}` +
          `<br>${escaped(y.name)}: ${number(s.y[dataIndex], y.unit)}`
        );
      },
    },
    series: series.map((s) => ({
      type: "scatter",
      name: s.name,
      symbolSize: 11,
      data: s.x.map((at, i) => [at, s.y[i]]),
      itemStyle: { color: lineColour(s.slot ?? 0), borderColor: ink.paper, borderWidth: 1, opacity: 0.9 },
    })),
  };
}

function heatOption(description, ink) {
  const { values, x, y } = description;
  const cells = values.flatMap((row, j) => row.map((value, i) => [i, j, value]));
  const finite = cells.map((c) => c[2]).filter(Number.isFinite);
  const top = description.max ?? Math.max(...finite, 0);
  const low = description.min ?? 0;
  const side = {
    type: "category",
    nameLocation: "middle",
    nameTextStyle: { color: ink.faint },
    axisLine: { show: false },
    axisTick: { show: false },
    axisLabel: { color: ink.faint, hideOverlap: true },
  };
  const few = x.names.length * y.names.length <= 150;
  return {
    grid: { left: 8, right: 12, top: 8, bottom: 8, outerBoundsMode: "same", outerBoundsContain: "all" },
    xAxis: { ...side, data: x.names, name: x.name, nameGap: 28, splitArea: { show: false } },
    yAxis: { ...side, data: y.names, name: y.name, nameGap: 36, inverse: true },
    visualMap: { show: false, min: low, max: top > low ? top : low + 1, inRange: { color: ink.heat } },
    tooltip: {
      ...tooltip(ink),
      formatter: ({ value: [i, j, value] }) =>
        `${escaped(y.name)} <b>${escaped(y.names[j])}</b>, ${escaped(x.name)} <b>${escaped(x.names[i])}</b><br>` +
        number(value, description.unit),
    },
    series: [
      {
        type: "heatmap",
        data: cells.map((c) => ({
          value: c,
          label: { color: (c[2] - low) / (top - low || 1) > 0.45 === (theme() === "light") ? "#FFFFFF" : "#111820" },
        })),
        label: { show: few, fontSize: 11, formatter: ({ value }) => (Number.isFinite(value[2]) && (value[2] || description.zeros) ? number(value[2]) : "") },
        itemStyle: { borderColor: ink.paper, borderWidth: few ? 1 : 0 },
        emphasis: { itemStyle: { borderColor: ink.ink, borderWidth: 1 } },
      },
    ],
  };
}

function pie(shares, classes, centre, ink) {
  const total = shares.reduce((sum, share) => sum + share.value, 0) || 1;
  let from = 0;
  const slices = shares
    .filter((share) => share.value > 0)
    .map((share) => {
      const to = from + share.value / total;
      const point = (t) => `${50 + 48 * Math.sin(2 * Math.PI * t)} ${50 - 48 * Math.cos(2 * Math.PI * t)}`;
      const fill = classColour(share.index, classes);
      const path =
        to - from > 0.9999
          ? `<circle cx="50" cy="50" r="48" fill="${fill}"/>`
          : `<path d="M50 50L${point(from)}A48 48 0 ${to - from > 0.5 ? 1 : 0} 1 ${point(to)}Z" fill="${fill}"/>`;
      from = to;
      return path;
    });
  const picture =
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100" width="100" height="100">` +
    `<circle cx="50" cy="50" r="49" fill="${ink.node}"/>${slices.join("")}` +
    `<circle cx="50" cy="50" r="27" fill="${centre}"/></svg>`;
  return `image://data:image/svg+xml,${encodeURIComponent(picture)}`;
}

// nodes: [{name, x, y, text, shares: [{index, value}], value}], edges: [{from, to, weight, oneWay}]
function graphOption(description, ink, self) {
  const { nodes, edges, classes = [] } = description;
  const spans = ["x", "y"].map((k) => Math.max(...nodes.map((n) => n[k])) - Math.min(...nodes.map((n) => n[k])));
  let apart = Infinity;
  nodes.forEach((a, i) =>
    nodes.slice(i + 1).forEach((b) => (apart = Math.min(apart, Math.hypot(a.x - b.x, a.y - b.y)))),
  );
  const [width, height] = [self.canvas.clientWidth || 500, self.canvas.clientHeight || 400];
  const scale = Math.min((width - 90) / (spans[0] || 1), (height - 90) / (spans[1] || 1));
  const size = Math.max(8, Math.min(46, 0.62 * scale * (Number.isFinite(apart) ? apart : 1)));
  const heaviest = Math.max(...edges.map((e) => e.weight ?? 1), 1e-9);
  const valued = nodes.some((n) => Number.isFinite(n.value));
  const thin = Math.min(1, Math.max(0.25, (6 * nodes.length) / Math.max(edges.length, 1)));
  const option = {
    tooltip: {
      ...tooltip(ink),
      formatter: ({ dataType, data }) =>
        dataType === "edge"
          ? `${escaped(nodes[data.source].name)} → ${escaped(nodes[data.target].name)}` +
            (data.weight ? `<br>weight ${number(data.weight)}` : "")
          : `<b>${escaped(data.name)}</b>${data.text ? `<br>${data.text.split("\n").map(escaped).join("<br>")}` : ""}`,
    },
    series: [
      {
        type: "graph",
        layout: "none",
        preserveAspect: true,
        left: 45, right: 45, top: 45, bottom: 45,
        roam: false,
        cursor: "default",
        edgeSymbolSize: 7,
        data: nodes.map((n, i) => ({
          name: n.name,
          // In pixels: ECharts rounds the ends of lines to whole units.
          x: n.x * scale,
          y: -n.y * scale,
          text: n.text,
          value: n.value,
          symbol: n.shares ? pie(n.shares, classes.length, ink.paper, ink) : "circle",
          symbolSize: size,
          itemStyle: valued ? { borderColor: ink.ink, borderWidth: 1 } : { color: ink.node, borderColor: ink.ink, borderWidth: 1 },
          label: {
            show: size >= 16,
            formatter: String(n.label ?? i),
            color: valued ? "#111820" : ink.ink,
            fontSize: Math.min(13, size * 0.34),
            position: "inside",
          },
        })),
        links: edges.map((e) => ({
          source: e.from,
          target: e.to,
          weight: e.weight,
          symbol: e.oneWay ? ["none", "arrow"] : ["none", "none"],
          lineStyle: { color: ink.edge, width: Math.max(0.6, 3 * thin * ((e.weight ?? 1) / heaviest)), opacity: 0.8, curveness: e.curve ?? 0 },
        })),
        emphasis: { scale: 1.1 },
      },
    ],
  };
  if (valued) {
    const values = nodes.map((n) => n.value).filter(Number.isFinite);
    option.visualMap = {
      show: false,
      min: description.min ?? Math.min(...values),
      max: description.max ?? Math.max(...values, 1e-12),
      seriesIndex: 0,
      inRange: { color: description.scale ?? ["#5CC9A0", "#E5B95C", "#E4685F"] },
    };
  }
  return option;
}

/** Curves over epochs, bytes or time; `low` and `high` of a series draw a band. */
export const lineChart = (element, description) => new Chart(element, description, lineOption);
/** Points: `x`, `y` and `notes` of every series. */
export const scatterChart = (element, description) => new Chart(element, description, scatterOption);
/** A matrix `values[row][column]` with names on both sides. */
export const heatMap = (element, description) => new Chart(element, description, heatOption);
/** The buttons alone, for charts that are too small to have them: those with the same `link`. */
export const legend = (element, description) => new Chart(element, description, null);
/** Who talks with whom: agents at given places, as pies of their classes or coloured by a value. */
export const graphChart = (element, description) => new Chart(element, description, graphOption);
/** Any other: `build(description, colours, chart)` makes the option. */
export const customChart = (element, description, build) => new Chart(element, description, build);

const KINDS = { line: lineChart, scatter: scatterChart, heat: heatMap, graph: graphChart, legend };

/** The chart of a description that names its kind: line, scatter, heat, graph or legend. */
export const draw = (element, description) => KINDS[description.kind](element, description);
