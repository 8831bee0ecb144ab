// One chart in the full window, with a table of all its runs. Escape and Back close it.

import { fill, h } from "../core/dom.js";
import { Chart } from "./chart.js";
import { icon } from "./icons.js";
import { tools } from "./sections.js";

export class Expanded {
  constructor(board, root) {
    this._board = board;
    this._root = root;
    this._chart = null;
    this._dialog = null;
  }

  /** Show the chart that the view names, or none. */
  update() {
    const key = this._board.view.expanded;
    if (this._chart?.key === key || (!key && !this._chart)) return;
    this.close();
    if (!key || !this._board.keys.has(key)) return;
    const body = h("div", { class: "chart-room" });
    const buttons = h("span", { class: "chart-tools" });
    const end = () => this._board.expand("");
    const close = h("button", { class: "icon", "aria-label": "Close", title: "Close (Escape)", onclick: end }, icon("close"));
    this._dialog = h("dialog", { class: "chart-window", "aria-label": key }, h("header", {}, h("h2", {}, key), buttons), body);
    this._dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      end();
    });
    this._root.append(this._dialog);
    this._dialog.showModal();
    this._chart = new Chart(this._board, key, body, { isLarge: true });
    this._board.charts.add(this._chart);
    fill(buttons, tools(this._board, this._chart), close);
    this._chart.text.plotBox.focus();
  }

  close() {
    if (!this._chart) return;
    this._board.charts.delete(this._chart);
    this._chart.close();
    this._dialog.close();
    this._dialog.remove();
    this._chart = this._dialog = null;
  }
}
