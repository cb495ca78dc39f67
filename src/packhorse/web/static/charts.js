// The plots of the overview, drawn with uPlot from the table of values below them: hover shows values, dragging zooms in.
// Without it the server's own drawings are shown.
const charts = new Map();
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];
// Between two marks of an axis of durations: a mark at 1.7 min tells nothing.
const COLOURS = { completed: "good-fill", failed: "bad-fill", cancelled: "off-fill", p50: "busy-fill", p95: "wait-fill" };
const HEIGHT = 180;

const seconds = (value) =>
  value < 1 ? `${Math.round(value * 1000)} ms` : value < 60 ? `${+value.toPrecision(2)} s`
  : value < 3600 ? `${+(value / 60).toPrecision(2)} min` : `${+(value / 3600).toPrecision(2)} h`;
const SAY = {
  count: (value) => value.toLocaleString("en"),
  seconds,
  percent: (value) => `${+value.toPrecision(3)} %`,
};

// Columns of the table by name, with the time in seconds; null where nothing is known.
function read() {
  const table = document.getElementById("values");
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.column ?? "at");
  const columns = Object.fromEntries(names.map((name) => [name, []]));
  for (const row of table.tBodies[0].rows) {
    names.forEach((name, at) => {
      const cell = row.cells[at];
      if (name === "at") columns.at.push(Date.parse(cell.querySelector("time").dateTime) / 1000);
      else if (name.includes("-")) columns[name].push(cell.dataset.value === undefined ? null : Number(cell.dataset.value));
      else columns[name].push(Number(cell.textContent));
    });
  }
  columns.rate = columns.at.map((_, i) => {
    const all = columns.completed[i] + columns.failed[i] + columns.cancelled[i];
    return all ? (100 * columns.failed[i]) / all : null;
  });
  return columns;
}

// A stack is drawn from its highest sum down; what is shown for each is its own value.
function data(columns, names, unit) {
  const own = names.map((name) => columns[name]);
  if (unit !== "count") return { own, drawn: own };
  const sums = own.map((_, at) => columns.at.map((_, i) => own.slice(0, at + 1).reduce((sum, each) => sum + each[i], 0)));
  return { own: own.toReversed(), drawn: sums.toReversed() };
}

function alone(plot, series) {
  const values = plot.data[series];
  return values.flatMap((value, i) => (value !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? [i] : []));
}

// Until the pointer is over a plot, its legend tells the last values there are.
function latest(plot) {
  if (plot.cursor.left >= 0) return;
  let at = plot.data[0].length - 1;
  while (at > 0 && plot.data.slice(1).every((values) => (values[at] ?? null) === null)) at--;
  plot.setLegend({ idx: at }, false);
}

function make(place, columns) {
  const { unit, title } = place.dataset;
  const keys = place.dataset.columns.split(" ");
  const names = place.dataset.names.split(" ");
  const found = data(columns, keys, unit);
  const shown = unit === "count" ? names.toReversed() : names;
  const box = place.querySelector(".canvas");
  const state = { own: found.own };
  const series = shown.map((name, at) => {
    const stroke = colour(COLOURS[name]);
    const value = (_, __, ___, i) => (i === null || state.own[at][i] === null ? "–" : SAY[unit](state.own[at][i]));
    if (unit === "count") return { label: name, fill: stroke, stroke, width: 0, points: { show: false }, value, paths: uPlot.paths.bars({ size: [0.8, 40], align: 1 }) };
    return { label: name, stroke, width: 2, value, dash: name === "p95" ? [5, 3] : undefined, points: { size: 6, fill: stroke, filter: alone } };
  });
  const axis = { stroke: colour("muted"), font: `13px ${colour("sans")}`, grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false } };
  const options = {
    width: box.clientWidth, height: HEIGHT, cursor: { sync: { key: "activity" }, drag: { x: true, y: false } },
    scales: { y: { range: (_, __, most) => [0, unit === "percent" ? 100 : Math.max(most, unit === "count" ? 4 : 0.01) * 1.1] } },
    axes: [{ ...axis, grid: { show: false }, space: 70, size: 28, values: [[86400, "{D} {MMM}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1]] },
      { ...axis, size: 58, space: 32, incrs: unit === "seconds" ? STEPS : undefined, values: (_, splits) => splits.map((each) => (unit === "count" && each % 1 ? "" : SAY[unit](each))) }],
    series: [{ label: "", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" }, ...series],
  };
  const heading = document.createElement("p");
  heading.className = "chart-title";
  heading.textContent = title;
  box.replaceChildren(heading);
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `Plot: ${title}. Its values are in the table below.`);
  state.plot = new uPlot(options, [columns.at, ...found.drawn], box);
  latest(state.plot);
  state.fill = (fresh) => {
    const again = data(fresh, keys, unit);
    state.own = again.own;
    const { min, max } = state.plot.scales.x;
    const first = state.plot.data[0];
    const isZoomed = min > first[0] || max < first.at(-1);
    state.plot.setData([fresh.at, ...again.drawn], !isZoomed);
    if (isZoomed) state.plot.redraw();
    latest(state.plot);
  };
  charts.set(box, state);
}

function draw() {
  const columns = read();
  for (const [box, { plot }] of charts) if (!box.isConnected) { plot.destroy(); charts.delete(box); }
  for (const place of document.querySelectorAll("[data-chart]")) {
    const state = charts.get(place.querySelector(".canvas"));
    if (state) state.fill(columns);
    else make(place, columns);
  }
}

function again() {
  for (const { plot } of charts.values()) plot.destroy();
  charts.clear();
  draw();
}

addEventListener("load", draw, { once: true });
document.addEventListener("refreshed", draw);
dark.addEventListener("change", again);
addEventListener("resize", () => {
  for (const [box, { plot }] of charts) { plot.setSize({ width: box.clientWidth, height: HEIGHT }); latest(plot); }
});
