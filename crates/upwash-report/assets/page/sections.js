// The sections of the page, from top to bottom.

const ended = (run) => {
  if (!run.ending) return isLive ? "" : run.is_running ? "running" : `cut off; ${run.continuation}`;
  const again = run.processes > 1 ? "" : "; continue it with `upwash train ... --resume`";
  return {
    finished: "finished",
    isolated: `isolated before round ${run.ending.round}: no other peer was in reach`,
    interrupted: `stopped before round ${run.ending.round}${isLive ? again : ""}`,
    diverged: `diverged: worker ${run.ending.worker} in round ${run.ending.round}`,
  }[run.ending.status] || run.ending.status;
};

// The columns of the summary: their titles, values and formats, and whether the best value of several runs stands out.
const last = (run, key) => run.epochs[run.epochs.length - 1]?.[key] ?? null;
const date = (time) => new Date(1000 * time).toLocaleString("sv-SE").slice(0, 16);
const orDash = (format) => (value) => (value === null || value === undefined ? "–" : format(value));
const COLUMNS = [
  { title: "mean test accuracy", key: "mean", value: (run) => mean(run.ends), format: percent, best: true },
  { title: "worst worker", key: "worst", value: (run) => worst(run.ends), format: percent, best: true },
  { title: "averaged model", key: "averaged", value: (run) => run.averaged_accuracy, format: percent, best: true },
  { title: "sent", value: (run) => last(run, "gigabytes"), format: bytes },
  { title: "simulated time", value: (run) => (run.is_real_time ? null : last(run, "seconds")), format: orDash(span) },
  { title: "real time", value: (run) => run.wall_seconds, format: span },
  { title: "seed", value: (run) => run.seed, format: (seed, run) => (run.over_seeds ? `${run.over_seeds.seeds} seeds` : orDash(String)(seed)) },
  { title: "started", value: (run) => run.time, format: orDash(date), className: "wrap" },
  { title: "version", value: (run) => run.version, format: orDash(String) },
];
// Where there are several seeds, accuracies are means over them, with half of the 95 % confidence interval.
const columnValue = (column, run) => (column.key && run.over_seeds ? run.over_seeds[column.key][0] : column.value(run));
const columnText = (column, run) => {
  if (!column.key || !run.over_seeds) return column.format(column.value(run), run);
  const [middle, half] = run.over_seeds[column.key];
  return middle === null ? "–" : `${(100 * middle).toFixed(2)} ± ${half === null ? "–" : (100 * half).toFixed(2)} %`;
};
const columnTitle = (column) => (column.title === "averaged model" && runs.every((run) => run.server !== null) ? "server model" : column.title);
// On a narrow screen every row becomes a card, and its cells name their columns.
const cell = (row, title, text, className) => {
  const element = make("td", row, text, className);
  element.dataset.label = title;
  if (text === "–") element.classList.add("none");
  return element;
};
const tableHead = (table, titles) => {
  table.replaceChildren();
  const head = make("tr", make("thead", table));
  titles.forEach((title) => { make("th", head, title).scope = "col"; });
  return make("tbody", table);
};
const fillSummary = (table) => {
  // What no run has recorded needs no column.
  const columns = COLUMNS.filter((column) => column.best || runs.some((run) => known([column.value(run)]).length));
  const body = tableHead(table, ["run", ...columns.map(columnTitle)]);
  const best = columns.map((column) => (column.best && runs.length > 1 ? Math.max(...known(runs.map((run) => columnValue(column, run)))) : null));
  runs.forEach((run) => {
    const row = make("tr", body);
    const name = make("th", row);
    name.scope = "row";
    if (runs.length > 1) runButton(name, run);
    else make("b", name, run.label);
    const state = ended(run);
    make("span", name, `${run.algorithm} on ${run.graph_name}${state && state !== "finished" ? `; ${state}` : ""}`, "caption");
    columns.forEach((column, index) => {
      cell(row, columnTitle(column), columnText(column, run), best[index] !== null && columnValue(column, run) === best[index] ? "best" : column.className || "");
    });
  });
};
// The test accuracy of every worker: a row for each, and a column for each run.
const fillWorkers = (table) => {
  const body = tableHead(table, ["worker", ...runs.map((run) => run.label)]);
  const rows = Math.max(...runs.map((run) => run.workers));
  for (let worker = 0; worker < Math.min(rows, 64); worker += 1) {
    if (runs.every((run) => run.server === worker)) continue;
    const row = make("tr", body);
    make("th", row, `worker ${worker}`).scope = "row";
    runs.forEach((run) => cell(row, run.label, percent(run.ends[worker])));
  }
  if (rows > 64) make("th", make("tr", body), `… and ${rows - 64} more`);
};
const fillTables = () => {
  fillSummary(document.getElementById("summary"));
  fillWorkers(document.getElementById("workers"));
};
// More than one notice would push the charts below the fold.
const fillNotices = (container) => {
  const wasOpen = container.querySelector("details")?.open;
  container.replaceChildren();
  const texts = runs.flatMap((run) => [
    ...run.notices.map((notice) => `${run.name}: ${notice}`),
    ...run.participation.map(([worker, text]) => `${run.name}: worker ${worker}: ${text}`),
  ]);
  let parent = container;
  if (texts.length > 1) {
    parent = make("details", container, undefined, "notice");
    parent.open = Boolean(wasOpen);
    make("summary", parent, `${texts.length} notices`);
  }
  texts.forEach((text) => make("p", parent, text, texts.length > 1 ? undefined : "notice"));
};

const drawSummary = () => {
  const table = make("table", make("div", main, undefined, "scroll"));
  table.id = "summary";
  table.classList.toggle("many", runs.length > 4);
  const details = make("details", main);
  make("summary", details, "Test accuracy of each worker");
  const scroll = make("div", details, undefined, "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("aria-label", "Test accuracy of each worker");
  make("table", scroll).id = "workers";
  fillTables();
  if (runs.some((run) => run.over_seeds)) make("p", main, "Accuracies above are means over seeds ± half of the 95 % confidence interval. All other numbers and the charts show one seed.", "note");
};
// Of so many runs, each has charts of its own. All are in the tables and in the charts that compare runs.
const MAX_DETAILED = 16;
const detailed = () => runs.slice(0, MAX_DETAILED);
const omitted = () => (runs.length > MAX_DETAILED ? ` Of ${runs.length} runs, the first ${MAX_DETAILED} are shown.` : "");
// With many runs, panels are narrower, so that more of them are side by side.
const gridKind = () => (runs.length > 2 ? "grid small" : "grid");
const drawGraphs = () => {
  const drawn = detailed().filter((run) => run.drawings.length);
  if (!drawn.length && !isLive) return;
  const grid = section(isLive ? "Live" : "Graph", "Links have the color of their matching, workers the color of their test accuracy." + omitted(), isLive ? "grid live" : gridKind());
  drawn.forEach((run, number) => {
    const container = panel(grid, run.label, `${run.algorithm} on ${run.graph_name}`);
    graph(container, `graph-${number}`, run, 0, true);
    make("p", container, "", "caption").id = `graph-${number}-colors`;
    make("p", container, "", "caption").id = `caption-${number}`;
    if (run.graph.relabelings.length > 1) make("p", container, `${run.graph.relabelings.length} copies of this graph, with the workers at different nodes, take turns.`, "caption");
  });
  if (isLive) drawBatches(grid);
};
const drawBatches = (grid) => detailed().forEach((run, number) => {
  if (!isLive && (run.epochs.length >= 20 || run.batches.length < 2)) return;
  chart(panel(grid, `${run.label}: batch loss`), `batches-${number}`, perBatch(run), { changes: "rounds", lead: "worker" });
});
// The copies of the graph in which workers are at other nodes.
const drawCopies = () => {
  const turning = detailed().filter((run) => run.workers <= 100 && run.drawings.length > 1);
  if (!turning.length) return;
  const grid = section("Copies of the graph", "The copies take turns, so that no worker is always at the edge: the same graph, with the workers at different nodes.", "grid small");
  turning.forEach((run) => run.drawings.slice(1, 7).forEach((_, copy) => {
    graph(panel(grid, run.label), `copy-${runs.indexOf(run)}-${copy}`, run, copy + 1, false);
  }));
};
// The charts of the program's list. Those without a section come first and compare several runs.
const isTested = () => isLive || runs.some((run) => run.epochs.some((epoch) => epoch.accuracies));
const wanted = (isWanted) => given.charts.filter(isWanted).filter((spec) => isTested() || !isAccuracy(spec));
const drawOverview = () => {
  if (runs.length < 2) return;
  const grid = make("div", main, undefined, "grid three overview");
  wanted((spec) => spec.section === "").forEach((spec) => drawCompared(grid, spec));
};
const drawCompared = (grid, spec) => {
  const range = isAccuracy(spec) ? () => comparedRange(spec) : null;
  chart(panel(grid, spec.title), spec.name, compared(spec), { range, comparesRuns: true });
};
const drawWorkers = () => {
  const few = runs.some((run) => run.workers > run.drawn.length + 1) ? " With many workers, only some have a line; mean and band include all." : "";
  const specs = wanted((spec) => spec.lines === "workers");
  let grid = section(specs[0].section, specs[0].note + few + omitted(), gridKind());
  specs.forEach((spec, index) => {
    // The charts of one run are side by side; those of several runs are in a row for each quantity.
    if (index > 0 && runs.length > 1) grid = make("div", main, undefined, gridKind());
    const range = isAccuracy(spec) ? () => workerRange(spec) : null;
    detailed().forEach((run, number) => {
      const title = runs.length > 1 ? `${run.label}: ${spec.title.toLowerCase()}` : spec.title;
      chart(panel(grid, title), `${spec.name}-${number}`, perWorker(run, spec), { lead: "worker", range });
    });
  });
  if (!isLive) drawBatches(grid);
};
const drawComparisons = () => {
  let [grid, title] = [null, null];
  wanted((spec) => spec.lines === "runs" && spec.section !== "").forEach((spec) => {
    if (spec.section !== title) {
      grid = section(spec.section, spec.note, "grid three");
      const legend = make("div", main);
      runLegend(legend);
      main.insertBefore(legend, grid);
    }
    title = spec.section;
    drawCompared(grid, spec);
  });
};
const drawConfigurations = () => {
  make("h2", main, "Configuration");
  runs.forEach((run) => {
    const details = make("details", main);
    make("summary", details, run.label);
    make("pre", details, run.config || "config.toml not found");
  });
};

// Builds the whole page.
const build = () => {
  nameRuns();
  charts.forEach((entry) => { resized.unobserve(entry.element); entry.instance?.dispose(); });
  charts = window.upwash.charts = [];
  waiting = [];
  ranges.clear();
  window.upwash.runs = runs;
  main.replaceChildren();
  document.getElementById("lead").textContent = runs.length === 1 ? `${runs[0].name}: ${runs[0].algorithm} on ${runs[0].graph_name}` : `${runs.length} runs`;
  const notices = make("div", main);
  notices.id = "notices";
  fillNotices(notices);
  // The live page shows the parts that change first.
  const parts = isLive ? [drawGraphs, drawWorkers, drawSummary] : [drawSummary, drawOverview, drawWorkers, drawGraphs];
  [...parts, drawComparisons, drawCopies, drawConfigurations].forEach((part) => part());
  drawSome();
};
