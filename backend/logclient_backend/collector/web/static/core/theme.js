// Dark or light: as the system has it, until the user chooses.

const KEY = "logclient.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

/** Return "dark" or "light". */
export function current() {
  return document.documentElement.dataset.theme;
}

/** Change to the other theme, and keep that choice in this browser. */
export function toggle() {
  localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  apply();
}

/** Call `listener()` when the theme has changed: canvases have to be drawn anew. Returns a function that ends this. */
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return the value of a colour of `style/tokens.css`, for canvases: `colour("--ink")`. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function apply() {
  const chosen = localStorage.getItem(KEY);
  document.documentElement.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
  for (const listener of [...listeners]) listener();
}

system.addEventListener("change", apply);
apply();
