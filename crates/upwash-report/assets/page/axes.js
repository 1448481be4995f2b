// Axes: ranges that all runs of a page share, ticks, and what charts have in common.

// An accuracy axis. The first epochs are far below the others, which would then all be in the top of the chart: if they
// leave less than half of it to the rest, the axis starts above them, until the user asks for the full range.
let isFull = false;
const values = (points) => points.map((point) => point[1]).filter((value) => value !== null && value !== undefined);
// The lowest and the highest of some values; there may be too many of them for arguments of a function.
const extent = (all) => all.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
const accuracyRange = (all, largest) => {
  const late = all.flatMap((points) => values(points.slice(Math.floor(points.length / 3))));
  if (!late.length) return {};
  const [[low, high], [lowest]] = [extent(all.flatMap(values)), extent(late)];
  const isCut = high > lowest && high - lowest < 0.5 * (high - low);
  const from = isCut && !isFull ? lowest : low;
  const margin = 0.05 * (high - from) || 0.01 * largest;
  const [min, max] = [Math.max(0, from - margin), Math.min(largest, high + margin)];
  const power = 10 ** Math.floor(Math.log10((max - min) / 4));
  const interval = [1, 2, 5, 10].map((one) => one * power).find((step) => (max - min) / step <= 6);
  return { axis: { min: Math.floor(min / interval) * interval, max: Math.min(largest, Math.ceil(max / interval) * interval), interval }, isCut };
};
// The multiples of the largest round step of which at least three are on the axis.
const linearTicks = (min, max) => {
  const power = 10 ** Math.floor(Math.log10((max - min) / 3));
  const multiples = (step) => {
    const first = Math.ceil(min / step);
    return Array.from({ length: Math.floor(max / step) - first + 1 }, (_, index) => +((first + index) * step).toPrecision(6));
  };
  return [5, 2, 1].map((factor) => multiples(factor * power)).find((ticks, index) => ticks.length >= 3 || index === 2);
};
// A logarithmic axis, with ticks at 1, 2 and 5 times powers of ten, or at fewer of them over many decades. A short axis that
// holds too few of these has ticks at equal distances.
const logRange = (all) => {
  const positive = all.flatMap(values).filter((value) => value > 0);
  if (!positive.length) return {};
  const [low, high] = extent(positive);
  const [min, max] = [low / 1.15, high * 1.15];
  const decades = Math.log10(max / min);
  const digits = decades > 4 ? [1] : decades > 2.2 ? [1, 3] : decades > 0.7 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
  const ticks = [];
  for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power += 1) {
    ticks.push(...digits.map((digit) => +(digit * 10 ** power).toPrecision(2)).filter((tick) => tick > min && tick < max));
  }
  return { axis: { min, max }, ticks: { customValues: ticks.length < 3 ? linearTicks(min, max) : ticks } };
};
const frame = (x, series, more = {}) => {
  const ink = color("--ink"), soft = color("--soft"), line = color("--line");
  const axis = { nameTextStyle: { color: soft }, axisLabel: { color: soft }, axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } } };
  return {
    animation: false,
    textStyle: { color: ink, fontFamily: "system-ui, sans-serif" },
    aria: { enabled: true, label: { description: more.about || `Lines over ${x}. The table on this page has the final values.` } },
    tooltip: { trigger: "axis", confine: true, enterable: true, extraCssText: "max-height: 300px; overflow-y: auto;", backgroundColor: color("--paper"), borderColor: line, textStyle: { color: ink }, valueFormatter: more.format || short },
    legend: { show: false, top: 4, left: 4, right: 8, itemWidth: 22, itemHeight: 10, itemGap: 8, textStyle: { color: ink }, data: more.legend },
    grid: { left: 58, right: 18, top: 14, bottom: isPrinted() ? 44 : 54 },
    // The wheel scrolls the page; with Ctrl it zooms.
    dataZoom: [{ type: "inside", zoomOnMouseWheel: "ctrl" }, { type: "slider", show: false, height: 10, bottom: 2, showDataShadow: false, borderColor: line, textStyle: { color: soft } }],
    xAxis: { ...axis, type: "value", minInterval: more.from === undefined ? 1 : 0, axisPointer: { label: { precision: more.from === undefined ? 0 : 2, formatter: ({ value }) => `${x} ${short(value)}` } }, name: x, nameLocation: "middle", nameGap: 22, min: more.from ?? "dataMin", max: more.until ?? "dataMax", splitLine: { show: false }, axisLabel: { ...axis.axisLabel, hideOverlap: true, showMinLabel: true, showMaxLabel: false } },
    yAxis: { ...axis, type: more.log ? "log" : "value", scale: true, ...more.range?.axis, axisTick: { ...more.range?.ticks }, splitLine: { ...axis.splitLine, ...more.range?.ticks }, axisLabel: { ...axis.axisLabel, ...more.range?.ticks, formatter: more.label || more.format || short } },
    series,
  };
};
const lines = (name, points, index, more = {}) => ({
  name, type: "line", data: points, symbol: points.length < 3 ? "circle" : "none", symbolSize: 5, connectNulls: true,
  lineStyle: { width: 1.5, ...style(index), ...more.line }, itemStyle: { color: style(index).color, ...more.item }, ...more.series,
});
