// Parallel coordinates: one line per run over an axis for each setting that differs, and for each chosen value.

import { svg } from "../core/svg.js";
import { scaleOf } from "./scale.js";

const HEIGHT = 300;
const TOP = 34;
const BOTTOM = 16;
const SIDE = 70;
const STEP = 120; // least pixels between two axes

/**
 * Return the drawing. `axes`: `[{name, values}]` with a value per run; `runs`: `[{id, name, colour, dash}]`; `onRun(id)` is called when a
 * line is chosen. A run without a value on an axis has no line to and from it.
 */
export function parallel(axes, runs, width, onRun) {
  const whole = Math.max(width, 2 * SIDE + STEP * (axes.length - 1));
  const x = (at) => (axes.length > 1 ? SIDE + (at * (whole - 2 * SIDE)) / (axes.length - 1) : whole / 2);
  const y = (part) => TOP + (1 - part) * (HEIGHT - TOP - BOTTOM);
  const scales = axes.map((axis) => scaleOf(axis.values));
  const lines = runs.map((run, at) => line(run, pathOf(axes, scales, at, x, y), onRun));
  const drawn = axes.map((axis, at) => axisOf(axis, scales[at], x(at), y));
  const label = `Parallel coordinates of ${runs.length} runs over ${axes.map((axis) => axis.name).join(", ")}`;
  return svg("svg", { class: "parallel", width: whole, height: HEIGHT, role: "img", "aria-label": label }, lines, drawn);
}

function pathOf(axes, scales, run, x, y) {
  let path = "";
  let isOpen = false;
  axes.forEach((axis, at) => {
    const part = scales[at].at(axis.values[run]);
    if (part !== null) path += `${isOpen ? "L" : "M"}${x(at).toFixed(1)} ${y(part).toFixed(1)}`;
    isOpen = part !== null;
  });
  return path;
}

function line(run, path, onRun) {
  const made = svg("path", {
    d: path,
    class: "run-line",
    stroke: run.colour,
    "stroke-dasharray": run.dash.join(" ") || null,
    onclick: () => onRun(run.id),
  });
  made.append(svg("title", {}, run.name));
  return made;
}

function axisOf(axis, scale, x, y) {
  const name = axis.name.length > 18 ? `…${axis.name.slice(-17)}` : axis.name;
  const title = svg("text", { x, y: 14, "text-anchor": "middle", class: "axis-name" }, name);
  title.append(svg("title", {}, axis.name));
  const ticks = scale.ticks.map((tick) => svg("text", { x: x + 5, y: y(tick.at) + 4, class: "tick" }, tick.text));
  return svg("g", {}, svg("line", { x1: x, x2: x, y1: y(0), y2: y(1), class: "axis" }), title, ticks);
}
