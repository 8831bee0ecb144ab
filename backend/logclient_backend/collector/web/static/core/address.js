// The view as a link. Everything that a user sets up (filters, columns, zoom, axes) is in the fragment of the address, so
// it survives a reload and travels in a link, and no server or proxy logs it: `#/run/ID/charts?x=time&smooth=0.6`.
//
// A part of the path may hold any character: it is percent-encoded. Parameters that have their default are left out.

const listeners = new Set();

/** Return the address now: `{path: ["run", ID, "charts"], params: URLSearchParams}`. */
export function current() {
  const text = location.hash.replace(/^#\/?/, "");
  const [path, query = ""] = splitOnce(text, "?");
  return { path: path.split("/").filter(Boolean).map(decoded), params: new URLSearchParams(query) };
}

/** Return the link of a view: `link(["run", id], {tab: "charts"})`. Empty and null parameters are left out. */
export function link(path, params = {}) {
  const query = params instanceof URLSearchParams ? params : new URLSearchParams(entries(params));
  const text = query.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Go to another view; the browser's Back button returns. */
export function go(path, params) {
  location.hash = link(path, params);
}

/**
 * Change parameters of this view. `changes`: name -> text, list of texts, or null for the default. The entry in the browser's
 * history is replaced, unless `push`.
 */
export function change(changes, { push = false } = {}) {
  const { path, params } = current();
  for (const [name, value] of Object.entries(changes)) {
    params.delete(name);
    for (const each of values(value)) params.append(name, each);
  }
  const made = link(path, params);
  if (made === location.hash) return;
  history[push ? "pushState" : "replaceState"](null, "", made);
  notify();
}

/** Call `listener(address)` whenever the address changes, whoever changed it. Returns a function that ends this. */
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function notify() {
  const now = current();
  for (const listener of [...listeners]) listener(now);
}

function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // cut or typed by hand: shown as it is
  }
}

function values(value) {
  if (value === null || value === undefined || value === "") return [];
  return Array.isArray(value) ? value : [String(value)];
}

function entries(params) {
  return Object.entries(params).flatMap(([name, value]) => values(value).map((each) => [name, each]));
}

window.addEventListener("hashchange", notify);
window.addEventListener("popstate", notify);
