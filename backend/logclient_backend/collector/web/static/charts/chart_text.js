// All of a chart that is text: the readout at the cursor, the legend with last values, counts of what no line can show, and
// the names that a screen reader gives the picture.

import { swatch } from "../core/colours.js";
import { fill, h } from "../core/dom.js";
import { value as shortValue } from "../core/format.js";
import { facts } from "./layers.js";
import { exact, rowsAt, showReadout, summary } from "./readout.js";
import { short } from "./axis.js";

const LEGEND = 3; // runs below a small chart
const BRIEF = 2; // rows beside which a small chart has room for ranges
const EDGE = 4; // CSS pixels between the window and the readout
const READOUT_GAP = 14; // CSS pixels between cursor and readout

export class ChartText {
  constructor(chart, body) {
    this._chart = chart;
    this.plotBox = h("div", { class: "plot is-empty", tabIndex: 0, role: "group", "aria-roledescription": "chart" });
    this.readout = h("div", { class: "readout", "aria-live": "polite", hidden: true });
    this.notes = h("div", { class: "notes" });
    this.legend = h(chart.isLarge ? "table" : "div", { class: "legend" });
    this._root = h("div", { class: "chart-body" }, this.plotBox, this.readout, this.notes, this.legend);
    body.replaceChildren(this._root);
    this.plotBox.addEventListener("blur", () => chart.isClosed || chart._leave());
  }

  close() {
    this._root.remove();
  }

  busy(is) {
    this.plotBox.setAttribute("aria-busy", is);
  }

  /** Name the canvas. */
  canvas(canvas) {
    canvas.setAttribute("role", "img");
    this._canvas = canvas;
  }

  /** Write what is shown. */
  update(shown, counts) {
    const text = summary(this._chart.key, shown, this._chart.board);
    this.plotBox.setAttribute("aria-label", `${text} Arrow keys move the cursor, + and - zoom, Escape ends both.`);
    this._canvas.setAttribute("aria-label", text);
    this.plotBox.classList.toggle("is-empty", !shown.curves.length && !shown.bands.length);
    const notes = this._notes(shown, counts);
    fill(this.notes, notes.map(([title, words]) => h("span", { class: "chart-note", title }, words)));
    if (this._chart.isLarge) this._table(shown);
    else this._legend(shown);
  }

  showReadout(x, left, events) {
    const { board, shown } = this._chart;
    const rows = rowsAt(shown, x, board);
    showReadout(this.readout, rows, x, shown.kind, events);
    this.readout.classList.toggle("is-brief", !this._chart.isLarge && rows.length > BRIEF);
    this.readout.hidden = false;
    const { u } = this._chart.plot;
    const at = left + u.over.offsetLeft;
    const { offsetWidth } = this.readout;
    const wanted = left > u.over.clientWidth / 2 ? at - READOUT_GAP - offsetWidth : at + READOUT_GAP;
    const begin = this._root.getBoundingClientRect().left; // the box may stand over other charts, but not beyond the window
    const most = document.documentElement.clientWidth - EDGE - offsetWidth - begin;
    this.readout.style.left = `${Math.max(EDGE - begin, Math.min(wanted, most))}px`;
  }

  hideReadout() {
    this.readout.hidden = true;
  }

  _notes(shown, counts) {
    const made = [];
    const { view } = this._chart.board;
    const add = (count, title, words) => count && made.push([title, words]);
    const is = shown.curves.length + shown.bands.length;
    if (!is) made.push(["", this.plotBox.getAttribute("aria-busy") === "true" ? "loading" : "no numbers here"]);
    const of = counts.isRaw ? "" : "≥ ";
    add(counts.nans, "Points that are NaN: crosses at the lower edge", `× ${counts.nans} NaN`);
    add(counts.infs, "Points that are plus infinity: arrows at the upper edge", `▲ ${counts.infs} +inf`);
    add(counts.negInfs, "Points that are minus infinity: arrows at the lower edge", `▼ ${counts.negInfs} −inf`);
    add(
      counts.notPositive,
      "A log axis has no place for values of 0 and below: they are marked at the lower edge",
      `▽ ${of}${counts.notPositive} ≤ 0`,
    );
    add(shown.notOnLogX, "A log axis has no place for x of 0 and below", `${shown.notOnLogX} at x ≤ 0 not shown`);
    if (view.robust) {
      const beyond = "Outside the range of the bulk: arrows at the edge. Outliers: shown brings them in";
      add(counts.above, beyond, `▲ ${of}${counts.above} above`);
      add(counts.below, beyond, `▼ ${of}${counts.below} below`);
    }
    const unknown = "Points for which the key along x had no value yet, or none that is finite";
    add(counts.leftOut, unknown, `${counts.leftOut} left out: x unknown`);
    const dropped = this._chart.marks.gaps.reduce((sum, gap) => sum + gap.count, 0);
    add(dropped, "Records that were lost: hatched areas", `▨ ${dropped.toLocaleString("en")} records missing`);
    if (counts.texts) made.push(["Texts of this key are in no chart", "has texts"]);
    if (view.group && shown.kind !== "step") made.push(["Bands are over steps: with another x each run is a line", "no bands over this x"]);
    return made;
  }

  _legend(shown) {
    const { board } = this._chart;
    const items = [
      ...shown.bands.map(({ name, value, band }) => [name, `${value} (${band.members.length})`, band.mean[band.length - 1]]),
      ...shown.curves.map((each) => [each.run, board.nameOf(each.run), each.curve.last[each.curve.length - 1] ?? NaN]),
    ];
    const isAlone = board.runs.size === 1;
    fill(
      this.legend,
      items.slice(0, LEGEND).map(([id, name, last]) =>
        h(
          "span",
          { class: "legend-item", title: `${name}: last ${exact(last)}` },
          swatch(board.numberOf(id)),
          !isAlone && h("span", { class: "legend-name" }, name),
          h("span", { class: "legend-value" }, brief(last)),
        ),
      ),
      items.length > LEGEND && h("span", { class: "dim" }, `+${items.length - LEGEND}`),
    );
  }

  _table(shown) {
    const { board } = this._chart;
    const head = ["Run", "Last", "Min", "Max", "Points"].map((text) => h("th", { scope: "col" }, text));
    const rows = shown.curves.map((each) => {
      const { low, high, last } = facts(each, shown.x);
      return this._row(each.run, board.linkOf(each.run), [last, low, high], each.curve.points);
    });
    for (const { name, value, band } of shown.bands) {
      const toggle = () => board.toggleMembers(value);
      const show = h("button", { class: "plain", onclick: toggle }, `${value}: show its ${band.members.length} runs`);
      const finite = (values) => Array.from(values).filter(Number.isFinite);
      const [low, high] = [Math.min(...finite(band.low)), Math.max(...finite(band.high))];
      rows.push(this._row(name, show, [band.mean[band.length - 1], low, high], band.points));
    }
    fill(this.legend, h("caption", {}, "Of the visible range"), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
  }

  _row(id, name, values, points) {
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, swatch(this._chart.board.numberOf(id)), " ", name),
      values.map((each) => h("td", {}, exact(each))),
      h("td", {}, points.toLocaleString("en")),
    );
  }
}

/** Return a number for the legend: at most 4 significant digits. */
export function brief(number) {
  if (!Number.isFinite(number)) return exact(number);
  const rounded = Number(number.toPrecision(4));
  const shown = Number.isFinite(rounded) ? rounded : number; // the largest floats are rounded up to infinity
  return Math.abs(shown) >= 1e5 ? short(shown) : shortValue(shown);
}
