// Scales from values to places on an axis. Pure.

/**
 * Return the scale of some values: `{kind, at(value), ticks}`. Numbers get a linear axis, or a logarithmic one where all are above 0
 * and span more than two powers of ten; anything else gets one place per distinct value. `at` returns 0 to 1, or null where
 * the value has no place (undefined, NaN, infinite).
 */
export function scaleOf(values) {
  const given = values.filter((each) => each !== undefined && each !== null);
  if (given.length && given.every((each) => typeof each === "number")) return numbers(given.filter(Number.isFinite));
  return names([...new Set(given.map(text))].sort());
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function numbers(given) {
  let low = Math.min(...given);
  let high = Math.max(...given);
  const isLog = low > 0 && high / low > 100;
  if (low === high) [low, high] = low === 0 ? [-1, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const of = isLog ? Math.log10 : (value) => value;
  const at = (value) => (Number.isFinite(value) && given.length ? (of(value) - of(low)) / (of(high) - of(low)) : null);
  const back = isLog ? (part) => 10 ** (of(low) + part * (of(high) - of(low))) : (part) => low + part * (high - low);
  const ticks = given.length ? [0, 0.25, 0.5, 0.75, 1].map((part) => ({ at: part, text: short(back(part)) })) : [];
  return { kind: isLog ? "log" : "linear", at, ticks };
}

function names(distinct) {
  const place = new Map(distinct.map((each, index) => [each, distinct.length > 1 ? index / (distinct.length - 1) : 0.5]));
  const at = (value) => (value === undefined || value === null ? null : (place.get(text(value)) ?? null));
  return { kind: "names", at, ticks: distinct.slice(0, 30).map((each) => ({ at: place.get(each), text: each.slice(0, 16) })) };
}

function short(value) {
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}
