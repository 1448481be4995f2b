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
const workerLines = (run, key) => {
  const rows = run.epochs.filter((epoch) => epoch[key]);
  const spread = (epoch, which) => (key === "losses" ? epoch.loss : epoch.accuracy)?.[which] ?? null;
  return {
    workers: run.drawn.map((_, index) => rows.map((epoch) => [epoch.epoch, epoch[key][index]])),
    mean: rows.map((epoch) => [epoch.epoch, spread(epoch, "mean")]),
    band: rows.map((epoch) => [epoch.epoch, spread(epoch, "low"), spread(epoch, "high")]),
  };
};
// All runs have the same axes, so that charts side by side can be compared.
const lastEpoch = () => (runs.length > 1 ? Math.max(...runs.map((run) => last(run, "epoch") || 1)) : undefined);
// The range of each chart of the list, until the data changes.
const ranges = new Map();
const workerRange = (spec) => {
  const key = `${spec.name} ${isFull}`;
  if (!ranges.has(key)) ranges.set(key, findWorkerRange(spec));
  return ranges.get(key);
};
const findWorkerRange = (spec) => {
  const all = runs.flatMap((run) => {
    const { workers, band: edges } = workerLines(run, spec.y.key);
    return [...workers, edges.map(([x, low]) => [x, low]), edges.map(([x, , high]) => [x, high])];
  });
  return spec.log ? logRange(all) : accuracyRange(all, 1);
};
const workerChart = (run, series, more) => {
  const names = run.drawn.map((worker) => `worker ${worker}`);
  return { series: names.map((name, index) => lines(name, series.workers[index], index, more)), legend: [...names, "mean"] };
};
const meanLine = (points) => {
  const ink = color("--ink");
  return lines("mean", points, 0, { line: { width: 3, color: ink, type: "solid" }, item: { color: ink } });
};
const perWorker = (run, spec) => () => {
  const found = workerLines(run, spec.y.key);
  const { series, legend } = workerChart(run, found);
  series.push(meanLine(found.mean));
  if (run.drawn.length > 1) series.push(band(found.band, spec.log));
  const isAccuracy = spec.y.key === "accuracies";
  return frame("epoch", series, { log: spec.log, format: isAccuracy ? percent : short, label: isAccuracy ? shortPercent : short, legend, range: workerRange(spec), until: lastEpoch() });
};

// Batch losses of single rounds.
const perBatch = (run) => () => {
  const points = (one) => ({
    workers: one.drawn.map((_, index) => one.batches.map((row) => [row.round, row.losses[index]])),
    mean: one.batches.map((row) => [row.round, row.loss?.mean ?? null]),
  });
  const found = points(run);
  const { series, legend } = workerChart(run, found, { line: { width: 0.8, opacity: 0.6 } });
  series.push(meanLine(found.mean));
  return frame("round", series, { log: true, legend, range: logRange(runs.flatMap((one) => points(one).workers)) });
};

const LEADERS = ["#d55e00", "#cc79a7"];
const isRunning = (run) => isLive && !run.ending;
const leaderNames = (run) => (run.algorithm.startsWith("LSGD") ? ["the best of its group", "the best of all"] : ["the best neighbor", "the best-connected"]);
const shape = (parent, tag, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  parent.append(element);
  return element;
};
// A drawing of the graph: the program draws it, the page colors the workers. While the run is in progress, the links of
// the last round stand out, and arrows lead from leaders to the workers that follow them.
const graph = (parent, id, run, index, isOverlaid) => {
  const element = make("div", parent, undefined, "graph");
  element.id = id;
  element.innerHTML = run.drawings[index];
  const drawing = element.firstElementChild;
  drawing.removeAttribute("width");
  drawing.removeAttribute("height");
  // The panel has the title already. A saved picture keeps it.
  const viewBox = drawing.getAttribute("viewBox");
  const [, , width, height] = viewBox.split(" ").map(Number);
  const top = 32;
  drawing.setAttribute("viewBox", `0 ${top} ${width} ${height - top}`);
  const nodes = [...drawing.querySelectorAll("circle")];
  const links = [...drawing.querySelectorAll("[data-link]")];
  links.forEach((link) => { link.normal = Number(link.getAttribute("stroke-width")); });
  nodes.forEach((node) => shape(node, "title", {}));
  // In front of the links, behind the workers.
  const overlay = shape(drawing, "g", { class: "overlay" });
  drawing.insertBefore(overlay, nodes[0]);
  const badges = shape(drawing, "g", {});
  const center = (worker) => {
    const node = nodes.find((found) => Number(found.dataset.worker) === worker);
    return [Number(node.getAttribute("cx")), Number(node.getAttribute("cy")), Number(node.getAttribute("r"))];
  };
  // An arrow on a curve, ending at the edge of the follower's node.
  const arrow = (leader, worker, which) => {
    const [[x1, y1], [x2, y2, radius]] = [center(leader), center(worker)];
    const bend = 0.16 + 0.14 * which;
    const middle = [(x1 + x2) / 2 + bend * (y2 - y1), (y1 + y2) / 2 - bend * (x2 - x1)];
    const [dx, dy] = [x2 - middle[0], y2 - middle[1]];
    const length = Math.hypot(dx, dy) || 1;
    const tip = [x2 - dx / length * radius, y2 - dy / length * radius];
    const wing = (angle) => [tip[0] - 8 * Math.cos(Math.atan2(dy, dx) + angle), tip[1] - 8 * Math.sin(Math.atan2(dy, dx) + angle)];
    const path = shape(overlay, "path", {
      d: `M${x1} ${y1} Q${middle} ${tip} M${wing(0.5)} L${tip} L${wing(-0.5)}`, class: "leader", fill: "none", stroke: LEADERS[which], "stroke-width": 1.8, "stroke-dasharray": which ? "6 3" : "none",
    });
    shape(path, "title", {}).textContent = `${leader} leads ${worker}: ${leaderNames(run)[which]}`;
  };
  // The number of workers that follow a leader, at the side of its node: right for the first leader, left for the second.
  const badge = (leader, which, count) => {
    const [x, y, radius] = center(leader);
    const size = Math.max(6, radius * 0.55);
    const cx = x + (which ? -1 : 1) * radius * 0.9;
    const cy = y - radius * 0.9;
    const group = shape(badges, "g", { class: "followers" });
    shape(group, "circle", { cx, cy, r: size, fill: LEADERS[which] });
    shape(group, "text", { x: cx, y: cy + 0.36 * size * 1.4, "font-size": size * 1.4, "text-anchor": "middle", fill: "#ffffff", "font-weight": "bold" }).textContent = count;
    shape(group, "title", {}).textContent = `${count} worker${count > 1 ? "s follow" : " follows"} ${leader}: ${leaderNames(run)[which]}`;
  };
  const update = () => {
    nodes.forEach((node) => {
      const worker = Number(node.dataset.worker);
      node.setAttribute("fill", run.colors[worker]);
      node.firstElementChild.textContent = `worker ${worker}, test accuracy ${percent(run.ends[worker])}`;
    });
    drawing.querySelectorAll("text[data-worker]").forEach((text) => {
      const [red, green, blue] = [1, 3, 5].map((at) => parseInt(run.colors[Number(text.dataset.worker)].slice(at, at + 2), 16));
      text.setAttribute("fill", 0.299 * red + 0.587 * green + 0.114 * blue < 128 ? "#ffffff" : "#222222");
    });
    const colors = document.getElementById(`${id}-colors`);
    if (colors) colors.textContent = run.colors_caption ? `Colors: ${run.colors_caption}.` : "";
    overlay.replaceChildren();
    badges.replaceChildren();
    const isActive = isOverlaid && isRunning(run) && run.now.links;
    const key = (a, b) => `${Math.min(a, b)} ${Math.max(a, b)}`;
    const active = new Map(isActive ? run.now.links.map(([a, b]) => [key(a, b), [a, b]]) : []);
    links.forEach((link) => {
      const isUp = active.delete(link.dataset.link);
      link.classList.toggle("up", Boolean(isUp));
      link.setAttribute("stroke-width", isUp ? 2 * link.normal : link.normal);
      link.setAttribute("opacity", isActive && !isUp ? 0.15 : 1);
    });
    if (!isActive) return;
    // Links of the other copies of the graph.
    active.forEach(([a, b]) => {
      const [[x1, y1], [x2, y2]] = [center(a), center(b)];
      shape(overlay, "line", { x1, y1, x2, y2, class: "up other", "stroke-width": 2 * links[0].normal });
    });
    if (run.workers > 100) return;
    const followers = new Map();
    run.now.leaders.forEach((pair, worker) => (pair || []).forEach((leader, which) => {
      if (leader === worker) return;
      arrow(leader, worker, which);
      const key = `${leader} ${which}`;
      followers.set(key, (followers.get(key) || 0) + 1);
    }));
    followers.forEach((count, key) => badge(...key.split(" ").map(Number), count));
  };
  const picture = () => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(element.innerHTML.replace(/viewBox="[^"]*"/, `viewBox="${viewBox}"`))}`;
  addPicture(parent, id, { element, changes: "rounds", update, picture });
};

// A chart with a line for each run.
const comparedPoints = (spec) => runs.map((run) => run.epochs.map((epoch) => [epoch[spec.x.key], epoch[spec.y.key]]).filter((point) => known(point).length === 2));
const isAccuracy = (spec) => spec.y.label.includes("accuracy");
const comparedRange = (spec) => {
  // The mean and the worst worker are side by side.
  if (isAccuracy(spec)) return accuracyRange(["mean_accuracy", "smallest_accuracy"].flatMap((key) => comparedPoints({ ...spec, y: { key } })), 100);
  return spec.log ? logRange(comparedPoints(spec)) : {};
};
const compared = (spec) => () => {
  const points = comparedPoints(spec);
  return frame(spec.x.label, runs.map((run, index) => lines(run.label, points[index], index)), {
    log: spec.log, range: comparedRange(spec), legend: runs.length > 1 ? runs.map((run) => run.label) : [],
    format: isAccuracy(spec) ? (value) => (value === null || value === undefined ? "–" : `${+value.toFixed(2)} %`) : short, from: ["gigabytes", "seconds"].includes(spec.x.key) ? 0 : undefined,
  });
};
