// The contents of the charts: lines of the workers, the graph, comparisons of runs.

// The area between the lowest and the highest value: one polygon, drawn with the first visible point.
const band = (points, log) => {
  const usable = points.filter(([, low, high]) => low !== null && high !== null && (!log || low > 0));
  const fill = color("--ink");
  return {
    name: "_band", type: "custom", silent: true, clip: true, tooltip: { show: false }, data: usable, encode: { x: 0, y: [1, 2] }, z: 1,
    renderItem: (params, api) => (params.dataIndexInside !== 0 ? null : {
      type: "polygon",
      shape: { points: [...usable.map(([x, , high]) => api.coord([x, high])), ...usable.map(([x, low]) => api.coord([x, low])).reverse()] },
      style: { fill, opacity: 0.1 },
    }),
  };
};

// The workers of a run: a line each, their mean, and the band between the lowest and the highest.
const perWorker = (run, key, log, format) => () => {
  const rows = run.epochs.filter((epoch) => epoch[key]);
  const spread = (epoch) => (key === "losses" ? epoch.loss : epoch.accuracy);
  const workers = run.drawn;
  const series = workers.map((worker, index) => lines(`worker ${worker}`, rows.map((epoch) => [epoch.epoch, epoch[key][index]]), index));
  const ink = color("--ink");
  series.push(lines("mean", rows.map((epoch) => [epoch.epoch, spread(epoch)?.mean ?? null]), 0, { line: { width: 3, color: ink, type: "solid" }, item: { color: ink } }));
  if (workers.length > 1) series.push(band(rows.map((epoch) => [epoch.epoch, spread(epoch)?.low ?? null, spread(epoch)?.high ?? null]), log));
  return frame("epoch", series, { log, format, legend: [...workers.map((worker) => `worker ${worker}`), "mean"] });
};

// Batch losses of single rounds.
const perBatch = (run) => () => {
  const rows = run.batches;
  const ink = color("--ink");
  const series = run.drawn.map((worker, index) => lines(`worker ${worker}`, rows.map((row) => [row.round, row.losses[index]]), index, { line: { width: 0.8, opacity: 0.6 } }));
  series.push(lines("mean", rows.map((row) => [row.round, row.loss?.mean ?? null]), 0, { line: { width: 3, color: ink, type: "solid" }, item: { color: ink } }));
  return frame("round", series, { log: true, legend: [...run.drawn.map((worker) => `worker ${worker}`), "mean"] });
};

const isLarge = (run) => run.workers > 100;
const LEADERS = ["#d55e00", "#cc79a7"];
const isRunning = (run) => isLive && !run.ending;
const leaderNames = (run) => (run.algorithm.startsWith("LSGD") ? ["best of its group", "best of all"] : ["best neighbor", "best-connected neighbor"]);
// The graph, or one of its copies, in which the workers are at other nodes. While a run is in progress, the links of the
// last round are highlighted, and arrows point from leaders to their followers.
const graph = (run, copy) => () => {
  const base = frame("", [], { about: `The graph of ${run.workers} workers, with ${run.graph.matchings.flat().length} links in ${run.graph.matchings.length} matchings.` });
  const accuracies = run.ends;
  const all = known(run.ends);
  const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  const nodes = copy === undefined ? run.graph.positions.map((_, worker) => worker) : run.graph.relabelings[copy];
  const workerAt = [];
  nodes.forEach((node, worker) => { workerAt[node] = worker; });
  const degree = Array(run.workers).fill(0);
  run.graph.matchings.flat().forEach(([a, b]) => { degree[workerAt[a]] += 1; degree[workerAt[b]] += 1; });
  const largest = Math.max(1, ...degree);
  const many = isLarge(run);
  // Circles shrink as the number of workers grows.
  const scale = Math.min(1, Math.sqrt(8 / run.workers));
  const size = [18 * scale, 44 * scale];
  const [ink, line] = [color("--ink"), color("--line")];
  const width = many ? 0.6 : 2.5;
  const links = run.graph.matchings.flatMap((matching, index) => matching.map(([a, b]) => ({
    source: workerAt[a], target: workerAt[b], lineStyle: { ...style(index), width, opacity: 0.9 },
    caption: `${workerAt[a]} – ${workerAt[b]}, matching ${index}`,
  })));
  if (copy === undefined && isRunning(run) && run.now.links) {
    const key = (a, b) => `${Math.min(a, b)} ${Math.max(a, b)}`;
    const up = new Map(run.now.links.map(([a, b]) => [key(a, b), [a, b]]));
    links.forEach((link) => {
      const found = up.delete(key(link.source, link.target));
      Object.assign(link.lineStyle, found ? { width: 2 * width, opacity: 1 } : { opacity: 0.15 });
    });
    // Links of other copies.
    up.forEach(([a, b]) => links.push({ source: a, target: b, lineStyle: { color: ink, width: 2 * width, opacity: 0.8 }, caption: `${a} – ${b}` }));
    if (!many) {
      run.now.leaders.forEach((pair, worker) => (pair || []).forEach((leader, which) => {
        if (leader === worker) return;
        links.push({
          source: leader, target: worker, symbol: ["none", "arrow"], symbolSize: 9, emphasis: { disabled: true },
          lineStyle: { color: LEADERS[which], width: 1.6, type: DASHES[which], curveness: 0.16 + 0.14 * which, opacity: 1 },
          caption: `${leader} leads ${worker}: ${leaderNames(run)[which]}`,
        });
      }));
    }
  }
  const shown = {
    animation: false, textStyle: base.textStyle, aria: base.aria,
    tooltip: { ...base.tooltip, trigger: "item", formatter: (item) => (item.dataType === "edge" ? item.data.caption
      : `worker ${item.dataIndex}<br>degree ${degree[item.dataIndex]}<br>test accuracy ${percent(accuracies[item.dataIndex])}`) },
    visualMap: all.length ? { min: low, max: high === low ? low + 1e-9 : high, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, calculable: true, seriesIndex: 0,
      inRange: { color: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"] }, formatter: percent, textStyle: { color: ink }, text: ["test accuracy", ""] } : undefined,
  };
  // Many workers are drawn as a scatter plot with lines: the graph series would take half a second.
  if (many) {
    const at = (worker) => run.graph.positions[nodes[worker]];
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
        { type: "scatter", z: 3, data: nodes.map((_, worker) => [...at(worker), accuracies[worker]]), symbolSize: (_, { dataIndex }) => size[0] + (size[1] - size[0]) * degree[dataIndex] / largest, itemStyle: { color: ink } },
        ...[...kinds].map(([look, segments]) => ({ type: "lines", coordinateSystem: "cartesian2d", silent: true, lineStyle: JSON.parse(look), data: segments })),
      ],
    };
  }
  return {
    ...shown,
    series: [{
      type: "graph", layout: "none", roam: true, preserveAspect: "contain", top: 44, bottom: 84, left: 40, right: 40,
      label: { show: true, color: ink, position: "right" },
      data: nodes.map((node, worker) => ({
        // Scaled up, because edges between nodes less than one unit apart are drawn straight.
        name: String(worker), x: 1000 * run.graph.positions[node][0], y: 1000 * run.graph.positions[node][1], value: accuracies[worker],
        symbolSize: size[0] + (size[1] - size[0]) * degree[worker] / largest,
      })),
      links, itemStyle: { borderColor: ink, borderWidth: many ? 0 : 1 },
      emphasis: { focus: "adjacency" }, lineStyle: { color: line },
    }],
  };
};

// Several runs in one chart.
const compared = (x, value, at, more = {}) => () => frame(x, runs.map((run, index) => lines(
  run.label, run.epochs.map((epoch) => [at(run, epoch), value(run, epoch)]).filter((point) => point[1] !== null && point[1] !== undefined), index)), more);
const accuracy = (_, epoch) => epoch.accuracy?.mean;
const worstAccuracy = (_, epoch) => epoch.accuracy?.low;
const worstLoss = (_, epoch) => epoch.loss?.high;
const epochOf = (_, epoch) => epoch.epoch;
