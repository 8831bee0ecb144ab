// A scatter plot: one mark per run, by a setting or value on each axis.

import { svg } from "../core/svg.js";
import { scaleOf } from "./scale.js";

const HEIGHT = 320;
const LEFT = 70;
const BOTTOM = 44;
const EDGE = 24;

/** Return the drawing. `x`, `y`: `{name, values}` with a value per run. Runs without both values are counted below it. */
export function scatter(x, y, runs, width, onRun) {
  const xs = scaleOf(x.values);
  const ys = scaleOf(y.values);
  const px = (part) => LEFT + part * (width - LEFT - EDGE);
  const py = (part) => EDGE + (1 - part) * (HEIGHT - BOTTOM - EDGE);
  const marks = [];
  runs.forEach((run, at) => {
    const place = [xs.at(x.values[at]), ys.at(y.values[at])];
    if (place.includes(null)) return;
    const mark = svg("circle", { cx: px(place[0]), cy: py(place[1]), r: 5, fill: run.colour, class: "run-mark", onclick: () => onRun(run.id) });
    mark.append(svg("title", {}, `${run.name}: ${x.name} ${x.values[at]}, ${y.name} ${y.values[at]}`));
    marks.push(mark);
  });
  const left = runs.length - marks.length;
  const about = left ? `${left} of ${runs.length} runs lack one of the two values.` : "";
  const label = `Scatter plot of ${marks.length} runs: ${x.name} against ${y.name}. ${about}`;
  return svg(
    "svg",
    { class: "scatter", width, height: HEIGHT, role: "img", "aria-label": label },
    svg("line", { x1: px(0), x2: px(1), y1: py(0), y2: py(0), class: "axis" }),
    svg("line", { x1: px(0), x2: px(0), y1: py(0), y2: py(1), class: "axis" }),
    xs.ticks.map((tick) => svg("text", { x: px(tick.at), y: py(0) + 16, "text-anchor": "middle", class: "tick" }, tick.text)),
    ys.ticks.map((tick) => svg("text", { x: px(0) - 6, y: py(tick.at) + 4, "text-anchor": "end", class: "tick" }, tick.text)),
    svg("text", { x: (px(0) + px(1)) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "axis-name" }, x.name),
    svg("text", { x: 4, y: 11, class: "axis-name" }, y.name),
    about ? svg("text", { x: px(1), y: HEIGHT - 8, "text-anchor": "end", class: "tick" }, about) : [],
    marks,
  );
}
