"use strict";
(() => {
  const runs = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");
  // Okabe and Ito's colours, which people see apart whatever colours they see; then the same dashed.
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a8a00", "#7a7f87"];
  const DASHES = ["solid", "dashed", "dotted"];
  const style = (index) => ({
    color: COLOURS[index % COLOURS.length],
    type: DASHES[Math.floor(index / COLOURS.length) % DASHES.length],
  });
  const charts = [];
  const names = new Map();
  runs.forEach((run) => {
    const seen = names.get(run.name) || 0;
    names.set(run.name, seen + 1);
    run.label = seen ? `${run.name} (${seen + 1})` : run.name;
  });

  const make = (tag, parent, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    parent.append(element);
    return element;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(2)} %`);
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
  };
  const known = (values) => values.filter((value) => value !== null && value !== undefined);
  const mean = (values) => (known(values).length ? known(values).reduce((a, b) => a + b, 0) / known(values).length : null);
  const worst = (values) => (known(values).length ? Math.min(...known(values)) : null);

  // A chart is made anew when colours change, from what makes its options.
  const chart = (parent, id, options) => {
    const element = make("div", parent, undefined, "chart");
    element.id = id;
    const entry = { element, options, instance: null, picture: () => entry.instance.getDataURL({ type: "svg", backgroundColor: colour("--paper") }) };
    charts.push(entry);
    const save = make("button", parent, "SVG", "save");
    save.title = "Save this chart as SVG";
    save.addEventListener("click", () => {
      const link = make("a", document.body);
      link.href = entry.picture();
      link.download = `${id}.svg`;
      link.click();
      link.remove();
    });
    draw(entry);
    return element;
  };
  const draw = (entry) => {
    const selected = entry.instance && entry.instance.getOption().legend?.[0]?.selected;
    if (entry.instance) entry.instance.dispose();
    entry.instance = echarts.init(entry.element, null, { renderer: "svg" });
    const options = entry.options();
    if (selected && options.legend) options.legend.selected = selected;
    entry.instance.setOption(options);
  };
  const frame = (x, series, more = {}) => {
    const ink = colour("--ink"), soft = colour("--soft"), line = colour("--line");
    const axis = { nameTextStyle: { color: soft }, axisLabel: { color: soft }, axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } } };
    return {
      animation: false,
      textStyle: { color: ink, fontFamily: "system-ui, sans-serif" },
      aria: { enabled: true },
      tooltip: { trigger: "axis", confine: true, backgroundColor: colour("--paper"), borderColor: line, textStyle: { color: ink }, valueFormatter: more.format || short },
      legend: { type: "scroll", top: 0, left: 4, right: 8, itemWidth: 14, itemGap: 8, textStyle: { color: ink }, pageTextStyle: { color: soft }, pageIconColor: soft, data: more.legend },
      grid: { left: 58, right: 18, top: 38, bottom: 74 },
      dataZoom: [{ type: "inside" }, { type: "slider", height: 16, bottom: 8, borderColor: line, textStyle: { color: soft } }],
      xAxis: { ...axis, type: "value", name: x, nameLocation: "middle", nameGap: 26, min: more.from ?? "dataMin", max: "dataMax", splitLine: { show: false }, axisLabel: { ...axis.axisLabel, hideOverlap: true, showMinLabel: true, showMaxLabel: false } },
      yAxis: { ...axis, type: more.log ? "log" : "value", scale: true, axisLabel: { ...axis.axisLabel, formatter: more.format || short } },
      series,
    };
  };
  const lines = (name, points, index, more = {}) => ({
    name, type: "line", data: points, showSymbol: points.length < 3, symbolSize: 5, connectNulls: true,
    lineStyle: { width: 1.5, ...style(index), ...more.line }, itemStyle: { color: style(index).color, ...more.item }, ...more.series,
  });
  const section = (title, note) => {
    make("h2", main, title);
    if (note) make("p", main, note, "note");
    return make("div", main, undefined, "grid");
  };
  const panel = (grid, run, title) => {
    const element = make("section", grid, undefined, "panel");
    if (title) make("h3", element, title);
    if (run) { make("h3", element, run.label); make("p", element, `${run.algorithm} on ${run.graph_name}`, "words"); }
    return element;
  };

  // Each run's workers: lines, their mean, and the band between lowest and highest.
  const perWorker = (run, key, log, format) => () => {
    const rows = run.epochs.filter((epoch) => epoch[key]);
    const spread = (epoch) => (key === "losses" ? epoch.loss : epoch.accuracy);
    const workers = run.drawn;
    const series = workers.map((worker, place) => lines(`worker ${worker}`, rows.map((epoch) => [epoch.epoch, epoch[key][place]]), place));
    const ink = colour("--ink");
    series.push(lines("mean", rows.map((epoch) => [epoch.epoch, spread(epoch)?.mean ?? null]), 0, { line: { width: 3, color: ink, type: "solid" }, item: { color: ink } }));
    // On a logarithmic scale bands cannot be stacked: the lines themselves show it there.
    if (!log && workers.length > 1) {
      const low = rows.map((epoch) => [epoch.epoch, spread(epoch)?.low ?? null]);
      const span = rows.map((epoch) => [epoch.epoch, spread(epoch) ? spread(epoch).high - spread(epoch).low : null]);
      const band = { type: "line", stack: "band", silent: true, showSymbol: false, lineStyle: { opacity: 0 }, tooltip: { show: false } };
      series.push({ ...band, name: "_low", data: low }, { ...band, name: "_span", data: span, areaStyle: { color: ink, opacity: 0.1 } });
    }
    return frame("epoch", series, { log, format, legend: [...workers.map((worker) => `worker ${worker}`), "mean"] });
  };

  const graph = (run) => () => {
    const base = frame("", []);
    const accuracies = run.ends;
    const all = known(run.ends);
    const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
    const degree = Array(run.workers).fill(0);
    run.graph.matchings.flat().forEach(([a, b]) => { degree[a] += 1; degree[b] += 1; });
    const largest = Math.max(1, ...degree);
    const size = run.workers > 100 ? [4, 12] : [18, 44];
    const [ink, line] = [colour("--ink"), colour("--line")];
    return {
      animation: false, textStyle: base.textStyle, aria: base.aria,
      tooltip: { ...base.tooltip, trigger: "item" },
      visualMap: all.length ? { min: low, max: high === low ? low + 1e-9 : high, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, calculable: true, seriesIndex: 0,
        inRange: { color: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"] }, formatter: percent, textStyle: { color: ink }, text: [`accuracy`, ""] } : undefined,
      series: [{
        type: "graph", layout: "none", roam: true, preserveAspect: "contain", top: 44, bottom: 84, left: 40, right: 40,
        label: { show: run.workers <= 100, color: ink, position: "right" },
        data: run.graph.positions.map(([x, y], worker) => ({
          // In large units: lines whose ends are less than one apart are made straight.
          name: String(worker), x: 1000 * x, y: 1000 * y, value: accuracies[worker],
          symbolSize: size[0] + (size[1] - size[0]) * degree[worker] / largest,
          itemStyle: { borderColor: ink, borderWidth: 1 },
          tooltip: { formatter: () => `worker ${worker}<br>degree ${degree[worker]}<br>accuracy ${percent(accuracies[worker])}` },
        })),
        links: run.graph.matchings.flatMap((matching, index) => matching.map(([a, b]) => ({
          source: a, target: b, lineStyle: { ...style(index), width: run.workers > 100 ? 0.6 : 2.5, opacity: 0.9 },
          tooltip: { formatter: () => `${a} – ${b}, matching ${index}` },
        }))),
        emphasis: { focus: "adjacency" }, lineStyle: { color: line },
      }],
    };
  };

  // Several runs in one chart.
  const together = (x, value, at, more = {}) => () => frame(x, runs.map((run, index) => lines(
    run.label, run.epochs.map((epoch) => [at(run, epoch), value(run, epoch)]).filter((point) => point[1] !== null && point[1] !== undefined), index)), more);
  const accuracy = (_, epoch) => epoch.accuracy?.mean;
  const worstAccuracy = (_, epoch) => epoch.accuracy?.low;
  const worstLoss = (_, epoch) => epoch.loss?.high;
  const epochOf = (_, epoch) => epoch.epoch;

  document.getElementById("lead").textContent = runs.length === 1 ? `${runs[0].name}: ${runs[0].algorithm} on ${runs[0].graph_name}` : `${runs.length} runs: ${runs.map((run) => run.label).join(", ")}`;
  runs.forEach((run) => run.notices.forEach((notice) => make("p", main, `${run.name}: ${notice}`, "notice")));

  // The final table, workers down and runs across as in the paper.
  make("h2", main, "In the end");
  const table = make("table", make("div", main, undefined, "scroll"));
  table.id = "table";
  const head = make("tr", make("thead", table));
  make("th", head, "worker");
  runs.forEach((run) => make("th", head, run.label));
  const body = make("tbody", table);
  const rows = Math.max(...runs.map((run) => run.workers));
  for (let worker = 0; worker < Math.min(rows, 64); worker += 1) {
    const row = make("tr", body);
    make("td", row, String(worker));
    runs.forEach((run) => make("td", row, percent(run.ends[worker])));
  }
  if (rows > 64) make("td", make("tr", body), `… and ${rows - 64} more`);
  [["mean", mean], ["worst", worst]].forEach(([name, value]) => {
    const row = make("tr", body, undefined, "sum");
    make("td", row, name);
    runs.forEach((run) => make("td", row, percent(value(run.ends))));
  });
  const averaged = make("tr", body, undefined, "sum");
  make("td", averaged, "averaged model");
  runs.forEach((run) => make("td", averaged, percent(run.averaged_accuracy)));

  const drawn = runs.filter((run) => run.graph);
  if (drawn.length) {
    const grid = section("Graph", "Links in the colour of their matching, workers by degree (size) and final accuracy (colour).");
    drawn.forEach((run, number) => {
      const place = panel(grid, run);
      chart(place, `graph-${number}`, graph(run));
      if (run.graph.copies > 1) make("p", place, `${run.graph.copies} copies of this graph, with the workers in other places, take turns.`, "words");
    });
  }
  const few = runs.some((run) => run.workers > run.drawn.length + 1) ? " Of many workers some are drawn; mean and band are of all." : "";
  let grid = section("Training loss", `Each worker's mean over an epoch's batches; the thick line is the mean of all.${few}`);
  runs.forEach((run, number) => chart(panel(grid, run), `loss-${number}`, perWorker(run, "losses", true)));
  if (runs.some((run) => run.epochs.some((epoch) => epoch.accuracies))) {
    grid = section("Test accuracy", `Of each worker's own model; the band is between the worst and the best.${few}`);
    runs.forEach((run, number) => chart(panel(grid, run), `accuracy-${number}`, perWorker(run, "accuracies", false, percent)));
  }
  grid = section("The worst worker", runs.length > 1 ? "Worst against worst: the largest loss and the smallest accuracy of any worker." : "The largest loss and the smallest accuracy of any worker.");
  chart(panel(grid, null, "Largest training loss"), "worst-loss", together("epoch", worstLoss, epochOf, { log: true }));
  chart(panel(grid, null, "Smallest test accuracy"), "worst-accuracy", together("epoch", worstAccuracy, epochOf, { format: percent }));
  grid = section("What it cost", "Mean accuracy against rounds, bytes that all workers have sent, and time on the configured network.");
  chart(panel(grid, null, "Mean accuracy, by rounds"), "by-rounds", together("rounds", accuracy, (run, epoch) => epoch.epoch * run.rounds_per_epoch, { format: percent }));
  chart(panel(grid, null, "Mean accuracy, by bytes"), "by-bytes", together("GB sent", accuracy, (_, epoch) => epoch.bytes / 1e9, { format: percent, from: 0 }));
  chart(panel(grid, null, "Mean accuracy, by time"), "by-time", together("simulated seconds", accuracy, (_, epoch) => epoch.seconds, { format: percent, from: 0 }));
  chart(panel(grid, null, "Distance of the models from their average"), "consensus", together("epoch", (_, epoch) => epoch.consensus || null, epochOf, { log: true }));

  make("h2", main, "Configuration");
  runs.forEach((run) => {
    const details = make("details", main);
    make("summary", details, run.label);
    make("pre", details, run.config || "not found");
  });

  const resized = new ResizeObserver((changes) => changes.forEach((change) => charts.find((entry) => entry.element === change.target)?.instance.resize()));
  charts.forEach((entry) => resized.observe(entry.element));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
  matchMedia("print").addEventListener("change", () => charts.forEach((entry) => { draw(entry); entry.instance.resize(); }));
  window.upwash = { charts, runs };
})();
