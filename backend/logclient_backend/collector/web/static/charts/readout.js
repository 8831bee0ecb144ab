// Values at the cursor, over all runs: highest first, every digit. And the same facts as text, for those who do not see the
// picture.

import { swatch } from "../core/colours.js";
import { fill, h } from "../core/dom.js";
import { value as shortValue } from "../core/format.js";
import { search } from "./curve.js";
import { facts } from "./layers.js";
import { xText } from "./plot.js";

const SHOWN = 12; // rows beside the cursor; an expanded chart has them all in its table

/** Return rows `{id, name, line, value, text, more, x}` at `x`: of each curve the last bucket at or before it. */
export function rowsAt(shown, x, board) {
  const rows = [];
  for (const { run, curve, x: places, from, to } of shown.curves) {
    const at = nearest(places, from, to, x, curve.isRising);
    if (at < 0) continue;
    rows.push({
      id: run,
      name: board.nameOf(run),
      line: board.numberOf(run),
      value: curve.last[at],
      text: exact(curve.last[at]),
      more: bucketText(curve, at),
      x: places[at],
    });
  }
  for (const { name, value, band } of shown.bands) {
    const at = search(band.x, band.length, x);
    if (at < 0) continue;
    const text = exact(band.mean[at]);
    const more = `${shortValue(band.low[at])} to ${shortValue(band.high[at])}, ${band.runs[at]} runs`;
    rows.push({ id: name, name: value, line: board.numberOf(name), value: band.mean[at], text, more, x: band.x[at] });
  }
  return rows.sort((a, b) => order(b.value) - order(a.value));
}

/** Fill the box beside the cursor. `events`: texts of events and gaps at the cursor. */
export function showReadout(box, rows, x, kind, events) {
  const shown = rows.slice(0, SHOWN);
  fill(
    box,
    h("div", { class: "readout-x" }, xText(x, kind)),
    shown.map((row) =>
      h(
        "div",
        { class: "readout-row" },
        swatch(row.line),
        h("span", { class: "readout-name" }, row.name),
        h("span", { class: "readout-value" }, row.text),
        h("span", { class: "readout-more" }, row.more),
      ),
    ),
    rows.length > SHOWN && h("div", { class: "dim" }, `and ${rows.length - SHOWN} more: see the expanded chart`),
    events.map((text) => h("div", { class: "readout-event" }, text)),
  );
}

/** Return a sentence about a chart for its accessible name. */
export function summary(key, shown, board) {
  const { kind, x } = shown;
  const parts = shown.curves.slice(0, 8).map((each) => {
    const { low, high, last } = facts(each, x);
    return `${board.nameOf(each.run)}: last ${shortValue(last)}, min ${shortValue(low)}, max ${shortValue(high)}`;
  });
  for (const { value, band } of shown.bands.slice(0, 8)) {
    parts.push(`${value}: mean of ${band.members.length} runs, last ${shortValue(band.mean[band.length - 1])}`);
  }
  const more = shown.curves.length - 8;
  if (more > 0) parts.push(`and ${more} more runs`);
  const what = { step: "steps", relative: "time since the start", time: "time", key: "x" }[kind];
  if (!parts.length) return `${key}: no numbers in this range`;
  return `${key}, ${what} ${xText(x[0], kind)} to ${xText(x[1], kind)}. ${parts.join(". ")}.`;
}

/** Return a number with all its digits. */
export function exact(number) {
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "+inf" : "-inf";
  return String(number);
}

function bucketText(curve, at) {
  if (curve.count[at] === 1) return "";
  const odd = [["nans", "NaN"], ["infs", "+inf"], ["negInfs", "-inf"]]
    .filter(([name]) => curve[name][at])
    .map(([name, text]) => `, ${curve[name][at]} ${text}`)
    .join("");
  return `${shortValue(curve.min[at])} to ${shortValue(curve.max[at])}, ${curve.count[at]} points${odd}`;
}

function nearest(places, from, to, x, isRising) {
  if (isRising) {
    const at = search(places.subarray(from, to), to - from, x);
    return at < 0 ? -1 : from + at;
  }
  let found = -1;
  for (let i = from; i < to; i++) if (found < 0 || Math.abs(places[i] - x) < Math.abs(places[found] - x)) found = i;
  return found;
}

function order(value) {
  return Number.isNaN(value) ? -Infinity : value;
}
