// The way from the values of an axis to the range that uPlot draws. uPlot has ticks for spans of about 1e-32 to 1e32, and
// never ends where a tick is smaller than the distance of two floats. An axis beyond that is drawn as a share of its range,
// with ticks of our own. No DOM.

import { isNarrow } from "./frame.js";

const LARGEST = 1e25; // of values and spans that uPlot draws itself
const SMALLEST = 1e-25;
const NARROW = 1e-9; // span by value, below which floats lie visibly apart
const FLOAT = 2 ** -53; // least distance of two floats by their value
const DECADES = [1, 2, 5, 10, 20, 50, 100, 200]; // between ticks
const FEW_DECADES = 2; // of a log axis: ticks as on a linear one

/**
 * Return how uPlot draws a range: `range` of its scale, `to` and `from` between values and that scale, and `ticks(step)`,
 * the values of ticks about `step` of the scale apart; null: uPlot finds ticks itself, and its scale has the values.
 */
export function axisOf([low, high], isLog = false) {
  const span = high - low;
  const size = Math.max(Math.abs(low), Math.abs(high));
  const isPlain = isLog
    ? low > SMALLEST && high < LARGEST && !isNarrow([low, high])
    : size < LARGEST && span > SMALLEST && span > size * NARROW;
  const same = (value) => value;
  if (isPlain) return { range: [low, high], to: same, from: same, ticks: null };
  if (!isLog) {
    const half = high / 2 - low / 2;
    const to = (value) => (value / 2 - low / 2) / half;
    const from = (share) => low * (1 - share) + high * share;
    return { range: [0, 1], to, from, ticks: (step) => linearTicks(low, high, step) };
  }
  if (isNarrow([low, high])) {
    const to = (value) => 10 ** ((value - low) / span);
    const from = (place) => low + Math.log10(place) * span;
    return { range: [1, 10], to, from, ticks: (step) => linearTicks(low, high, step / 9) };
  }
  const first = Math.log10(low);
  const decades = Math.log10(high) - first;
  const to = (value) => 10 ** ((Math.log10(value) - first) / decades);
  const from = (place) => 10 ** (first + Math.log10(place) * decades);
  const ticks = (step) => (decades < FEW_DECADES ? linearTicks(low, high, step / 9) : decadeTicks(first, decades, step / 9));
  return { range: [1, 10], to, from, ticks };
}

/** Return round numbers of a range, at least `share` of it apart. */
function linearTicks(low, high, share) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  const least = Math.max(high * share - low * share, size * FLOAT, Number.MIN_VALUE);
  let exponent = Math.floor(Math.log10(least));
  let digit = [1, 2, 5, 10].find((each) => Number(`${each}e${exponent}`) >= least) ?? 10;
  if (digit === 10) [digit, exponent] = [1, exponent + 1];
  const step = Number(`${digit}e${exponent}`);
  const made = new Set(); // of floats that lie far apart some are the same
  const last = Math.floor(high / step);
  for (let count = Math.ceil(low / step); count <= last && made.size < 1000; count++) {
    const value = Number(`${count * digit}e${exponent}`) || 0; // exact where count * step is not
    if (value >= low && value <= high) made.add(value);
  }
  return [...made];
}

function decadeTicks(first, decades, share) {
  const step = DECADES.find((each) => each >= decades * share) ?? DECADES.at(-1);
  const made = [];
  for (let at = Math.ceil(first / step) * step; at <= first + decades; at += step) {
    const value = Number(`1e${at}`);
    if (value > 0 && Number.isFinite(value)) made.push(value);
  }
  return made;
}

/**
 * Return the texts of ticks: `short` each, with more digits where neighbours would read the same. null: no text there.
 * `span`: of the axis, where a tick that is alone needs digits, too.
 */
export function labels(splits, span = Infinity) {
  const made = splits.map(short);
  const known = splits.filter((each) => each !== null && each !== undefined);
  const isAlone = known.length === 1 && span < Math.abs(known[0]) * NARROW;
  if (!isAlone && made.filter(Boolean).every((text, i, all) => text !== all[i - 1])) return made;
  const apart = Math.min(span, ...known.slice(1).map((each, i) => Math.abs(each - known[i])));
  const rounded = (digits) => (each) => Number(each.toPrecision(digits));
  const isClear = (digits) => known.every((each) => Math.abs(rounded(digits)(each) - each) < apart / 20);
  let digits = 7;
  while (digits < 17 && !isClear(digits)) digits++;
  return splits.map((each) => (each === null || each === undefined ? "" : String(rounded(digits)(each))));
}

/** Return a number for an axis: short, with SI letters for large ones. */
export function short(number) {
  if (number === null || number === undefined) return "";
  const size = Math.abs(number);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return number.toExponential(1).replace(".0e", "e").replace("e+", "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit * 10 || (size >= unit && Number.isInteger(number / (unit / 10)))) return `${trim(number / unit)}${letter}`;
  }
  return trim(number);
}

function trim(number) {
  return String(Number(number.toPrecision(6)));
}
