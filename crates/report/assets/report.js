"use strict";
// Draws the charts of a report with uPlot, from the numbers that the page holds in #data:
// {"charts": [{"title", "x_label", "lines": [{"name", "color", "is_smoothed", "x": [...], "y": [...]}]}]}; null is a gap.

const data = JSON.parse(document.getElementById("data").textContent);
const smoothing = document.getElementById("smoothing");
const logX = document.getElementById("log-x");
const logY = document.getElementById("log-y");
const holder = document.getElementById("charts");

// An exponential moving average over what there has been so far.
function smoothed(values, weight) {
  let sum = 0, share = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

// Over how many points the average is, about.
function points() {
  return Math.round(10 ** Number(smoothing.value));
}

function short(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

function fitting(values, isLog) {
  return isLog ? values.map(value => (value !== null && value > 0 ? value : null)) : values;
}

function chart(spec, figure) {
  const style = getComputedStyle(document.documentElement);
  const [front, line] = ["--front", "--line"].map(name => style.getPropertyValue(name).trim());
  const w = 1 - 1 / points();
  const tables = [], series = [{ label: spec.x_label }];
  const add = (entry, ys, label, width, alpha) => {
    const kept = entry.x.map((x, i) => i).filter(i => !logX.checked || entry.x[i] > 0);
    const xs = kept.map(i => entry.x[i]);
    tables.push([xs, fitting(kept.map(i => ys[i]), logY.checked)]);
    series.push({
      label, width, stroke: entry.color, alpha, spanGaps: false,
      points: { show: xs.length <= 40 ? undefined : false }, value: (_, value) => short(value),
    });
  };
  for (const entry of spec.lines) {
    const isSmoothed = entry.is_smoothed && w > 0;
    add(entry, entry.y, entry.name, isSmoothed ? 1 : 2, isSmoothed ? 0.35 : 1);
    if (isSmoothed) add(entry, smoothed(entry.y, w), `${entry.name}, smoothed`, 2, 1);
  }
  const axis = { stroke: front, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const options = {
    width: Math.max(200, figure.clientWidth - 18), height: 280,
    scales: { x: { time: false, distr: logX.checked ? 3 : 1 }, y: { distr: logY.checked ? 3 : 1 } },
    axes: [
      { ...axis, label: spec.x_label },
      { ...axis, size: 70, values: (_, marks) => marks.map(mark => (mark === null ? "" : short(mark))) },
    ],
    cursor: { drag: { x: true, y: true, uni: 20 }, sync: { key: "step" } },
    series,
  };
  figure.querySelector(".uplot")?.remove();
  const plot = new uPlot(options, uPlot.join(tables), figure);
  // For those who read the page by program.
  figure.dataset.points = spec.lines.map(entry => entry.y.length).join(" ");
  figure.dataset.last = spec.lines.map(entry => entry.y.findLast(value => value !== null)).join(" ");
  return plot;
}

const figures = data.charts.map(spec => {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = spec.title;
  figure.dataset.title = spec.title;
  figure.append(caption);
  holder.append(figure);
  return [spec, figure];
});

function draw() {
  document.getElementById("smoothing-points").textContent = points() === 1 ? "off" : `over ${points()} points`;
  for (const [spec, figure] of figures) chart(spec, figure);
  holder.dataset.drawn = figures.length;
  holder.dataset.fits = document.documentElement.scrollWidth <= innerWidth;
}

for (const input of [smoothing, logX, logY]) input.addEventListener("input", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) { width = innerWidth; draw(); }
});

const search = document.getElementById("search");
search?.addEventListener("input", () => {
  for (const row of document.querySelectorAll("#config tbody tr")) {
    row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
  }
});
draw();
