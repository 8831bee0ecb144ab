// What one chart shows: its curves and bands in the visible range, the ranges of both axes, and the counts of all that a
// line cannot show. Pure, from data and the view.

import { xKey } from "./view_state.js";
import { extent, inside, padded, robustRange, smooth, xOf } from "./transform.js";

/** Return "step", "relative", "time" or "key". */
export function kindOf(view) {
  return xKey(view) ? "key" : view.x;
}

/**
 * Return `{curves, bands, x, y, notOnLogX}`: `curves` are `{run, curve, x, from, to, smoothed}`. `runs`: id -> `{startS}`;
 * `found`: run -> `Curve`; `bands`: list of `{name, band}`.
 */
export function layers(view, runs, found, bands) {
  const kind = kindOf(view);
  const laid = [...found].map(([run, curve]) => ({ run, curve, x: xOf(curve, kind, runs.get(run)?.startS ?? 0) }));
  const all = extent([...laid.map((each) => each.x), ...bands.map((each) => each.band.x)], view.logX);
  const x = rangeOfX(view, all);
  let notOnLogX = 0;
  for (const each of laid) {
    const rises = kind !== "key" ? isRising(each.x) : each.curve.isRising;
    [each.from, each.to] = rises ? inside(each.x, x[0], x[1]) : [0, each.x.length];
    each.smoothed = view.smooth > 0 ? smoothed(view, each, x) : null;
    if (view.logX) for (let i = 0; i < each.x.length; i++) if (each.x[i] <= 0) notOnLogX += each.curve.count[i];
  }
  return { kind, curves: laid, bands, x, y: rangeOfY(view, laid, bands, x), notOnLogX };
}

/**
 * Return sums over the visible part: NaN, infinities, values that a log axis has no place for, buckets that reach above or
 * below the frame. Where `isRaw`, a bucket is a point.
 */
export function counts(shown, view) {
  const made = { nans: 0, infs: 0, negInfs: 0, notPositive: 0, above: 0, below: 0, isRaw: true, leftOut: 0, texts: false };
  for (const { curve, from, to, x } of shown.curves) {
    for (let i = from; i < to; i++) {
      if (x[i] < shown.x[0] || x[i] > shown.x[1]) continue;
      made.nans += curve.nans[i];
      made.infs += curve.infs[i];
      made.negInfs += curve.negInfs[i];
      if (curve.max[i] > shown.y[1]) made.above += 1;
      if (view.logY && curve.min[i] <= 0) made.notPositive += 1;
      else if (curve.min[i] < shown.y[0]) made.below += 1;
    }
    made.isRaw &&= curve.isRaw;
    made.leftOut += curve.leftOut;
    made.texts ||= curve.hasTexts;
  }
  for (const { band } of shown.bands) {
    for (let i = 0; i < band.length; i++) {
      if (band.x[i] < shown.x[0] || band.x[i] > shown.x[1]) continue;
      made.nans += band.nans[i];
      made.infs += band.infs[i];
      made.negInfs += band.negInfs[i];
      if (view.logY && band.low[i] <= 0) made.notPositive += 1;
    }
    made.isRaw = false;
  }
  return made;
}

/** Return the newest finite value, and the extremes, of one laid curve in the visible range. */
export function facts({ curve, x, from, to }, range) {
  let [low, high, last, lastAt] = [Infinity, -Infinity, NaN, NaN];
  for (let i = from; i < to; i++) {
    if (x[i] < range[0] || x[i] > range[1]) continue;
    if (curve.min[i] < low) low = curve.min[i];
    if (curve.max[i] > high) high = curve.max[i];
    last = curve.last[i];
    lastAt = x[i];
  }
  return { low: low <= high ? low : NaN, high: low <= high ? high : NaN, last, lastAt };
}

function rangeOfX(view, all) {
  const given = view.zoom && (!view.logX || view.zoom[0] > 0) ? view.zoom : null;
  if (given) return given;
  if (!all) return view.logX ? [1, 10] : [0, 1];
  if (all[0] === all[1]) return padded(all, view.logX);
  return all;
}

function rangeOfY(view, laid, bands, x) {
  const values = [];
  for (const { curve, from, to, x: places, smoothed: line } of laid) {
    for (let i = from; i < to; i++) {
      if (places[i] < x[0] || places[i] > x[1]) continue;
      values.push(curve.min[i], curve.max[i]);
      if (line) values.push(line[i]);
    }
  }
  for (const { band } of bands) {
    for (let i = 0; i < band.length; i++) {
      if (band.x[i] >= x[0] && band.x[i] <= x[1]) values.push(band.low[i], band.high[i], band.mean[i]);
    }
  }
  const found = view.robust ? robustRange(values, view.logY) : extent([values], view.logY);
  return padded(found ?? (view.logY ? [1, 10] : [0, 1]), view.logY);
}

function smoothed(view, { curve, x }, range) {
  const n = curve.length;
  const values = new Float64Array(n);
  for (let i = 0; i < n; i++) values[i] = Number.isFinite(curve.last[i]) ? curve.last[i] : (curve.min[i] + curve.max[i]) / 2;
  const share = view.smooth / 100;
  if (!view.logX) return smooth(x, values, share * (range[1] - range[0]));
  return smooth(x.map((each) => (each > 0 ? Math.log(each) : NaN)), values, share * Math.log(range[1] / range[0]));
}

function isRising(x) {
  for (let i = 1; i < x.length; i++) if (x[i] < x[i - 1]) return false;
  return true;
}
