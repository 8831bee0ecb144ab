// Everything that a user sets up in the charts, as parameters of the address: read, and written back. No DOM.

/** Ways to lay curves along x. Any other value of `x` names a key: "key:epoch". */
export const X_KINDS = { step: "Step", relative: "Relative time", time: "Wall time" };
export const SIZES = { s: "Small", m: "Medium", l: "Large", xl: "One a row" };
const KEY_PREFIX = "key:";
const LAST_STEP = 2 ** 63 - 1024; // the largest float that is a signed integer of 64 bits
const NARROWEST = 1e-300;

/** Return the way along x where the address names none: steps of host metrics are seconds since 1970. */
export function usualX(side) {
  return side ? "relative" : "step";
}

/** Return the view that these parameters describe; whatever is missing or unreadable has its default. `side`: see `Board`. */
export function read(params, side = "") {
  const usual = usualX(side);
  const x = params.get("x") ?? usual;
  return {
    find: params.get("find") ?? "",
    closed: new Set(params.getAll("closed")),
    x: x in X_KINDS || (x.startsWith(KEY_PREFIX) && x.length > KEY_PREFIX.length) ? x : usual,
    smooth: between(Number(params.get("smooth")), 0, 100),
    logX: params.get("logx") === "1",
    logY: params.get("logy") === "1",
    zoom: range(params.get("zoom"), x.startsWith(KEY_PREFIX) ? Number.MAX_VALUE : LAST_STEP),
    robust: params.get("y") === "robust",
    hidden: new Set(params.getAll("hide")),
    size: params.get("size") in SIZES ? params.get("size") : "m",
    expanded: params.get("chart") ?? "",
    allAttempts: params.get("attempts") === "all",
    allRanks: params.get("ranks") === "all",
    group: params.get("group") ?? "",
    band: params.get("band") === "range" ? "range" : "quantiles",
    members: new Set(params.getAll("members")),
    events: params.get("events") !== "0",
  };
}

/** Return the name of the key along x; empty: x is no key. */
export function xKey(view) {
  return view.x.startsWith(KEY_PREFIX) ? view.x.slice(KEY_PREFIX.length) : "";
}

/** Return the value of parameter `x` for a key. */
export function xOfKey(key) {
  return KEY_PREFIX + key;
}

/** Return the parameter `zoom` of a range of x; null: all. */
export function zoomText(zoom) {
  return zoom ? `${zoom[0]},${zoom[1]}` : null;
}

/** Return a set with `item` added, or removed where it was there, as a list for the address. */
export function toggled(set, item) {
  const made = new Set(set);
  if (!made.delete(item)) made.add(item);
  return [...made];
}

/** Return what views that differ must load anew: a change of it makes every curve on the page another one. */
export function dataKey(view) {
  return JSON.stringify([view.x, view.allAttempts, view.allRanks]);
}

/** Return what a chart draws by: where it is the same, a chart has nothing to do. */
export function drawKey({ find, closed, size, expanded, ...rest }) {
  return JSON.stringify(rest, (name, value) => (value instanceof Set ? [...value] : value));
}

/**
 * Return a function of a name: does it match? Plain text matches anywhere and ignores case, words all have to be there;
 * `/…/` is a regular expression. An expression that is none matches nothing, and its error is the function's `error`.
 */
export function matcher(find) {
  const text = find.trim();
  if (!text) return () => true;
  if (text.length > 1 && text.startsWith("/") && text.endsWith("/")) {
    try {
      const expression = new RegExp(text.slice(1, -1), "i");
      return (name) => expression.test(name);
    } catch (error) {
      return Object.assign(() => false, { error: error.message });
    }
  }
  const words = text.toLowerCase().split(/\s+/);
  return (name) => {
    const lower = name.toLowerCase();
    return words.every((word) => lower.includes(word));
  };
}

/** Return a range within +- `most`; null: it is none, or so narrow that it cannot be drawn. */
function range(text, most) {
  const parts = (text ?? "").split(",").map(Number);
  if (parts.length !== 2 || !parts.every(Number.isFinite)) return null;
  const made = parts.map((each) => between(each, -most, most));
  return made[1] - made[0] > NARROWEST ? made : null;
}

/** Return the range of steps to load for a range of x, which may be wider than steps can be. */
export function stepsIn([low, high]) {
  return [between(Math.floor(low), -LAST_STEP, LAST_STEP), between(Math.ceil(high), -LAST_STEP, LAST_STEP)];
}

function between(number, low, high) {
  return Number.isFinite(number) ? Math.min(high, Math.max(low, number)) : low;
}
