// The sections of the page, from top to bottom.

const ended = (run) => {
  if (!run.ending) return isLive ? "" : "still running or interrupted";
  const again = run.processes > 1 ? "" : "; continue it with `upwash train ... --resume`";
  return {
    finished: "finished",
    interrupted: `stopped before round ${run.ending.round}${isLive ? again : ""}`,
    diverged: `diverged: worker ${run.ending.worker} in round ${run.ending.round}`,
  }[run.ending.status] || run.ending.status;
};

// The table of test accuracies: a row for each worker and a column for each run, as in the paper.
const fillTable = (table) => {
  table.replaceChildren();
  const head = make("tr", make("thead", table));
  make("th", head, "worker");
  runs.forEach((run) => make("th", head, run.label));
  const body = make("tbody", table);
  const rows = Math.max(...runs.map((run) => run.workers));
  for (let worker = 0; worker < Math.min(rows, 64); worker += 1) {
    if (runs.every((run) => run.server === worker)) continue;
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
  make("td", averaged, runs.every((run) => run.server !== null) ? "server model" : "averaged model");
  runs.forEach((run) => make("td", averaged, percent(run.averaged_accuracy)));
  const ends = make("tr", body);
  make("td", ends, "");
  runs.forEach((run) => make("td", ends, ended(run), "ended"));
};
const fillNotices = (container) => {
  container.replaceChildren();
  runs.forEach((run) => run.notices.forEach((notice) => make("p", container, `${run.name}: ${notice}`, "notice")));
};

const drawTable = () => {
  make("h2", main, !isLive && runs.every((run) => run.ending?.status === "finished") ? "Results" : "Results so far");
  make("p", main, "Test accuracy of each worker.", "note");
  const table = make("table", make("div", main, undefined, "scroll"));
  table.id = "table";
  fillTable(table);
};
const drawGraphs = () => {
  const known = runs.filter((run) => run.drawings.length);
  if (!known.length && !isLive) return;
  const grid = section(isLive ? "Live" : "Graph", "Links have the color of their matching, workers the color of their test accuracy.");
  known.forEach((run, number) => {
    const container = panel(grid, run);
    graph(container, `graph-${number}`, run, 0, true);
    make("p", container, "", "caption").id = `graph-${number}-colors`;
    make("p", container, "", "caption").id = `caption-${number}`;
    if (run.graph.relabelings.length > 1) make("p", container, `${run.graph.relabelings.length} copies of this graph, with the workers at different nodes, take turns.`, "caption");
  });
  if (isLive) drawBatches(grid);
};
const drawBatches = (grid) => runs.forEach((run, number) => {
  if (!isLive && (run.epochs.length >= 20 || run.batches.length < 2)) return;
  chart(panel(grid, null, `${run.label}: batch loss`), `batches-${number}`, perBatch(run), { changes: "rounds" });
});
// The copies of the graph in which workers are at other nodes.
const drawCopies = () => {
  const turning = runs.filter((run) => run.workers <= 100 && run.drawings.length > 1);
  if (!turning.length) return;
  const grid = section("Copies of the graph", "The copies take turns, so that no worker is always at the edge: the same graph, with the workers at different nodes.", "grid small");
  turning.forEach((run) => run.drawings.slice(1, 7).forEach((_, copy) => {
    graph(panel(grid, null, run.label), `copy-${runs.indexOf(run)}-${copy}`, run, copy + 1, false);
  }));
};
// The charts of the program's list, in their sections.
const drawCharts = (isWanted) => {
  const few = runs.some((run) => run.workers > run.drawn.length + 1) ? " With many workers, only some have a line; mean and band include all." : "";
  const isTested = isLive || runs.some((run) => run.epochs.some((epoch) => epoch.accuracies));
  let [grid, title] = [null, null];
  given.charts.filter(isWanted).filter((spec) => isTested || spec.name !== "accuracy").forEach((spec) => {
    const isPerWorker = spec.lines === "workers";
    if (spec.section !== title) {
      grid = section(spec.section, spec.note + (isPerWorker ? few : ""));
      if (!isLive && spec.name === "loss") drawBatches(grid);
    }
    title = spec.section;
    if (!isPerWorker) chart(panel(grid, null, spec.title), spec.name, compared(spec));
    else runs.forEach((run, number) => chart(panel(grid, run), `${spec.name}-${number}`, perWorker(run, spec.y.key, spec.log, spec.y.key === "accuracies" ? percent : short)));
  });
};
const drawLosses = () => drawCharts((spec) => spec.lines === "workers");
const drawComparisons = () => drawCharts((spec) => spec.lines === "runs");
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
  window.upwash.runs = runs;
  main.replaceChildren();
  document.getElementById("lead").textContent = runs.length === 1 ? `${runs[0].name}: ${runs[0].algorithm} on ${runs[0].graph_name}` : `${runs.length} runs: ${runs.map((run) => run.label).join(", ")}`;
  const notices = make("div", main);
  notices.id = "notices";
  fillNotices(notices);
  // The live page shows the parts that change first.
  const parts = isLive ? [drawGraphs, drawLosses, drawTable] : [drawTable, drawGraphs, drawLosses];
  [...parts, drawComparisons, drawCopies, drawConfigurations].forEach((part) => part());
  drawSome();
};
