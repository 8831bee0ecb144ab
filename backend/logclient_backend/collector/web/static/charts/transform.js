// From curves to what is drawn: x of each bucket, smoothing, ranges of y. Pure functions over typed arrays.

import { search } from "./curve.js";

const LEAST_ROOM = 1e-300; // around values that lie closer than a chart can draw apart
const HUGE = 1e290; // sums of such values need not be finite

/**
 * Return x of each bucket of a curve. `kind`: "step", "time" (s since 1970, of the last point of a bucket), "relative" (the
 * same since `startS`, when the run began), or "key" (x as the collector gives it). A bucket of several steps lies in its middle.
 */
export function xOf(curve, kind, startS = 0) {
  const n = curve.length;
  const made = new Float64Array(n);
  if (kind === "time") made.set(curve.time.subarray(0, n));
  else if (kind === "relative") for (let i = 0; i < n; i++) made[i] = curve.time[i] - startS;
  else if (kind === "key") made.set(curve.x.subarray(0, n));
  else for (let i = 0; i < n; i++) made[i] = (curve.x[i] + curve.endX[i]) / 2;
  return made;
}

/**
 * Smooth `values` at the places `x`: each becomes the mean of all, weighted by e^(-distance / tau). `tau` is a share of the
 * visible range of x, so a curve looks equally smooth whether it has a hundred points or ten million, and steps that are
 * missing count for their distance. It looks both ways: nothing is shifted along x. Values that are not finite are left
 * out, and stay gaps. Two passes, whatever `tau` is.
 */
export function smooth(x, values, tau) {
  const n = values.length;
  if (!(tau > 0)) return Float64Array.from(values);
  const made = new Float64Array(n).fill(NaN);
  const weights = new Float64Array(n);
  const unit = values.some((value) => Math.abs(value) > HUGE) ? 1 / HUGE : 1;
  let sum = 0;
  let weight = 0;
  let before = NaN;
  for (let i = 0; i < n; i++) {
    if (!Number.isFinite(values[i]) || !Number.isFinite(x[i])) continue;
    const kept = Number.isNaN(before) ? 0 : Math.exp(-Math.abs(x[i] - before) / tau);
    sum = sum * kept + values[i] * unit;
    weight = weight * kept + 1;
    made[i] = sum;
    weights[i] = weight;
    before = x[i];
  }
  sum = weight = 0;
  before = NaN;
  for (let i = n - 1; i >= 0; i--) {
    if (Number.isNaN(made[i])) continue;
    const kept = Number.isNaN(before) ? 0 : Math.exp(-Math.abs(x[i] - before) / tau);
    sum *= kept; // without the value itself, which the first pass has counted
    weight *= kept;
    made[i] = (made[i] + sum) / (weights[i] + weight) / unit;
    sum += values[i] * unit;
    weight += 1;
    before = x[i];
  }
  return made;
}

/** Return `[from, to)`: the buckets in a range of rising x, and one more on each side, to which the line goes on. */
export function inside(x, low, high) {
  const from = Math.max(0, search(x, x.length, low) - 1);
  const to = Math.min(x.length, search(x, x.length, high) + 2);
  return from < to ? [from, to] : [0, 0];
}

/** Return the lowest and highest x that may be drawn, over several arrays; null: nothing. On a log axis above 0 only. */
export function extent(arrays, isLog = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const array of arrays) {
    for (const value of array) {
      if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/**
 * Return the range of y that shows the bulk of these values: from their 1st to their 99th percentile, and half of that on
 * each side. Whoever draws with it marks what lies beyond.
 */
export function robustRange(values, isLog = false) {
  const kept = Float64Array.from(values.filter((value) => Number.isFinite(value) && (!isLog || value > 0))).sort();
  if (!kept.length) return null;
  const of = (share) => kept[Math.round(share * (kept.length - 1))];
  const [low, high] = isLog ? [Math.log(of(0.01)), Math.log(of(0.99))] : [of(0.01), of(0.99)];
  const more = (high - low) / 2;
  const made = isLog ? [Math.exp(low - more), Math.exp(high + more)] : [low - more, high + more];
  return [Math.max(made[0], kept[0]), Math.min(made[1], kept[kept.length - 1])];
}

/** Return a range with room around it, so that no line lies on the frame; never an empty one, or one that is not finite. */
export function padded([low, high], isLog = false) {
  if (isLog) {
    const room = low === high ? 1.3 : Math.exp((Math.log(high) - Math.log(low)) * 0.04);
    const made = [Math.max(low / room, Number.MIN_VALUE), Math.min(high * room, Number.MAX_VALUE)];
    return made[0] < made[1] ? made : [made[0], made[0] * 10]; // the smallest floats have no neighbours a third away
  }
  let room = high / 20 - low / 20;
  if (low === high) room = low === 0 ? 1 : Math.abs(low) * 0.1;
  room = Math.max(room, LEAST_ROOM);
  return [Math.max(low - room, -Number.MAX_VALUE), Math.min(high + room, Number.MAX_VALUE)];
}

/**
 * Return the range of steps to ask for, for a range of time, out of a curve that covers all of the run: every bucket in
 * which a point of that time can lie. Times need not rise (an attempt that repeats steps). null: none.
 */
export function stepsOfTimes(curve, x, low, high) {
  let first = -1;
  let last = -1;
  for (let i = 0; i < x.length; i++) {
    if (x[i] >= low && first < 0) first = i;
    if (x[i] <= high) last = i;
  }
  if (first < 0 || last < first) {
    if (first < 0) return null;
    last = first;
  }
  const before = Math.max(0, first - 1);
  const after = Math.min(x.length - 1, last + 1);
  return [curve.x[before], curve.endX[after]];
}
