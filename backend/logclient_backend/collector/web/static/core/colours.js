// The line of a run: one of 8 colours and one of 4 dash patterns, the same in every view, table and chart.
//
// Both follow from the run's id, so they are the same for everybody and after every reload, whatever else is shown. Where
// two runs look alike, a user chooses another line for one of them; that is kept in this browser. The colours are those of
// `style/tokens.css` (`--series-0` to `--series-7`): any two can be told apart with each of the three kinds of colour
// blindness, and all stand out from the paper, in both themes (tests/backend/web/test_colours.py).

import { colour } from "./theme.js";

export const COLOURS = 8;
/** Lengths of strokes and gaps in CSS pixels, as canvases and SVG take them; the first is a solid line. */
export const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
export const LINES = COLOURS * DASHES.length;

const KEY = "logclient.lines";
const MAX_KEPT = 1000; // choices of a user; the oldest goes
const listeners = new Set();
let chosen = load();

/** Return the number of a run's line, from 0 to LINES - 1. */
export function number(id) {
  return chosen.get(id) ?? byId(id);
}

/** Return the line of a run for a canvas, in the theme of now: `{colour: "#0b5cad", dash: [7, 4]}`. */
export function line(id) {
  const found = number(id);
  return { colour: colour(`--series-${found % COLOURS}`), dash: DASHES[Math.floor(found / COLOURS)] };
}

/** Return a small drawing of a line, which follows the theme by itself; `found` is the number of a line. */
export function swatch(found) {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("class", `swatch series-${found % COLOURS}`);
  made.setAttribute("viewBox", "0 0 22 10");
  made.setAttribute("aria-hidden", "true");
  const stroke = document.createElementNS(SVG, "line");
  const dash = DASHES[Math.floor(found / COLOURS)].join(" ");
  for (const [name, value] of [
    ["x1", 1],
    ["x2", 21],
    ["y1", 5],
    ["y2", 5],
  ])
    stroke.setAttribute(name, value);
  if (dash) stroke.setAttribute("stroke-dasharray", dash);
  made.append(stroke);
  return made;
}

/** Choose the line of a run by its number; null: the one that follows from its id. */
export function choose(id, found) {
  chosen.delete(id);
  if (found !== null) chosen.set(id, found);
  for (const oldest of [...chosen.keys()].slice(0, Math.max(0, chosen.size - MAX_KEPT))) chosen.delete(oldest);
  try {
    localStorage.setItem(KEY, JSON.stringify([...chosen]));
  } catch {
    // no room, or storage is off: it holds until the page is closed
  }
  for (const listener of [...listeners]) listener(id);
}

/** Call `listener(id)` when a user has chosen another line; id is null when another tab did. Returns a function that ends this. */
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** FNV-1a with a last mixing: ids that differ by one letter get lines that differ. */
function byId(id) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < id.length; at++) hash = Math.imul(hash ^ id.charCodeAt(at), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return ((hash ^ (hash >>> 13)) >>> 0) % LINES;
}

function load() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return new Map(kept.filter(([id, found]) => typeof id === "string" && found >= 0 && found < LINES));
  } catch {
    return new Map(); // written by hand, or by another version
  }
}

const SVG = "http://www.w3.org/2000/svg";

window.addEventListener("storage", (event) => {
  if (event.key !== KEY) return;
  chosen = load();
  for (const listener of [...listeners]) listener(null);
});
