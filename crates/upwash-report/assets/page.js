"use strict";
(() => {
  // Runs to draw; of a run that goes on there is nothing yet, and the server will tell.
  const given = JSON.parse(document.getElementById("data").textContent);
  const isLive = given === null;
  let runs = given || [];
  const main = document.getElementById("main");
  // Okabe and Ito's colours, which people see apart whatever colours they see; then the same dashed.
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a8a00", "#7a7f87"];
  // The same hues, dark enough on white.
  const DARKER = ["#0072b2", "#a87000", "#00805c", "#b0578a", "#c05400", "#2b86bd", "#717100", "#6b7078"];
  const DASHES = ["solid", "dashed", "dotted"];
  const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !isPrinted();
  const isPrinted = () => matchMedia("print").matches;
  const style = (index) => ({
    color: (isDark() ? COLOURS : DARKER)[index % COLOURS.length],
    type: DASHES[Math.floor(index / COLOURS.length) % DASHES.length],
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
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(2)} %`);
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
  };
  const known = (values) => values.filter((value) => value !== null && value !== undefined);
  const mean = (values) => (known(values).length ? known(values).reduce((a, b) => a + b, 0) / known(values).length : null);
  const worst = (values) => (known(values).length ? Math.min(...known(values)) : null);

  const svg = (instance) => instance.getDataURL({ type: "svg", backgroundColor: colour("--paper") });
  const resized = new ResizeObserver((changes) => changes.forEach((change) => charts.find((entry) => entry.element === change.target)?.instance?.resize()));
  // A chart is made anew when colours change, from what makes its options. It changes with epochs, or with rounds; a
  // large one is drawn in dots, which is faster, and as SVG when it is saved.
  const chart = (parent, id, options, { changes = "epochs", large = false } = {}) => {
    const element = make("div", parent, undefined, "chart");
    element.id = id;
    const picture = () => {
      if (!large) return svg(drawn(entry));
      const other = echarts.init(null, null, { renderer: "svg", ssr: true, width: element.clientWidth, height: element.clientHeight });
      other.setOption(options());
      const found = svg(other);
      other.dispose();
      return found;
    };
    const entry = { element, options, changes, large, instance: null, picture };
    charts.push(entry);
    resized.observe(element);
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
    return element;
  };
  // From the top, a little at a time: what is seen first is there first, and the page answers meanwhile.
  let waiting = [];
  const drawSome = (most = 50) => {
    const began = performance.now();
    while (waiting.length && performance.now() - began < most) draw(waiting.shift());
    if (waiting.length) setTimeout(drawSome);
    else performance.mark("drawn");
  };
  const drawn = (entry) => {
    if (!entry.instance) draw(entry);
    return entry.instance;
  };
  const draw = (entry) => {
    const selected = entry.instance && entry.instance.getOption().legend?.[0]?.selected;
    if (entry.instance) entry.instance.dispose();
    entry.instance = echarts.init(entry.element, null, { renderer: entry.large ? "canvas" : "svg" });
    const options = entry.options();
    if (selected && options.legend) options.legend.selected = selected;
    entry.instance.setOption(options);
    // Whoever zooms wants these epochs, however many more there will be.
    entry.instance.on("datazoom", () => {
      const zoom = entry.instance.getOption().dataZoom?.[0];
      if (zoom) entry.zoom = zoom.start > 0.5 || zoom.end < 99.5 ? { startValue: zoom.startValue, endValue: zoom.endValue } : null;
    });
    keepZoom(entry);
  };
  const keepZoom = (entry) => {
    if (entry.zoom) entry.instance.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, ...entry.zoom }, { silent: true });
  };
  // New data; under someone's pointer not too often, so that what is read there stays.
  const refresh = (entry) => {
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
    const ink = colour("--ink"), soft = colour("--soft"), line = colour("--line");
    const axis = { nameTextStyle: { color: soft }, axisLabel: { color: soft }, axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } } };
    return {
      animation: false,
      textStyle: { color: ink, fontFamily: "system-ui, sans-serif" },
      aria: { enabled: true, label: { description: more.about || `Lines over ${x}; the table on this page has the numbers at the end.` } },
      tooltip: { trigger: "axis", confine: true, enterable: true, extraCssText: "max-height: 300px; overflow-y: auto;", backgroundColor: colour("--paper"), borderColor: line, textStyle: { color: ink }, valueFormatter: more.format || short },
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
    if (run) { make("h3", element, run.label); make("p", element, `${run.algorithm} on ${run.graph_name}`, "words"); }
    return element;
  };

  // Between the lowest and the highest: one shape, drawn with the first point that is seen.
  const band = (points, log) => {
    const usable = points.filter(([, low, high]) => low !== null && high !== null && (!log || low > 0));
    const fill = colour("--ink");
    return {
      name: "_band", type: "custom", silent: true, clip: true, tooltip: { show: false }, data: usable, encode: { x: 0, y: [1, 2] }, z: 1,
      renderItem: (params, api) => (params.dataIndexInside !== 0 ? null : {
        type: "polygon",
        shape: { points: [...usable.map(([x, , high]) => api.coord([x, high])), ...usable.map(([x, low]) => api.coord([x, low])).reverse()] },
        style: { fill, opacity: 0.1 },
      }),
    };
  };

  // Each run's workers: lines, their mean, and the band between lowest and highest.
  const perWorker = (run, key, log, format) => () => {
    const rows = run.epochs.filter((epoch) => epoch[key]);
    const spread = (epoch) => (key === "losses" ? epoch.loss : epoch.accuracy);
    const workers = run.drawn;
    const series = workers.map((worker, place) => lines(`worker ${worker}`, rows.map((epoch) => [epoch.epoch, epoch[key][place]]), place));
    const ink = colour("--ink");
    series.push(lines("mean", rows.map((epoch) => [epoch.epoch, spread(epoch)?.mean ?? null]), 0, { line: { width: 3, color: ink, type: "solid" }, item: { color: ink } }));
    if (workers.length > 1) series.push(band(rows.map((epoch) => [epoch.epoch, spread(epoch)?.low ?? null, spread(epoch)?.high ?? null]), log));
    return frame("epoch", series, { log, format, legend: [...workers.map((worker) => `worker ${worker}`), "mean"] });
  };

  // Losses of single rounds.
  const perBatch = (run) => () => {
    const rows = run.batches;
    const ink = colour("--ink");
    const series = run.drawn.map((worker, place) => lines(`worker ${worker}`, rows.map((row) => [row.round, row.losses[place]]), place, { line: { width: 0.8, opacity: 0.6 } }));
    series.push(lines("mean", rows.map((row) => [row.round, row.loss?.mean ?? null]), 0, { line: { width: 3, color: ink, type: "solid" }, item: { color: ink } }));
    return frame("round", series, { log: true, legend: [...run.drawn.map((worker) => `worker ${worker}`), "mean"] });
  };

  const isLarge = (run) => run.workers > 100;
  const LEADERS = ["#d55e00", "#cc79a7"];
  const goesOn = (run) => isLive && !run.ending;
  const leaderNames = (run) => (run.algorithm.startsWith("LSGD") ? ["the best of its group", "the best of all"] : ["the best neighbour", "the best-connected"]);
  // The graph as it is, or one of its copies, in which everyone stands elsewhere. While a run goes on, links over which
  // models have just gone stand out, and arrows go from leaders to those who follow.
  const graph = (run, copy) => () => {
    const base = frame("", [], { about: `The graph of ${run.workers} workers, with ${run.graph.matchings.flat().length} links in ${run.graph.matchings.length} matchings.` });
    const accuracies = run.ends;
    const all = known(run.ends);
    const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
    const places = copy === undefined ? run.graph.positions.map((_, worker) => worker) : run.graph.places[copy];
    const workerAt = [];
    places.forEach((place, worker) => { workerAt[place] = worker; });
    const degree = Array(run.workers).fill(0);
    run.graph.matchings.flat().forEach(([a, b]) => { degree[workerAt[a]] += 1; degree[workerAt[b]] += 1; });
    const largest = Math.max(1, ...degree);
    const many = isLarge(run);
    // The more there are, the smaller.
    const scale = Math.min(1, Math.sqrt(8 / run.workers));
    const size = [18 * scale, 44 * scale];
    const [ink, line] = [colour("--ink"), colour("--line")];
    const width = many ? 0.6 : 2.5;
    const links = run.graph.matchings.flatMap((matching, index) => matching.map(([a, b]) => ({
      source: workerAt[a], target: workerAt[b], lineStyle: { ...style(index), width, opacity: 0.9 },
      words: `${workerAt[a]} – ${workerAt[b]}, matching ${index}`,
    })));
    if (copy === undefined && goesOn(run) && run.now.links) {
      const key = (a, b) => `${Math.min(a, b)} ${Math.max(a, b)}`;
      const up = new Map(run.now.links.map(([a, b]) => [key(a, b), [a, b]]));
      links.forEach((link) => {
        const found = up.delete(key(link.source, link.target));
        Object.assign(link.lineStyle, found ? { width: 2 * width, opacity: 1 } : { opacity: 0.15 });
      });
      // Links of other copies.
      up.forEach(([a, b]) => links.push({ source: a, target: b, lineStyle: { color: ink, width: 2 * width, opacity: 0.8 }, words: `${a} – ${b}` }));
      if (!many) {
        run.now.leaders.forEach((pair, worker) => (pair || []).forEach((leader, which) => {
          if (leader === worker) return;
          links.push({
            source: leader, target: worker, symbol: ["none", "arrow"], symbolSize: 9, emphasis: { disabled: true },
            lineStyle: { color: LEADERS[which], width: 1.6, type: DASHES[which], curveness: 0.16 + 0.14 * which, opacity: 1 },
            words: `${leader} leads ${worker}: ${leaderNames(run)[which]}`,
          });
        }));
      }
    }
    const shown = {
      animation: false, textStyle: base.textStyle, aria: base.aria,
      tooltip: { ...base.tooltip, trigger: "item", formatter: (item) => (item.dataType === "edge" ? item.data.words
        : `worker ${item.dataIndex}<br>degree ${degree[item.dataIndex]}<br>accuracy ${percent(accuracies[item.dataIndex])}`) },
      visualMap: all.length ? { min: low, max: high === low ? low + 1e-9 : high, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, calculable: true, seriesIndex: 0,
        inRange: { color: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"] }, formatter: percent, textStyle: { color: ink }, text: [`accuracy`, ""] } : undefined,
    };
    // Many workers are dots and lines on a plain: a graph's own means would take half a second.
    if (many) {
      const at = (worker) => run.graph.positions[places[worker]];
      const kinds = new Map();
      links.forEach((link) => {
        const look = JSON.stringify(link.lineStyle);
        if (!kinds.has(look)) kinds.set(look, []);
        kinds.get(look).push([at(link.source), at(link.target)]);
      });
      const axis = { type: "value", show: false, min: 0, max: 1 };
      return {
        ...shown, grid: { top: 44, bottom: 84, left: 40, right: 40 },
        dataZoom: [{ type: "inside", xAxisIndex: 0, filterMode: "none" }, { type: "inside", yAxisIndex: 0, filterMode: "none" }],
        xAxis: axis, yAxis: { ...axis, inverse: true },
        series: [
          { type: "scatter", z: 3, data: places.map((_, worker) => [...at(worker), accuracies[worker]]), symbolSize: (_, { dataIndex }) => size[0] + (size[1] - size[0]) * degree[dataIndex] / largest, itemStyle: { color: ink } },
          ...[...kinds].map(([look, alike]) => ({ type: "lines", coordinateSystem: "cartesian2d", silent: true, lineStyle: JSON.parse(look), data: alike })),
        ],
      };
    }
    return {
      ...shown,
      series: [{
        type: "graph", layout: "none", roam: true, preserveAspect: "contain", top: 44, bottom: 84, left: 40, right: 40,
        label: { show: true, color: ink, position: "right" },
        data: places.map((place, worker) => ({
          // In large units: lines whose ends are less than one apart are made straight.
          name: String(worker), x: 1000 * run.graph.positions[place][0], y: 1000 * run.graph.positions[place][1], value: accuracies[worker],
          symbolSize: size[0] + (size[1] - size[0]) * degree[worker] / largest,
        })),
        links, itemStyle: { borderColor: ink, borderWidth: many ? 0 : 1 },
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

  const ended = (run) => {
    if (!run.ending) return isLive ? "" : "going on, or cut off";
    const again = run.processes > 1 ? "" : "; `upwash train ... --resume` goes on";
    return {
      finished: "finished",
      interrupted: `stopped before round ${run.ending.round}${isLive ? again : ""}`,
      diverged: `diverged: the loss of worker ${run.ending.worker} was lost in round ${run.ending.round}`,
    }[run.ending.status] || run.ending.status;
  };

  // The final table, workers down and runs across as in the paper.
  const fillTable = (table) => {
    table.replaceChildren();
    const head = make("tr", make("thead", table));
    make("th", head, "worker");
    runs.forEach((run) => make("th", head, run.label));
    const body = make("tbody", table);
    const rows = Math.max(...runs.map((run) => run.workers));
    for (let worker = 0; worker < Math.min(rows, 64); worker += 1) {
      if (runs.every((run) => run.centre === worker)) continue;
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
    make("td", averaged, runs.every((run) => run.centre !== null) ? "the centre's model" : "averaged model");
    runs.forEach((run) => make("td", averaged, percent(run.averaged_accuracy)));
    const ends = make("tr", body);
    make("td", ends, "");
    runs.forEach((run) => make("td", ends, ended(run), "ended"));
  };
  const fillNotices = (place) => {
    place.replaceChildren();
    runs.forEach((run) => run.notices.forEach((notice) => make("p", place, `${run.name}: ${notice}`, "notice")));
  };

  const drawTable = () => {
    make("h2", main, !isLive && runs.every((run) => run.ending?.status === "finished") ? "In the end" : "So far");
    const table = make("table", make("div", main, undefined, "scroll"));
    table.id = "table";
    fillTable(table);
  };
  const drawGraphs = () => {
    const known = runs.filter((run) => run.graph);
    if (!known.length && !isLive) return;
    const grid = section(isLive ? "Now" : "Graph", "Links in the colour of their matching, workers by degree (size) and accuracy (colour).");
    known.forEach((run, number) => {
      const place = panel(grid, run);
      chart(place, `graph-${number}`, graph(run), { changes: "rounds", large: isLarge(run) });
      make("p", place, "", "words").id = `words-${number}`;
      if (run.graph.places.length > 1) make("p", place, `${run.graph.places.length} copies of this graph, with the workers in other places, take turns.`, "words");
    });
    if (isLive) drawBatches(grid);
  };
  const drawBatches = (grid) => runs.forEach((run, number) => {
    if (!isLive && (run.epochs.length >= 20 || run.batches.length < 2)) return;
    chart(panel(grid, null, `${run.label}: loss on single batches`), `batches-${number}`, perBatch(run), { changes: "rounds" });
  });
  // Where everyone stands in the other copies.
  const drawCopies = () => {
    const isSame = (places) => places.every((place, worker) => place === worker);
    const others = (run) => (run.graph?.places || []).map((places, copy) => [places, copy]).filter(([places]) => !isSame(places));
    const turning = runs.filter((run) => !isLarge(run) && others(run).length);
    if (!turning.length) return;
    const grid = section("Copies of the graph", "They take turns, so that nobody is always at the edge: the same graph, with the workers in other places.", "grid small");
    turning.forEach((run) => others(run).slice(0, 6).forEach(([_, copy]) => {
      const place = panel(grid, null, `${run.label}: copy ${copy + 1} of ${run.graph.places.length}`);
      chart(place, `copy-${runs.indexOf(run)}-${copy}`, graph(run, copy));
    }));
  };
  const drawLosses = () => {
    const few = runs.some((run) => run.workers > run.drawn.length + 1) ? " Of many workers some are drawn; mean and band are of all." : "";
    let grid = section("Training loss", `Each worker's mean over an epoch's batches; the thick line is the mean of all, the band between the lowest and the highest.${few}`);
    if (!isLive) drawBatches(grid);
    runs.forEach((run, number) => chart(panel(grid, run), `loss-${number}`, perWorker(run, "losses", true)));
    if (isLive || runs.some((run) => run.epochs.some((epoch) => epoch.accuracies))) {
      grid = section("Test accuracy", `Of each worker's own model; the band is between the worst and the best.${few}`);
      runs.forEach((run, number) => chart(panel(grid, run), `accuracy-${number}`, perWorker(run, "accuracies", false, percent)));
    }
  };
  const drawComparisons = () => {
    let grid = section("The worst worker", runs.length > 1 ? "Worst against worst: the largest loss and the smallest accuracy of any worker." : "The largest loss and the smallest accuracy of any worker.");
    chart(panel(grid, null, "Largest training loss"), "worst-loss", together("epoch", worstLoss, epochOf, { log: true }));
    chart(panel(grid, null, "Smallest test accuracy"), "worst-accuracy", together("epoch", worstAccuracy, epochOf, { format: percent }));
    grid = section("What it cost", "Mean accuracy against rounds, bytes that all workers have sent, and time on the configured network.");
    chart(panel(grid, null, "Mean accuracy, by rounds"), "by-rounds", together("rounds", accuracy, (run, epoch) => epoch.epoch * run.rounds_per_epoch, { format: percent }));
    chart(panel(grid, null, "Mean accuracy, by bytes"), "by-bytes", together("GB sent", accuracy, (_, epoch) => epoch.bytes / 1e9, { format: percent, from: 0 }));
    chart(panel(grid, null, "Mean accuracy, by time"), "by-time", together("simulated seconds", accuracy, (_, epoch) => epoch.seconds, { format: percent, from: 0 }));
    chart(panel(grid, null, "Distance of the models from their average"), "consensus", together("epoch", (_, epoch) => epoch.consensus || null, epochOf, { log: true }));
  };
  const drawConfigurations = () => {
    make("h2", main, "Configuration");
    runs.forEach((run) => {
      const details = make("details", main);
      make("summary", details, run.label);
      make("pre", details, run.config || "not found");
    });
  };

  // Everything from the beginning.
  const build = () => {
    nameRuns();
    charts.forEach((entry) => { resized.unobserve(entry.element); entry.instance?.dispose(); });
    charts = window.upwash.charts = [];
    waiting = [];
    window.upwash.runs = runs;
    main.replaceChildren();
    document.getElementById("lead").textContent = runs.length === 1 ? `${runs[0].name}: ${runs[0].algorithm} on ${runs[0].graph_name}` : `${runs.length} runs: ${runs.map((run) => run.label).join(", ")}`;
    const notices = make("div", main);
    notices.id = "notices";
    fillNotices(notices);
    // While a run goes on, what moves comes first.
    const parts = isLive ? [drawGraphs, drawLosses, drawTable] : [drawTable, drawGraphs, drawLosses];
    [...parts, drawComparisons, drawCopies, drawConfigurations].forEach((part) => part());
    drawSome();
  };

  // A run that goes on: a whole view first, then what is new.
  const live = () => {
    const bar = document.getElementById("live");
    bar.hidden = false;
    const [done, state, said] = ["done", "state", "said"].map((id) => document.getElementById(id));
    const buttons = ["pause", "checkpoint", "stop"].map((id) => document.getElementById(id));
    const [pause, checkpoint, stop] = buttons;
    let [pulse, refused, connected, waits] = [{}, "", false, []];
    const span = (seconds) => {
      if (seconds < 90) return `${Math.round(seconds)} s`;
      return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
    };
    const status = () => {
      const run = runs[0];
      if (!run) { state.textContent = connected ? ["The run has not begun yet.", ...waits].join(" ") : "Not connected."; said.textContent = refused; return; }
      const part = run.rounds ? run.rounds_run / run.rounds : 0;
      done.style.width = `${100 * part}%`;
      done.parentElement.setAttribute("aria-valuenow", Math.floor(100 * part));
      const words = [`round ${run.rounds_run.toLocaleString("en")} of ${run.rounds.toLocaleString("en")}`];
      words.push(`epoch ${Math.floor(run.rounds_run / run.rounds_per_epoch)} of ${Math.round(run.rounds / run.rounds_per_epoch)}`);
      if (run.ending) words.push(ended(run));
      else if (run.now.paused) words.push("paused");
      else if (pulse.pace) words.push(`${short(pulse.pace)} rounds a second`, `${span((run.rounds - run.rounds_run) / pulse.pace)} left`);
      const loss = mean(run.now.losses);
      if (loss !== null) words.push(`mean loss ${short(loss)}`);
      state.textContent = words.join(" · ");
      document.title = `${Math.floor(100 * part)} % · ${run.name} · Upwash`;
      buttons.forEach((button) => { button.disabled = Boolean(run.ending) || !connected; });
      pause.textContent = run.now.paused ? "Continue" : "Pause";
      let news = run.now.checkpoint === null ? "" : `Checkpoint written before round ${run.now.checkpoint.toLocaleString("en")}.`;
      if (run.now.stopping && !run.ending) news = "Stopping.";
      if (pulse.waiting && !run.ending) news = "Asked; the run will see it after its round.";
      if (pulse.silent && !run.ending && !run.now.paused) news = "Nothing has been heard of the run for a while: it is in a long round, or it was killed." + (pulse.cut ? " The last line of its events is cut." : "");
      if (!connected) news = run.ending ? "" : "Not connected: trying again.";
      said.textContent = refused || news;
    };
    const overlay = () => {
      const run = runs[0];
      const words = document.getElementById("words-0");
      if (!run || !words) return;
      words.textContent = "";
      if (!goesOn(run) || !run.now.links) return;
      const round = (run.rounds_run - 1).toLocaleString("en");
      words.textContent = run.now.links.length ? `Bright: the ${run.now.links.length} links over which models went in round ${round}; those of other copies are ${isDark() ? "white" : "black"}. ` : `No models were sent in round ${round}. `;
      if (!run.now.leaders.some(Boolean)) return;
      leaderNames(run).forEach((name, which) => {
        const followers = new Map();
        run.now.leaders.forEach((pair, worker) => { if (pair && pair[which] !== worker) followers.set(pair[which], (followers.get(pair[which]) || 0) + 1); });
        const most = [...followers].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([leader, count]) => `${leader} leads ${count} other${count > 1 ? "s" : ""}`);
        const swatch = make("span", words, which ? " ⇢ " : " → ");
        swatch.style.color = LEADERS[which];
        swatch.style.fontWeight = "bold";
        words.append(`${name}: ${most.join(", ") || "everyone its own"}.`);
      });
    };
    let [timer, changed, took] = [null, new Set(), 0];
    const flush = () => {
      timer = null;
      const began = performance.now();
      if (changed.has("all")) build();
      else {
        const late = charts.filter((entry) => changed.has(entry.changes)).filter((entry) => !refresh(entry) && entry.instance);
        if (late.length) setTimeout(() => later(...late.map((entry) => entry.changes)), 500);
        if (changed.has("epochs")) fillTable(document.getElementById("table"));
        if (changed.has("notices")) fillNotices(document.getElementById("notices"));
      }
      changed = new Set();
      overlay();
      took = performance.now() - began;
    };
    const later = (...what) => {
      what.forEach((kind) => changed.add(kind));
      // Never more than a fifth of the time is spent on drawing.
      if (!timer) timer = setTimeout(flush, changed.has("all") ? 0 : Math.max(200, 4 * took));
    };
    const add = (old, rows, key) => {
      let news = false;
      rows.forEach((row) => {
        const place = old.findLastIndex((known) => known[key] <= row[key]);
        const there = place >= 0 && old[place][key] === row[key];
        if (there && JSON.stringify(old[place]) === JSON.stringify(row)) return;
        old.splice(there ? place : place + 1, there ? 1 : 0, row);
        news = true;
      });
      return news;
    };
    const heard = {
      wait: (message) => { runs = []; waits = message.notices; },
      view: (run) => {
        // Most often the same run, with fewer points: charts stay as someone has arranged them.
        if (runs[0] && shape(runs[0]) === shape(run)) {
          Object.assign(runs[0], run);
          later("epochs", "rounds", "notices");
        } else {
          runs = [run];
          later("all");
        }
      },
      more: (more) => {
        const run = runs[0];
        if (!run) return;
        if (add(run.epochs, more.epochs, "epoch") || JSON.stringify(run.ends) !== JSON.stringify(more.ends)) later("epochs", "rounds");
        if (add(run.batches, more.batches, "round") || more.rounds_run !== run.rounds_run) later("rounds");
        if (Boolean(more.ending) !== Boolean(run.ending)) later("epochs", "rounds");
        if (JSON.stringify(more.notices) !== JSON.stringify(run.notices)) later("notices");
        ["rounds_run", "ends", "averaged_accuracy", "notices", "now", "ending"].forEach((key) => { run[key] = more[key]; });
      },
    };
    const shape = (run) => JSON.stringify([run.algorithm, run.graph_name, run.workers, run.graph]);
    const connect = () => {
      const address = `events${location.search}`;
      const source = new EventSource(address);
      Object.entries(heard).forEach(([name, hear]) => source.addEventListener(name, (event) => {
        if (!connected) refused = "";
        connected = true;
        const message = JSON.parse(event.data);
        if (message.pulse) pulse = message.pulse;
        hear(message);
        status();
      }));
      source.addEventListener("error", async () => {
        connected = false;
        // Whoever showed a run that is over is most likely gone with it.
        if (runs[0]?.ending) source.close();
        else if (source.readyState === EventSource.CLOSED) {
          // A browser does not try again when it was refused: it may be let in later.
          const waiting = new AbortController();
          try {
            const answer = await fetch(address, { signal: waiting.signal });
            refused = answer.ok ? "" : await answer.text();
          } catch { refused = ""; }
          waiting.abort();
          setTimeout(connect, 5000);
        }
        status();
      });
    };
    connect();
    const ask = async (what) => {
      refused = "";
      try {
        const answer = await fetch(`wish/${what}${location.search}`, { method: "POST", headers: { "x-upwash": "wish" } });
        if (!answer.ok) refused = await answer.text();
      } catch (error) {
        refused = `Not asked: ${error.message}`;
      }
      status();
    };
    pause.addEventListener("click", () => ask(runs[0]?.now.paused ? "continue" : "pause"));
    checkpoint.addEventListener("click", () => ask("checkpoint"));
    stop.addEventListener("click", () => ask("stop"));
    status();
  };

  window.upwash = { charts, runs };
  if (isLive) live(); else build();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
  matchMedia("print").addEventListener("change", () => charts.forEach((entry) => { draw(entry); entry.instance.resize(); }));
  addEventListener("beforeprint", () => {
    drawSome(Infinity);
    document.querySelectorAll("details").forEach((details) => { details.open = true; });
  });
})();
