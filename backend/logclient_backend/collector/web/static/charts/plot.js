// The canvas of a chart: uPlot draws axes, grid, cursor and selection; curves are painted by `pen.js` in its hook.

import uPlot from "../vendor/uPlot-1.6.32.esm.js";
import { duration, time as timeText } from "../core/format.js";
import { axisOf, labels, short } from "./axis.js";
import { frame } from "./frame.js";

const FONT = "11px system-ui, 'DejaVu Sans', sans-serif";
const X_AXIS = 26; // CSS pixels
const TIME_AXIS = 38; // with a second line for the day
const X_SPACE = 60;
const LETTER = 6.6; // about, of the font of axes
const DAY = "\n{D} {MMM}";
const YEAR = "\n{YYYY}";
/** Forms of times, by the distance of ticks in seconds; behind it the form where another year, month, day, ... begins. */
const TIMES = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [2419200, "{MMM}", YEAR, null, null, null, null, null, 1],
  [86400, "{D} {MMM}", YEAR, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", `${DAY} {YYYY}`, null, DAY, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", `${DAY} {YYYY}`, null, DAY, null, null, null, 1],
  [0.001, "{ss}.{fff}", `${DAY} {YYYY}`, null, DAY, null, "\n{HH}:{mm}", null, 1],
];
const DENSE = 1e4; // highest by lowest of a log axis
const DURATIONS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];
const TINY_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/** One plot. `handlers`: `{paint(frame, context), cursor(left, isOver), select(low, high), reset()}`. */
export class Plot {
  constructor(root, { kind, logX, logY, palette, handlers, size }) {
    this._ranges = { x: logX ? [1, 10] : [0, 1], y: logY ? [1, 10] : [0, 1] };
    this._log = { x: logX, y: logY };
    this._isTime = kind === "time";
    this._lay();
    const lines = (u, splits, axis) => (this._axes[u.axes[axis].scale].ticks ? splits : gridLines(u, splits, axis));
    const axis = {
      stroke: () => palette().dim,
      grid: { stroke: () => palette().grid, width: 1, filter: lines },
      ticks: { stroke: () => palette().grid, width: 1, size: 4, filter: lines },
      font: FONT,
      gap: 4,
    };
    const scale = (name, isLog) => ({ distr: isLog ? 3 : 1, range: () => this._axes[name].range });
    const hooks = {
      draw: [(u) => handlers.paint(this.frame(), u.ctx)],
      setSelect: [(u) => this._selected(u, handlers.select)],
      setCursor: [(u) => handlers.cursor(u.cursor.left)],
    };
    this.u = new uPlot(
      {
        ...size,
        ms: 1e-3, // times are in seconds
        padding: [8, () => Math.max(20, this._axes.x.ticks && this._spaceOfX() / 2), 0, 0], // half of the last label of x
        scales: { x: { ...scale("x", logX), time: kind === "time" }, y: scale("y", logY) },
        series: [{}, { paths: () => null, points: { show: false } }],
        legend: { show: false },
        axes: [
          { ...axis, size: kind === "time" ? TIME_AXIS : X_AXIS, space: () => this._spaceOfX(), ...xTicks(kind, logX) },
          { ...axis, size: yAxisSize, space: 32, values: (u, splits) => labels(splits) },
        ],
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false, dist: 5 },
          bind: { dblclick: () => () => handlers.reset() },
        },
        hooks,
      },
      [this._axes.x.range, [null, null]],
      root,
    );
    if (kind === "time") this.u.axes[0].scale = "x";
    else this._giveTicks(this.u.axes[0], "x");
    this._giveTicks(this.u.axes[1], "y");
  }

  /** Show these ranges, and paint. */
  show(x, y) {
    this._ranges = { x, y };
    this._lay();
    this.u.setData([this._axes.x.range, [null, null]], true);
    if (this._axes.x.ticks || this._axes.y.ticks) this.u.redraw(false, true); // its own scale is as it was
  }

  resize(size) {
    if (size.width !== this.u.width || size.height !== this.u.height) this.u.setSize(size);
  }

  /** Return where values lie in pixels of the canvas. */
  frame() {
    const { left, top, width, height } = this.u.bbox;
    const box = { left, top, width, height };
    const { x, y } = this._ranges;
    return frame({ box, x, y, logX: this._log.x, logY: this._log.y, ratio: uPlot.pxRatio });
  }

  /** Return x at so many CSS pixels from the left edge of the plot. */
  at(left) {
    return this._axes.x.from(this.u.posToVal(left, "x"));
  }

  /** Return the place of x in CSS pixels from the left edge. */
  leftOf(x) {
    return this.u.valToPos(this._axes.x.to(x), "x");
  }

  /** Move the cursor to x; null hides it. */
  cursor(x) {
    const left = x === null ? -10 : this.leftOf(x);
    this.u.setCursor({ left, top: left < 0 ? -10 : 4 }, false);
  }

  get canvas() {
    return this.u.ctx.canvas;
  }

  /** Return the ticks of both axes as texts and CSS pixels of the canvas, for SVG. */
  ticks() {
    const ratio = uPlot.pxRatio;
    const of = (axis, scale) =>
      axis._splits
        .map((value, i) => ({ at: this.u.valToPos(value, scale, true) / ratio, text: String(axis._values[i] ?? "").replace("\n", " ") }))
        .filter((tick) => Number.isFinite(tick.at));
    return { x: of(this.u.axes[0], "x"), y: of(this.u.axes[1], "y") };
  }

  destroy() {
    this.u.destroy();
  }

  /** Work out how uPlot draws the ranges; times of days it always finds itself. */
  _lay() {
    const { x, y } = this._ranges;
    this._axes = { x: axisOf(x, this._log.x), y: axisOf(y, this._log.y) };
    if (this._isTime) this._axes.x = { range: x, to: (value) => value, from: (value) => value, ticks: null };
  }

  /** Give an axis our ticks where `axisOf` has some, else uPlot's own. */
  _giveTicks(axis, name) {
    const { splits, values, filter } = axis;
    let ours = null;
    axis.splits = (u, at, low, high, step, ...more) => {
      const { ticks, to } = this._axes[name];
      ours = ticks && ticks(step);
      return ours ? ours.map(to) : splits(u, at, low, high, step, ...more);
    };
    axis.filter = (u, found, ...more) => (ours ? found : filter(u, found, ...more));
    axis.values = (u, found, ...more) => (ours ? labels(ours, this._ranges[name][1] - this._ranges[name][0]) : values(u, found, ...more));
  }

  /** Return the least CSS pixels between two ticks along x: room for the digits in which they differ. */
  _spaceOfX() {
    const [low, high] = this._ranges.x;
    if (!this._axes.x.ticks) return X_SPACE;
    const digits = Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low)) + 3;
    return Math.max(X_SPACE, Math.min(18, digits) * LETTER + 10);
  }

  _selected(u, select) {
    const { left, width } = u.select;
    if (width < 2) return;
    const [low, high] = [this.at(left), this.at(left + width)];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    select(low, high);
  }
}

/** Return where lines are drawn: over many decades at powers of ten only, or they would be a grey area. */
function gridLines(u, splits, axis) {
  const scale = u.scales[u.axes[axis].scale];
  if (scale.distr !== 3 || scale.max / scale.min < DENSE) return splits;
  return splits.map((value) => (Math.abs(Math.log10(value) % 1) < 1e-9 ? value : null));
}

/** Return room for the longest label. A second look at it only widens, or two sizes could take turns for ever. */
function yAxisSize(u, labels, axis, cycle) {
  const longest = Math.max(3, ...(labels ?? []).map((label) => label.length));
  const size = Math.ceil(longest * LETTER) + 14;
  return cycle > 1 ? Math.max(size, u.axes[axis]._size) : size;
}

function xTicks(kind, isLog) {
  if (kind === "time") return { values: TIMES };
  if (kind === "relative" && !isLog) {
    return { incrs: [...TINY_S, ...DURATIONS], values: (u, splits) => splits.map((s) => (s === 0 ? "0" : duration(s) || short(s))) };
  }
  return { values: (u, splits) => labels(splits) };
}

/** Return x in words, for the readout. */
export function xText(x, kind) {
  if (kind === "time") return timeText(x * 1e9);
  if (kind === "relative") return duration(x) || short(x);
  if (kind === "step") return Math.round(x).toLocaleString("en");
  return Number.isInteger(x) ? x.toLocaleString("en") : String(Number(x.toPrecision(8)));
}
