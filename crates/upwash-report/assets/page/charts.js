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
// Labels of axes: without trailing zeros.
const shortPercent = (part) => `${+(100 * part).toFixed(2)} %`;
const short = (value) => {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2).replace(/\.?0+e/, "e") : String(+value.toPrecision(4));
};
const span = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${+seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
};
const bytes = (gigabytes) => {
  if (gigabytes === null || gigabytes === undefined) return "–";
  return gigabytes < 1 ? `${+(1000 * gigabytes).toPrecision(3)} MB` : `${+gigabytes.toPrecision(4)} GB`;
};
const known = (values) => values.filter((value) => value !== null && value !== undefined);
const mean = (values) => (known(values).length ? known(values).reduce((a, b) => a + b, 0) / known(values).length : null);
const worst = (values) => (known(values).length ? Math.min(...known(values)) : null);

const resized = new ResizeObserver((changes) => changes.forEach((change) => charts.find((entry) => entry.element === change.target)?.instance?.resize()));
// A chart is rebuilt from its options function when the color scheme changes. Its data changes with epochs or with
// rounds.
const chart = (parent, id, options, { changes = "epochs", lead = "", range = null, comparesRuns = false } = {}) => {
  const legend = make("div", parent, undefined, "legend");
  const element = make("div", parent, undefined, "chart");
  element.id = id;
  const entry = { element, legend, lead, range, comparesRuns, options, changes, instance: null, hidden: comparesRuns ? hiddenRuns : new Set(), picture: () => picture(entry) };
  if (range) addRangeButton(entry);
  resized.observe(element);
  listen(entry);
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
// Accuracy axes may start above the first epochs. The button shows these, in all charts.
const addRangeButton = (entry) => {
  entry.rangeButton = make("button", entry.legend, "Full range", "range");
  entry.rangeButton.hidden = true;
  entry.rangeButton.title = "The axis starts above the first epochs: show them in all charts";
  entry.rangeButton.addEventListener("click", () => {
    isFull = !isFull;
    charts.filter((other) => other.range && other.instance).forEach(draw);
  });
};
const updateRangeButton = ({ range, rangeButton }) => {
  if (!rangeButton) return;
  rangeButton.hidden = !range().isCut;
  rangeButton.setAttribute("aria-pressed", String(isFull));
};
// A picture of a chart, with the legend that the page shows beside it.
const picture = (entry) => {
  const names = (entry.options().legend.data || []).map((name) => name.length * 7 + 38);
  const rows = Math.ceil(names.reduce((sum, width) => sum + width, 0) / 620);
  const instance = echarts.init(null, null, { renderer: "svg", ssr: true, width: 680, height: 380 + 20 * rows });
  const options = entry.options();
  Object.assign(options.legend, { show: true, type: "plain", selected: Object.fromEntries([...entry.hidden].map((name) => [name, false])) });
  options.grid.top = 20 + 20 * rows;
  options.backgroundColor = color("--paper");
  instance.setOption(options);
  const text = instance.renderToSVGString();
  instance.dispose();
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
};
// Draws the charts from top to bottom in short slices, so that the first ones appear early and the page stays responsive.
let waiting = [];
const drawSome = (budget = 50) => {
  const began = performance.now();
  while (waiting.length && performance.now() - began < budget) draw(waiting.shift());
  if (waiting.length) setTimeout(drawSome);
  else performance.mark("drawn");
};
const draw = (entry) => {
  if (entry.update) { entry.update(); return; }
  if (entry.instance) entry.instance.dispose();
  entry.instance = echarts.init(entry.element, null, { renderer: "svg" });
  const options = entry.options();
  options.legend.selected = Object.fromEntries([...entry.hidden].map((name) => [name, false]));
  entry.instance.setOption(options);
  fillLegend(entry, options);
  updateRangeButton(entry);
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
// A legend consists of buttons, which wrap and which a keyboard reaches.
const legendButton = (parent, text, { color: lineColor, type }, isHidden, toggle) => {
  const button = make("button", parent, text, "line");
  button.style.setProperty("--line-color", lineColor);
  button.style.setProperty("--line-style", type);
  button.setAttribute("aria-pressed", String(!isHidden));
  button.addEventListener("click", toggle);
  return button;
};
const toggle = (entry, name) => {
  const isHidden = entry.hidden.delete(name) ? false : Boolean(entry.hidden.add(name));
  const shown = charts.filter((other) => other.instance && other.hidden === entry.hidden);
  shown.forEach((other) => other.instance.dispatchAction({ type: isHidden ? "legendUnSelect" : "legendSelect", name }));
  return isHidden;
};
const fillLegend = (entry, options) => {
  entry.legend.replaceChildren();
  if (!entry.comparesRuns) {
    entry.legend.setAttribute("role", "group");
    entry.legend.setAttribute("aria-label", "Lines of this chart");
    if (entry.lead) make("span", entry.legend, entry.lead);
    (options.legend.data || []).forEach((name) => {
      const series = options.series.find((one) => one.name === name);
      const text = entry.lead && name.startsWith(`${entry.lead} `) ? name.slice(entry.lead.length + 1) : name;
      const button = legendButton(entry.legend, text, series.lineStyle, entry.hidden.has(name), () => {
        button.setAttribute("aria-pressed", String(!toggle(entry, name)));
      });
      button.title = name;
    });
  }
  if (entry.rangeButton) entry.legend.append(entry.rangeButton);
};
// A run has the same color in all charts that compare runs. Its button, in the summary and above each group of charts,
// hides it in all of them.
const hiddenRuns = new Set();
const runButton = (parent, run) => {
  const index = runs.indexOf(run);
  const button = legendButton(parent, run.label, style(index), hiddenRuns.has(run.label), () => {
    const isHidden = toggle({ hidden: hiddenRuns }, run.label);
    document.querySelectorAll(`button.line[data-run="${index}"]`).forEach((other) => other.setAttribute("aria-pressed", String(!isHidden)));
  });
  button.dataset.run = index;
};
const runLegend = (parent) => {
  if (runs.length < 2) return;
  const legend = make("div", parent, undefined, "legend");
  legend.setAttribute("role", "group");
  legend.setAttribute("aria-label", "Runs");
  runs.forEach((run) => runButton(legend, run));
};
// Zooming: the bar appears with the pointer or the focus, and keys move and scale the range.
const listen = (entry) => {
  const { element } = entry;
  element.tabIndex = 0;
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", "Chart. Plus and minus zoom, the arrow keys move, 0 shows everything.");
  const showBar = (show) => {
    if (!entry.instance || entry.showsBar === show) return;
    entry.showsBar = show;
    entry.instance.setOption({ dataZoom: [{}, { show }] });
  };
  const leave = () => { if (!element.matches(":hover") && document.activeElement !== element) showBar(Boolean(entry.zoom)); };
  ["mouseenter", "focus"].forEach((name) => element.addEventListener(name, () => showBar(true)));
  ["mouseleave", "blur"].forEach((name) => element.addEventListener(name, leave));
  element.addEventListener("keydown", (event) => {
    const zoom = entry.instance?.getOption().dataZoom?.[0];
    if (!zoom || event.ctrlKey || event.metaKey || event.altKey) return;
    const [middle, half] = [(zoom.start + zoom.end) / 2, (zoom.end - zoom.start) / 2];
    const range = {
      "+": [middle, half / 2], "=": [middle, half / 2], "-": [middle, half * 2], 0: [50, 50],
      ArrowLeft: [middle - half / 2, half], ArrowRight: [middle + half / 2, half],
    }[event.key];
    if (!range) return;
    event.preventDefault();
    const width = Math.min(50, Math.max(0.5, range[1]));
    const center = Math.min(100 - width, Math.max(width, range[0]));
    entry.instance.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: center - width, end: center + width });
  });
};
// Updates the data. A chart under the pointer is updated less often, so that its tooltip stays readable.
const refresh = (entry) => {
  if (entry.update) { entry.update(); return true; }
  const now = performance.now();
  if (!entry.instance || (entry.element.matches(":hover") && now - (entry.refreshed || 0) < 3000)) return false;
  entry.refreshed = now;
  const zoom = entry.zoom;
  entry.instance.dispatchAction({ type: "hideTip" });
  const options = entry.options();
  options.dataZoom[1].show = Boolean(entry.showsBar);
  entry.instance.setOption(options);
  updateRangeButton(entry);
  entry.zoom = zoom;
  keepZoom(entry);
  return true;
};
const section = (title, note, kind = "grid") => {
  make("h2", main, title);
  if (note) make("p", main, note, "note");
  return make("div", main, undefined, kind);
};
const panel = (grid, title, caption) => {
  const element = make("section", grid, undefined, "panel");
  make("h3", element, title);
  if (caption) make("p", element, caption, "caption");
  return element;
};
