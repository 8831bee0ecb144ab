// Tables with a column for each run.

import { link } from "../core/address.js";
import { number, swatch } from "../core/colours.js";
import { h } from "../core/dom.js";
import { toNumber, value } from "../core/format.js";

/** Return the table of settings; `onlyDiffering` leaves out rows in which all runs are equal. */
export function settingsTable(runs, rows, onlyDiffering) {
  const shown = rows.filter((row) => row.differs || !onlyDiffering);
  if (!rows.length) return h("p", { class: "dim" }, "No run has a config.");
  if (!shown.length) return h("p", {}, "All settings are equal.");
  const lines = shown.map((row) =>
    h("tr", { class: row.differs ? null : "dim" }, h("th", { scope: "row" }, row.path), row.values.map((each) => h("td", {}, each === undefined ? "–" : value(each)))),
  );
  return table(runs, "Setting", lines);
}

/** Return the table of values. `kind`: last, min or max. The best of a row is marked where that is a lowest or highest value. */
export function valuesTable(runs, values, kind) {
  if (!values.size) return h("p", { class: "dim" }, "No run has logged a value.");
  const lines = [...values].map(([key, each]) => {
    const numbers = each.map((one) => (one === undefined || one[kind] === null ? NaN : toNumber(one[kind])));
    const best = kind === "last" ? NaN : bestOf(numbers, kind);
    const cells = each.map((one, at) =>
      h("td", { class: numbers[at] === best ? "number best" : "number" }, one === undefined || one[kind] === null ? "–" : value(one[kind])),
    );
    return h("tr", {}, h("th", { scope: "row" }, key), cells);
  });
  return table(runs, "Key", lines);
}

function bestOf(numbers, kind) {
  const given = numbers.filter(Number.isFinite);
  if (!given.length) return NaN;
  return kind === "min" ? Math.min(...given) : Math.max(...given);
}

function table(runs, first, lines) {
  const heads = runs.map((run) => h("th", { scope: "col" }, swatch(number(run.id)), " ", h("a", { href: link(["run", run.id]) }, run.name || run.id)));
  return h(
    "div",
    { class: "wide" },
    h("table", { class: "compare" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, first), heads)), h("tbody", {}, lines)),
  );
}
