// Shapes of one curve in a frame: its line with all extremes, the smoothed line, marks for what no line can show. No DOM.
//
// A shape is an object that `pen.js` paints on a canvas or writes as SVG:
//   {kind: "path", points: [x, y, …], …}   NaN, NaN: the line is interrupted
//   {kind: "area", points: [x, y, …], …}   a closed outline
//   {kind: "rect", box: [x, y, width, height], isHatched, …}
//   {kind: "mark", shape: "cross" | "up" | "down" | "dot" | "drop", x, y, …}
//   {kind: "text", x, y, text, align, …}
// with `colour`, `alpha`, `width` (of a stroke), `dash`. All lengths are pixels of the device.

const MARK_STEP = 7; // CSS pixels between marks of one kind: more would be one bar
const DOT_STEP = 10; // points farther apart than this get a dot each
const STEEP = 12; // CSS pixels: a stroke so high over at most a few columns is a spike, which no dash may interrupt
const STEEP_WIDTH = 3;
const RAW_ALPHA = 0.28; // of the line behind a smoothed one

/**
 * Return the shapes of a curve. `x`: of each bucket; `smoothed`: null, or values of each bucket; `line`: `{colour, dash}`;
 * `isSpread`: a bucket holds several series, all ranks of a run.
 */
export function curveShapes(frame, curve, x, [from, to], line, { smoothed = null, isThin = false, isSpread = false } = {}) {
  const { ratio } = frame;
  const width = (isThin ? 1 : 1.6) * ratio;
  const style = { colour: line.colour, dash: line.dash.map((length) => length * ratio), width };
  const raw = extremes(frame, curve, x, from, to);
  const shapes = [];
  if (smoothed) {
    shapes.push({ kind: "path", points: raw.points, ...style, dash: [], alpha: RAW_ALPHA });
    shapes.push({ kind: "path", points: plain(frame, x, smoothed, from, to), ...style, width: 2 * ratio });
  } else if (isSpread) {
    shapes.push(...spread(frame, curve, x, from, to, line.colour));
    shapes.push({ kind: "path", points: raw.points, ...style, dash: [], alpha: RAW_ALPHA });
    shapes.push({ kind: "path", points: plain(frame, x, curve.last, from, to), ...style });
  } else {
    shapes.push({ kind: "path", points: raw.points, ...style });
    if (style.dash.length) shapes.push({ kind: "path", points: steep(frame, raw.points), ...style, dash: [] });
  }
  const isSparse = curve.isRaw && (to - from) * DOT_STEP * ratio < frame.box.width;
  shapes.push(...dots(raw.points, isSparse, style));
  shapes.push(...oddMarks(frame, curve, x, from, to, style), ...edgeMarks(frame, raw, style));
  return shapes;
}

/**
 * Return the line through a curve's buckets: per column of pixels from where it comes to the lowest and the highest value
 * and on from the last. So whatever sticks out of any bucket is drawn, at its full height.
 */
export function extremes(frame, curve, x, from, to) {
  const { toX, toY, y, logY, logX } = frame;
  const points = [];
  const found = { points, above: [], below: [], notPositive: [] };
  let column = NaN;
  let [at, low, high, last, before] = [0, 0, 0, 0, NaN];
  const flush = () => {
    if (Number.isNaN(column)) return;
    const [a, b, c] = [toY(low), toY(high), toY(last)];
    if (low === high) points.push(at, a);
    else {
      const isLowFirst = Math.abs(before - a) < Math.abs(before - b);
      points.push(at, isLowFirst ? a : b, at, isLowFirst ? b : a);
      if (last !== (isLowFirst ? high : low)) points.push(at, c);
    }
    before = c;
    column = NaN;
  };
  for (let i = from; i < to; i++) {
    const isAtEdge = logY && curve.min[i] <= 0;
    if (isAtEdge) found.notPositive.push(toX(x[i]));
    if (!Number.isFinite(curve.min[i]) || (logY && curve.max[i] <= 0) || (logX && x[i] <= 0) || !Number.isFinite(x[i])) {
      flush();
      if (points.length && !Number.isNaN(points[points.length - 1])) points.push(NaN, NaN);
      continue;
    }
    const pixel = toX(x[i]);
    if (curve.max[i] > y[1]) found.above.push(pixel);
    if (curve.min[i] < y[0] && !isAtEdge) found.below.push(pixel);
    const value = Number.isFinite(curve.last[i]) ? curve.last[i] : (curve.min[i] + curve.max[i]) / 2;
    if (Math.floor(pixel) !== column) {
      flush();
      [column, at, low, high] = [Math.floor(pixel), pixel, curve.min[i], curve.max[i]];
    } else {
      low = Math.min(low, curve.min[i]);
      high = Math.max(high, curve.max[i]);
    }
    last = value;
  }
  flush();
  return found;
}

/** Return the area between the lowest and the highest value of each bucket: of all ranks, where they are asked for. */
function spread(frame, curve, x, from, to, colour) {
  const upper = plain(frame, x, curve.max, from, to).filter((length) => !Number.isNaN(length));
  const lower = [];
  for (let i = to - 1; i >= from; i--) {
    if (Number.isFinite(curve.min[i])) lower.push(frame.toX(x[i]), frame.toY(curve.min[i]));
  }
  return upper.length ? [{ kind: "area", points: [...upper, ...lower], colour, alpha: 0.22 }] : [];
}

/** Return the strokes of a line that go up or down at once. */
function steep({ ratio }, points) {
  const made = [];
  for (let i = 2; i < points.length; i += 2) {
    const [x0, y0, x1, y1] = [points[i - 2], points[i - 1], points[i], points[i + 1]];
    if (Math.abs(y1 - y0) > STEEP * ratio && x1 - x0 <= STEEP_WIDTH * ratio) made.push(x0, y0, x1, y1, NaN, NaN);
  }
  return made;
}

/** Return the line through single values. */
export function plain(frame, x, values, from, to) {
  const points = [];
  for (let i = from; i < to; i++) {
    if (Number.isFinite(values[i]) && !(frame.logY && values[i] <= 0) && !(frame.logX && x[i] <= 0)) {
      points.push(frame.toX(x[i]), frame.toY(values[i]));
    } else if (points.length && !Number.isNaN(points[points.length - 1])) points.push(NaN, NaN);
  }
  return points;
}

/** Return dots: of each point of a sparse curve, else of those that stand alone, which have no line. */
function dots(points, all, style) {
  const made = [];
  for (let i = 0; i < points.length; i += 2) {
    if (Number.isNaN(points[i])) continue;
    const isAlone = !(i >= 2 && !Number.isNaN(points[i - 2])) && !(i + 2 < points.length && !Number.isNaN(points[i + 2]));
    if (all || isAlone) made.push({ kind: "mark", shape: "dot", x: points[i], y: points[i + 1], colour: style.colour });
  }
  return made;
}

/** Return marks of points that are not finite: crosses (NaN) and arrows down (-inf) below, arrows up (inf) above. */
function oddMarks(frame, curve, x, from, to, style) {
  const { box, ratio } = frame;
  const [top, bottom] = [box.top + 6 * ratio, box.top + box.height - 6 * ratio];
  const kinds = [["nans", "cross", bottom], ["infs", "up", top], ["negInfs", "down", bottom]];
  return kinds.flatMap(([name, shape, y]) => {
    const pixels = [];
    for (let i = from; i < to; i++) if (curve[name][i]) pixels.push(frame.toX(x[i]));
    return spaced(frame, pixels).map((pixel) => ({ kind: "mark", shape, x: pixel, y, colour: style.colour }));
  });
}

/** Return arrows at the edges for what lies beyond them, and drops for values that a log axis has no place for. */
function edgeMarks(frame, raw, style) {
  const { box, ratio } = frame;
  const [top, bottom] = [box.top + 2 * ratio, box.top + box.height - 2 * ratio];
  const kinds = [[raw.above, "up", top], [raw.below, "down", bottom], [raw.notPositive, "drop", bottom]];
  return kinds.flatMap(([pixels, shape, y]) =>
    spaced(frame, pixels).map((x) => ({ kind: "mark", shape, x, y, colour: style.colour })),
  );
}

function spaced(frame, pixels) {
  const { left, width } = frame.box;
  const kept = [];
  for (const pixel of pixels) {
    if (pixel < left - 1 || pixel > left + width + 1) continue;
    if (!kept.length || Math.abs(pixel - kept[kept.length - 1]) >= MARK_STEP * frame.ratio) kept.push(pixel);
  }
  return kept;
}
