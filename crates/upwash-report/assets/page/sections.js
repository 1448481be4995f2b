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
  const known = runs.filter((run) => run.graph);
  if (!known.length && !isLive) return;
  const grid = section(isLive ? "Live" : "Graph", "Links have the color of their matching. The size of a worker shows its degree, the color its test accuracy.");
  known.forEach((run, number) => {
    const container = panel(grid, run);
    chart(container, `graph-${number}`, graph(run), { changes: "rounds", large: isLarge(run) });
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
  const isSame = (nodes) => nodes.every((node, worker) => node === worker);
  const others = (run) => (run.graph?.relabelings || []).map((nodes, copy) => [nodes, copy]).filter(([nodes]) => !isSame(nodes));
  const turning = runs.filter((run) => !isLarge(run) && others(run).length);
  if (!turning.length) return;
  const grid = section("Copies of the graph", "The copies take turns, so that no worker is always at the edge: the same graph, with the workers at different nodes.", "grid small");
  turning.forEach((run) => others(run).slice(0, 6).forEach(([_, copy]) => {
    const container = panel(grid, null, `${run.label}: copy ${copy + 1} of ${run.graph.relabelings.length}`);
    chart(container, `copy-${runs.indexOf(run)}-${copy}`, graph(run, copy));
  }));
};
const drawLosses = () => {
  const few = runs.some((run) => run.workers > run.drawn.length + 1) ? " With many workers, only some have a line; mean and band include all." : "";
  let grid = section("Training loss", `The mean over the batches of an epoch, for each worker. The thick line is the mean of all workers, the band spans the lowest to the highest.${few}`);
  if (!isLive) drawBatches(grid);
  runs.forEach((run, number) => chart(panel(grid, run), `loss-${number}`, perWorker(run, "losses", true)));
  if (isLive || runs.some((run) => run.epochs.some((epoch) => epoch.accuracies))) {
    grid = section("Test accuracy", `The test accuracy of each worker's model. The band spans the worst to the best.${few}`);
    runs.forEach((run, number) => chart(panel(grid, run), `accuracy-${number}`, perWorker(run, "accuracies", false, percent)));
  }
};
const drawComparisons = () => {
  let grid = section("Worst worker", "The largest training loss and the smallest test accuracy of any worker.");
  chart(panel(grid, null, "Largest training loss"), "worst-loss", compared("epoch", worstLoss, epochOf, { log: true }));
  chart(panel(grid, null, "Smallest test accuracy"), "worst-accuracy", compared("epoch", worstAccuracy, epochOf, { format: percent }));
  grid = section("Communication cost", "Mean test accuracy against rounds, bytes sent by all workers, and simulated time on the configured network.");
  chart(panel(grid, null, "Mean test accuracy by rounds"), "by-rounds", compared("rounds", accuracy, (run, epoch) => epoch.epoch * run.rounds_per_epoch, { format: percent }));
  chart(panel(grid, null, "Mean test accuracy by bytes sent"), "by-bytes", compared("GB sent", accuracy, (_, epoch) => epoch.bytes / 1e9, { format: percent, from: 0 }));
  chart(panel(grid, null, "Mean test accuracy by simulated time"), "by-time", compared("simulated seconds", accuracy, (_, epoch) => epoch.seconds, { format: percent, from: 0 }));
  chart(panel(grid, null, "Consensus distance (distance of the models from their average)"), "consensus", compared("epoch", (_, epoch) => epoch.consensus || null, epochOf, { log: true }));
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
