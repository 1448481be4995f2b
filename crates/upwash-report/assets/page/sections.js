// The page from top to bottom.

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
  make("td", averaged, runs.every((run) => run.server !== null) ? "the server's model" : "averaged model");
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
  make("h2", main, !isLive && runs.every((run) => run.ending?.status === "finished") ? "Results" : "So far");
  const table = make("table", make("div", main, undefined, "scroll"));
  table.id = "table";
  fillTable(table);
};
const drawGraphs = () => {
  const known = runs.filter((run) => run.graph);
  if (!known.length && !isLive) return;
  const grid = section(isLive ? "Live" : "Graph", "Links in the color of their matching, workers by degree (size) and accuracy (color).");
  known.forEach((run, number) => {
    const place = panel(grid, run);
    chart(place, `graph-${number}`, graph(run), { changes: "rounds", large: isLarge(run) });
    make("p", place, "", "words").id = `words-${number}`;
    if (run.graph.relabelings.length > 1) make("p", place, `${run.graph.relabelings.length} copies of this graph, with the workers in other places, take turns.`, "words");
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
  const others = (run) => (run.graph?.relabelings || []).map((places, copy) => [places, copy]).filter(([places]) => !isSame(places));
  const turning = runs.filter((run) => !isLarge(run) && others(run).length);
  if (!turning.length) return;
  const grid = section("Copies of the graph", "They take turns, so that nobody is always at the edge: the same graph, with the workers in other places.", "grid small");
  turning.forEach((run) => others(run).slice(0, 6).forEach(([_, copy]) => {
    const place = panel(grid, null, `${run.label}: copy ${copy + 1} of ${run.graph.relabelings.length}`);
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
