// Shapes of a band (several runs as one), of gaps and of events. No DOM; the forms are those of `curve_shapes.js`.

import { plain } from "./curve_shapes.js";

const MIN_GAP = 3; // CSS pixels: a gap is seen, however short it is
const MAX_TEXT = 60; // characters of an event beside its line

/** Return the shapes of a band: the area between `low` and `high`, the line `mean`, a mark where runs have ended. */
export function bandShapes(frame, band, line) {
  const { ratio, box } = frame;
  const n = band.x.length;
  const shapes = [];
  for (const [from, to] of stretches(band.low, band.high, frame.logY)) {
    const upper = plain(frame, band.x, band.high, from, to);
    const lower = [];
    for (let i = to - 1; i >= from; i--) lower.push(frame.toX(band.x[i]), frame.toY(band.low[i]));
    shapes.push({ kind: "area", points: [...upper, ...lower], colour: line.colour, alpha: 0.22 });
  }
  const style = { colour: line.colour, dash: line.dash.map((length) => length * ratio), width: 2 * ratio };
  shapes.push({ kind: "path", points: plain(frame, band.x, band.mean, 0, n), ...style });
  const bottom = box.top + box.height;
  for (let i = 1; i < n; i++) {
    const pixel = frame.toX(band.x[i]);
    if (band.runs[i] < band.runs[i - 1]) {
      shapes.push({ kind: "path", points: [pixel, bottom, pixel, bottom - 10 * ratio], ...style, dash: [] });
      if (box.width > 500 * ratio) {
        const text = `${band.runs[i]} runs`;
        shapes.push({ kind: "text", x: pixel + 3 * ratio, y: bottom - 4 * ratio, text, align: "left", colour: line.colour });
      }
    }
    if (band.nans[i]) shapes.push({ kind: "mark", shape: "cross", x: pixel, y: bottom - 6 * ratio, colour: line.colour });
    if (band.infs[i]) shapes.push({ kind: "mark", shape: "up", x: pixel, y: box.top + 6 * ratio, colour: line.colour });
  }
  return shapes;
}

/** Return hatched areas where records were dropped. `gaps`: `{from, to, count}` in x. */
export function gapShapes(frame, gaps, colour) {
  const { box, ratio } = frame;
  const made = [];
  for (const gap of gaps) {
    const left = frame.toX(gap.from);
    const width = Math.max(MIN_GAP * ratio, frame.toX(gap.to) - left);
    if (left > box.left + box.width || left + width < box.left || !Number.isFinite(left)) continue;
    made.push({ kind: "rect", box: [left, box.top, width, box.height], isHatched: true, colour, alpha: 0.5 });
  }
  return made;
}

/** Return the marks of events: a dashed line, a flag on top, and where there is room the text. `events`: `{x, text}`. */
export function eventShapes(frame, events, colourOf) {
  const { box, ratio } = frame;
  const made = [];
  let free = -Infinity; // where the next text may begin
  for (const event of events) {
    const x = frame.toX(event.x);
    if (!(x >= box.left && x <= box.left + box.width)) continue;
    const colour = colourOf(event);
    const dash = [3 * ratio, 3 * ratio];
    made.push({ kind: "path", points: [x, box.top, x, box.top + box.height], colour, dash, width: ratio, alpha: 0.8 });
    made.push({ kind: "mark", shape: "flag", x, y: box.top + 1 * ratio, colour });
    const text = event.text.length > MAX_TEXT ? `${event.text.slice(0, MAX_TEXT - 1)}…` : event.text;
    const length = text.length * 6.2 * ratio;
    if (box.width > 500 * ratio && x > free && x + length < box.left + box.width) {
      made.push({ kind: "text", x: x + 9 * ratio, y: box.top + 10 * ratio, text, align: "left", colour });
      free = x + length;
    }
  }
  return made;
}

/** Return `[from, to)` of each stretch in which both edges are numbers that can be drawn. */
function stretches(low, high, isLog) {
  const made = [];
  let from = -1;
  for (let i = 0; i <= low.length; i++) {
    const is = i < low.length && Number.isFinite(low[i]) && Number.isFinite(high[i]) && !(isLog && high[i] <= 0);
    if (is && from < 0) from = i;
    if (!is && from >= 0) {
      made.push([from, i]);
      from = -1;
    }
  }
  return made;
}
