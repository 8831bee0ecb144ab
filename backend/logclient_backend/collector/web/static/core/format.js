// Numbers, times and sizes as people read them. Times of the API are ns since 1970, floats that are not finite are the
// texts "nan", "inf" and "-inf".

const NOT_FINITE = { nan: NaN, inf: Infinity, "-inf": -Infinity };

/** Return a number of the API as a number of JavaScript. */
export function toNumber(value) {
  return typeof value === "string" ? (NOT_FINITE[value] ?? NaN) : Number(value);
}

/** Return a value for a cell: at most 6 significant digits of a float; ints whole; texts as they are. */
export function value(given) {
  if (given === null || given === undefined) return "";
  if (typeof given !== "number") return typeof given === "object" ? JSON.stringify(given) : String(given);
  if (Number.isInteger(given)) return given.toLocaleString("en");
  const size = Math.abs(given);
  return size >= 1e6 || size < 1e-4 ? given.toExponential(3) : String(Number(given.toPrecision(6)));
}

/** Return a duration in seconds as "45 s", "3 min 20 s", "5 h 12 min" or "3 d 4 h". */
export function duration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  for (const [size, unit, small, smallUnit] of STEPS) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / small);
      return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
    }
  }
  return `${Math.floor(seconds)} s`;
}

/** Return how long ago a time of the API was, by the collector's clock, in one unit: "12 s ago", "3 h ago". */
export function ago(time_ns, now_ns) {
  const seconds = Math.max(0, (now_ns - time_ns) / 1e9);
  const [size, unit] = STEPS.find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

/** Return a time of the API in the user's time zone, as short as it is clear: "16:46", "11-30 16:46" or "2025-11-30". */
export function day(time_ns, now_ns) {
  const [text, now] = [time(time_ns), time(now_ns)];
  if (text.slice(0, 10) === now.slice(0, 10)) return text.slice(11, 16);
  return text.slice(0, 4) === now.slice(0, 4) ? text.slice(5, 16) : text.slice(0, 10);
}

/** Return a time of the API in the user's time zone. */
export function time(time_ns) {
  if (!time_ns) return "";
  return CLOCK.format(time_ns / 1e6);
}

/** Return a number of bytes with a unit of 1,024. */
export function bytes(count) {
  for (const [unit, size] of SIZES) if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${count} B`;
}

const CLOCK = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" }); // 2026-11-30 16:46:10; making one takes long
const STEPS = [
  [86400, "d", 3600, "h"],
  [3600, "h", 60, "min"],
  [60, "min", 1, "s"],
];
const SIZES = [
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];
