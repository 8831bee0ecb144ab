// Histograms of one key: the one at a step as bars, and all of them over steps as a heat map.

import { h } from "../core/dom.js";
import { svg } from "../core/svg.js";
import * as theme from "../core/theme.js";

const WIDTH = 420;
const HEIGHT = 160;
const ROWS = 64; // of the heat map

/** Return the bars of one histogram: `fields` has `low`, `high` and `counts`. */
export function bars({ low, high, counts = [] }) {
  const most = Math.max(1, ...counts);
  const wide = WIDTH / Math.max(1, counts.length);
  const made = counts.map((count, at) => {
    const tall = (count / most) * (HEIGHT - 20);
    const from = low + ((high - low) * at) / counts.length;
    const bar = svg("rect", { x: at * wide, y: HEIGHT - 18 - tall, width: Math.max(0.5, wide - 0.5), height: tall, class: "bar-mark" });
    bar.append(svg("title", {}, `from ${short(from)}: ${count}`));
    return bar;
  });
  const label = `Histogram from ${short(low)} to ${short(high)}, ${counts.reduce((sum, each) => sum + each, 0)} values`;
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "histogram", role: "img", "aria-label": label },
    made,
    svg("text", { x: 0, y: HEIGHT - 4, class: "tick" }, short(low)),
    svg("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end", class: "tick" }, short(high)),
  );
}

/** Return the heat map of histograms by step: the darker, the more values lie there at that step. */
export function heatMap(values) {
  const known = values.filter((each) => each.fields.counts?.length && Number.isFinite(each.fields.low));
  const canvas = h("canvas", { class: "heat-map", width: WIDTH, height: ROWS * 2 });
  if (!known.length) return canvas;
  const low = Math.min(...known.map((each) => each.fields.low));
  const high = Math.max(...known.map((each) => each.fields.high));
  const label = `Heat map of ${known.length} histograms from step ${known[0].step} to ${known.at(-1).step}, values from ${short(low)} to ${short(high)}`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  draw(canvas, known, low, high);
  return canvas;
}

function draw(canvas, known, low, high) {
  const context = canvas.getContext("2d");
  context.fillStyle = theme.colour("--accent");
  const first = known[0].step;
  const span = Math.max(1, known.at(-1).step - first);
  known.forEach((each, index) => {
    const from = ((each.step - first) / span) * canvas.width;
    const to = index + 1 < known.length ? ((known[index + 1].step - first) / span) * canvas.width : canvas.width;
    const { counts } = each.fields;
    const total = Math.max(1, ...counts);
    const rows = new Float64Array(ROWS);
    counts.forEach((count, at) => {
      const value = each.fields.low + ((each.fields.high - each.fields.low) * (at + 0.5)) / counts.length;
      const row = Math.min(ROWS - 1, Math.floor(((value - low) / (high - low || 1)) * ROWS));
      rows[row] = Math.max(rows[row], count / total);
    });
    rows.forEach((share, row) => {
      if (!share) return;
      context.globalAlpha = 0.15 + 0.85 * share;
      context.fillRect(from, canvas.height - (row + 1) * (canvas.height / ROWS), Math.max(1, to - from), canvas.height / ROWS);
    });
  });
}

function short(value) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(4))) : String(value);
}
