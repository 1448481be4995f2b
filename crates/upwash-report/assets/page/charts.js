// Shared building blocks: data, colors, number formats, and charts that are drawn incrementally.

// The list of charts and the runs to draw. The live page receives its run from the server.
const given = JSON.parse(document.getElementById("data").textContent);
const isLive = given.runs === null;
let runs = given.runs || [];
const main = document.getElementById("main");
// The Okabe-Ito palette, which is distinguishable with color vision deficiency. Further lines repeat it dashed.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a8a00", "#7a7f87"];
// The same hues, dark enough on a white background.
const DARKER = ["#0072b2", "#a87000", "#00805c", "#b0578a", "#c05400", "#2b86bd", "#717100", "#6b7078"];
const DASHES = ["solid", "dashed", "dotted"];
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !isPrinted();
const isPrinted = () => matchMedia("print").matches;
const style = (index) => ({
  color: (isDark() ? COLORS : DARKER)[index % COLORS.length],
  type: DASHES[Math.floor(index / COLORS.length) % DASHES.length],
});
let charts = [];
const nameRuns = () => {
  const names = new Map();
  runs.forEach((run) => {
    const seen = names.get(run.name) || 0;
    names.set(run.name, seen + 1);
    run.label = seen ? `${run.name} (${seen + 1})` : run.name;
  });
};

const make = (tag, parent, text, className) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  parent.append(element);
  return element;
};
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(2)} %`);
const short = (value) => {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
};
const known = (values) => values.filter((value) => value !== null && value !== undefined);
const mean = (values) => (known(values).length ? known(values).reduce((a, b) => a + b, 0) / known(values).length : null);
const worst = (values) => (known(values).length ? Math.min(...known(values)) : null);

const svg = (instance) => instance.getDataURL({ type: "svg", backgroundColor: color("--paper") });
const resized = new ResizeObserver((changes) => changes.forEach((change) => charts.find((entry) => entry.element === change.target)?.instance?.resize()));
// A chart is rebuilt from its options function when the color scheme changes. Its data changes with epochs or with
// rounds.
const chart = (parent, id, options, { changes = "epochs" } = {}) => {
  const element = make("div", parent, undefined, "chart");
  element.id = id;
  const entry = { element, options, changes, instance: null, picture: () => svg(drawn(entry)) };
  resized.observe(element);
  addPicture(parent, id, entry);
};
// Every picture is updated with its run and can be saved as SVG.
const addPicture = (parent, id, entry) => {
  charts.push(entry);
  const save = make("button", parent, "SVG", "save");
  save.title = "Save this chart as SVG";
  save.setAttribute("aria-label", `Save ${id} as SVG`);
  save.addEventListener("click", () => {
    const link = make("a", document.body);
    link.href = entry.picture();
    link.download = `${id}.svg`;
    link.click();
    link.remove();
  });
  waiting.push(entry);
};
// Draws the charts from top to bottom in short slices, so that the first ones appear early and the page stays responsive.
let waiting = [];
const drawSome = (budget = 50) => {
  const began = performance.now();
  while (waiting.length && performance.now() - began < budget) draw(waiting.shift());
  if (waiting.length) setTimeout(drawSome);
  else performance.mark("drawn");
};
const drawn = (entry) => {
  if (!entry.instance) draw(entry);
  return entry.instance;
};
const draw = (entry) => {
  if (entry.update) { entry.update(); return; }
  const selected = entry.instance && entry.instance.getOption().legend?.[0]?.selected;
  if (entry.instance) entry.instance.dispose();
  entry.instance = echarts.init(entry.element, null, { renderer: "svg" });
  const options = entry.options();
  if (selected && options.legend) options.legend.selected = selected;
  entry.instance.setOption(options);
  // A zoomed range keeps its epochs while new ones arrive.
  entry.instance.on("datazoom", () => {
    const zoom = entry.instance.getOption().dataZoom?.[0];
    if (zoom) entry.zoom = zoom.start > 0.5 || zoom.end < 99.5 ? { startValue: zoom.startValue, endValue: zoom.endValue } : null;
  });
  keepZoom(entry);
};
const keepZoom = (entry) => {
  if (entry.zoom) entry.instance.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, ...entry.zoom }, { silent: true });
};
// Updates the data. A chart under the pointer is updated less often, so that its tooltip stays readable.
const refresh = (entry) => {
  if (entry.update) { entry.update(); return true; }
  const now = performance.now();
  if (!entry.instance || (entry.element.matches(":hover") && now - (entry.refreshed || 0) < 3000)) return false;
  entry.refreshed = now;
  const zoom = entry.zoom;
  entry.instance.dispatchAction({ type: "hideTip" });
  entry.instance.setOption(entry.options());
  entry.zoom = zoom;
  keepZoom(entry);
  return true;
};
const frame = (x, series, more = {}) => {
  const ink = color("--ink"), soft = color("--soft"), line = color("--line");
  const axis = { nameTextStyle: { color: soft }, axisLabel: { color: soft }, axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } } };
  return {
    animation: false,
    textStyle: { color: ink, fontFamily: "system-ui, sans-serif" },
    aria: { enabled: true, label: { description: more.about || `Lines over ${x}. The table on this page has the final values.` } },
    tooltip: { trigger: "axis", confine: true, enterable: true, extraCssText: "max-height: 300px; overflow-y: auto;", backgroundColor: color("--paper"), borderColor: line, textStyle: { color: ink }, valueFormatter: more.format || short },
    legend: { type: isPrinted() ? "plain" : "scroll", top: 0, left: 4, right: 8, itemWidth: 22, itemHeight: 10, itemGap: 8, textStyle: { color: ink }, pageTextStyle: { color: soft }, pageIconColor: soft, data: more.legend },
    grid: { left: 58, right: 18, top: isPrinted() ? 38 + 20 * Math.floor((more.legend || []).length / 9) : 38, bottom: isPrinted() ? 46 : 74 },
    dataZoom: [{ type: "inside" }, { type: "slider", show: !isPrinted(), height: 16, bottom: 8, showDataShadow: false, borderColor: line, textStyle: { color: soft } }],
    xAxis: { ...axis, type: "value", minInterval: more.from === undefined ? 1 : 0, axisPointer: { label: { precision: more.from === undefined ? 0 : 2, formatter: ({ value }) => `${x} ${short(value)}` } }, name: x, nameLocation: "middle", nameGap: 26, min: more.from ?? "dataMin", max: "dataMax", splitLine: { show: false }, axisLabel: { ...axis.axisLabel, hideOverlap: true, showMinLabel: true, showMaxLabel: false } },
    yAxis: { ...axis, type: more.log ? "log" : "value", scale: true, axisLabel: { ...axis.axisLabel, formatter: more.format || short } },
    series,
  };
};
const lines = (name, points, index, more = {}) => ({
  name, type: "line", data: points, symbol: points.length < 3 ? "circle" : "none", symbolSize: 5, connectNulls: true,
  lineStyle: { width: 1.5, ...style(index), ...more.line }, itemStyle: { color: style(index).color, ...more.item }, ...more.series,
});
const section = (title, note, kind = "grid") => {
  make("h2", main, title);
  if (note) make("p", main, note, "note");
  return make("div", main, undefined, kind);
};
const panel = (grid, run, title) => {
  const element = make("section", grid, undefined, "panel");
  if (title) make("h3", element, title);
  if (run) { make("h3", element, run.label); make("p", element, `${run.algorithm} on ${run.graph_name}`, "caption"); }
  return element;
};
