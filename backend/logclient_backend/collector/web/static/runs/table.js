// The rows of the runs table: only those that are in sight are in the document, between two spacers.
//
// A row is kept as long as its run is the same object and the columns are the same, so scrolling makes new rows only at the
// edge. The table has the focus, and one of its rows is the active one (`aria-activedescendant`).

import { fill, h, perFrame } from "../core/dom.js";
import * as cells from "./cells.js";

export const ROW = 30; // px, as in style/runs.css
const BEYOND = 8; // rows above and below what is in sight
const CHECK_WIDTH = 34;
const MAKING_MS = 30; // of a frame for new rows

export class Table {
  /** `on`: `sort(id)`, `activate(index)`, `select(index, event)`, `selectAll(isOn)`, `toggle(group)`, `line(run, element)`, `key(event)`. */
  constructor(on) {
    this._on = on;
    this._rows = new Map(); // key -> {row, item, stamp, timed}
    this._stamp = 0; // of the columns
    this._view = { items: [], columns: [], selected: new Set(), active: -1, now: () => 0, sort: "", order: "" };
    this._top = spacer();
    this._bottom = spacer();
    this._all = h("input", {
      type: "checkbox",
      "aria-label": "Select all runs that are listed",
      onchange: () => on.selectAll(this._all.checked),
    });
    this._columns = h("colgroup", {});
    this._head = h("tr", { "aria-rowindex": 1 });
    this._body = h("tbody", {}, this._top, this._bottom);
    this._table = h(
      "table",
      {
        class: "runs",
        role: "grid",
        tabIndex: 0,
        "aria-label": "Runs",
        "aria-multiselectable": "true",
        onkeydown: on.key,
      },
      this._columns,
      h("thead", {}, this._head),
      this._body,
    );
    this.element = h("div", { class: "scroll" }, this._table);
    this._ask = perFrame(() => this.render());
    const scrolled = () => {
      this._scrolled = this.element.scrollTop;
      this._ask();
    };
    this.element.addEventListener("scroll", scrolled, { passive: true });
    this._body.addEventListener("click", (event) => this._click(event));
    this._scrolled = 0;
    this._height = innerHeight;
    this._width = 0; // asking for it in between would have the browser lay everything out
    this._size = new ResizeObserver(() => {
      this._width = this.element.clientWidth;
      this._height = this.element.clientHeight;
      this._widths();
      this._ask();
    });
    this._size.observe(this.element);
  }

  close() {
    this._size.disconnect();
  }

  focus() {
    this._table.focus({ preventScroll: true });
  }

  /** Show other items, columns, selection: what is given replaces what was. */
  show(view) {
    const before = this._view;
    this._view = { ...before, ...view };
    const isOther = this._view.columns !== before.columns;
    if (isOther) this._stamp += 1;
    if (isOther || this._view.sort !== before.sort || this._view.order !== before.order) this._header();
    this._ask();
  }

  /** Make all rows anew: a line has another colour. */
  renew() {
    this._stamp += 1;
    this._ask();
  }

  /** Scroll so that a row is in sight. */
  reveal(index) {
    const top = index * ROW;
    const room = this.element.clientHeight - this._head.offsetHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + ROW > this.element.scrollTop + room) this.element.scrollTop = top + ROW - room;
    this._ask();
  }

  /** Return how many rows are in sight, for the page keys. */
  page() {
    return Math.max(1, Math.floor((this.element.clientHeight - this._head.offsetHeight) / ROW) - 1);
  }

  render() {
    const { items, selected, active, now } = this._view;
    const first = Math.max(0, Math.floor(this._scrolled / ROW) - BEYOND);
    const count = Math.ceil(this._height / ROW) + 2 * BEYOND;
    let last = Math.min(items.length, first + count);
    const at = now();
    const end = performance.now() + MAKING_MS;
    const kept = new Map();
    let before = this._top;
    for (let index = first; index < last; index++) {
      const item = items[index];
      let made = this._rows.get(item.key);
      if (!made || made.item !== item.same || made.stamp !== this._stamp) {
        if (performance.now() > end) {
          last = index; // the others come in the next frame: there may be hundreds of columns
          this._setAside(items.slice(index, first + count), kept);
          this._ask();
          break;
        }
        made?.row.remove();
        made = this._make(item, at);
      }
      kept.set(item.key, made);
      update(made, item, index, selected, active === index, at);
      if (before.nextSibling !== made.row) before.after(made.row);
      before = made.row;
    }
    for (const [key, made] of this._rows) if (kept.get(key) !== made) made.row.remove();
    this._rows = kept;
    setHeight(this._top, Math.min(first, items.length) * ROW);
    setHeight(this._bottom, Math.max(0, items.length - last) * ROW);
    if (this._count !== items.length) this._table.setAttribute("aria-rowcount", (this._count = items.length) + 1);
    const current = kept.get(items[active]?.key);
    if (current) this._table.setAttribute("aria-activedescendant", current.row.id);
    else this._table.removeAttribute("aria-activedescendant");
    const { isAll, isSome } = this._view;
    this._all.checked = Boolean(isAll);
    this._all.indeterminate = Boolean(isSome && !isAll);
  }

  /** Keep rows that are made already, for the next frame. */
  _setAside(items, kept) {
    for (const { key } of items) {
      const made = this._rows.get(key);
      made?.row.remove();
      if (made) kept.set(key, made);
    }
  }

  _header() {
    const { columns, sort, order } = this._view;
    fill(
      this._columns,
      h("col", {}),
      columns.map(() => h("col", {})),
    );
    this._widths();
    this._table.setAttribute("aria-colcount", columns.length + 1);
    fill(
      this._head,
      h("th", { scope: "col", class: "check" }, this._all),
      columns.map((each) => heading(each, sort, order, this._on.sort)),
    );
  }

  /** Share what room is left over the columns that grow; where there is none, the table scrolls sideways. */
  _widths() {
    const { columns } = this._view;
    if (this._columns.children.length !== columns.length + 1) return; // before the first header
    const least = columns.reduce((sum, each) => sum + each.width, CHECK_WIDTH);
    const parts = columns.reduce((sum, each) => sum + (each.grow ?? 0), 0);
    const free = Math.max(0, this._width - least);
    const widths = [CHECK_WIDTH, ...columns.map((each) => each.width + Math.floor((free * (each.grow ?? 0)) / parts))];
    widths.forEach((width, at) => (this._columns.children[at].style.width = `${width}px`));
    this._table.style.width = `${widths.reduce((sum, width) => sum + width)}px`;
  }

  _make(item, at) {
    const { columns } = this._view;
    const id = `row-${(nextId += 1)}`;
    if (item.group) {
      const row = h("tr", { id, class: "group" }, this._groupCells(item.group, columns));
      return { row, item: item.same, stamp: this._stamp, timed: [] };
    }
    const check = h("input", {
      type: "checkbox",
      tabIndex: -1,
      "aria-label": `Select ${cells.cut(item.run.name || item.run.id, 80)}`,
    });
    const made = columns.map((each) => cells.cell(each, item.run, at));
    const timed = columns.flatMap((each, place) =>
      cells.isTimed(each, item.run) ? [{ column: each, cell: made[place] }] : [],
    );
    const row = h("tr", { id, class: item.isMember ? "member" : null }, h("td", { class: "check" }, check), made);
    return { row, check, item: item.same, stamp: this._stamp, timed };
  }

  _groupCells(group, columns) {
    const button = h(
      "button",
      {
        class: "fold",
        dataset: { fold: "" },
        tabIndex: -1,
        "aria-expanded": String(group.isOpen),
        "aria-label": `${group.isOpen ? "Fold" : "Unfold"} ${cells.cut(group.label, 80)}`,
      },
      group.isOpen ? "▾" : "▸",
    );
    const title = h(
      "th",
      { scope: "row", class: "name", title: cells.cut(group.label, 2000) },
      button,
      h("span", { class: "count", title: group.states }, String(group.count)),
      h("span", { class: group.value === undefined ? "dim label" : "label" }, h("bdi", {}, cells.cut(group.label))),
    );
    const others = columns
      .slice(1)
      .map((each) =>
        each.id === "state"
          ? h("td", { class: "dim", title: group.states }, group.states)
          : cells.groupCell(each, group.figures(each)),
      );
    return [h("td", { class: "check" }), title, others];
  }

  _click(event) {
    const row = event.target.closest("tr");
    const found = [...this._rows].find(([, made]) => made.row === row);
    if (!found) return;
    const index = this._view.items.findIndex((item) => item.key === found[0]);
    const item = this._view.items[index];
    if (event.target.closest("[data-fold]") || (item.group && !event.target.closest("a")))
      return this._on.toggle(item.group);
    const line = event.target.closest("[data-line]");
    if (line) return this._on.line(item.run, line);
    if (event.target.closest("a")) return;
    if (event.target.closest(".check") || event.shiftKey || event.ctrlKey || event.metaKey) {
      this._on.select(index, event);
      this._ask(); // the check mark is as the selection has it
      this.focus(); // keys are for the table: a box within it goes when its row is made anew
      return;
    }
    this._on.activate(index);
  }
}

let nextId = 0;

function update(made, item, index, selected, isActive, at) {
  const { row } = made;
  const isSelected = item.run && selected.has(item.run.id);
  if (made.index !== index) row.setAttribute("aria-rowindex", (made.index = index) + 2);
  if (made.isActive !== isActive) row.classList.toggle("active", (made.isActive = isActive));
  if (item.group) return;
  if (made.isSelected !== isSelected) row.setAttribute("aria-selected", (made.isSelected = isSelected));
  made.check.checked = isSelected;
  for (const each of made.timed) {
    const fresh = cells.cell(each.column, item.run, at);
    if (fresh.textContent === each.cell.textContent && fresh.className === each.cell.className) continue;
    each.cell.replaceWith(fresh);
    each.cell = fresh;
  }
}

function heading(column, sort, order, onSort) {
  const isSorted = sort === column.id;
  const way = isSorted ? (order === "asc" ? "ascending" : "descending") : null;
  const title = column.part ? `${column.group}: ${column.key}` : column.label;
  return h(
    "th",
    {
      scope: "col",
      class: [column.id === "name" ? "name" : "", column.isNumber ? "number" : ""].join(" "),
      "aria-sort": way,
    },
    h(
      "button",
      { onclick: () => onSort(column.id), title: cells.cut(title, 2000), tabIndex: -1 },
      h("bdi", {}, cells.cut(column.label)),
      isSorted && h("span", { class: "arrow", "aria-hidden": "true" }, order === "asc" ? "▲" : "▼"),
    ),
  );
}

function spacer() {
  return h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: 1000 }));
}

function setHeight(row, height) {
  if (Number(row.dataset.height) === height) return;
  row.dataset.height = height;
  row.firstChild.style.height = `${height}px`;
  row.hidden = height === 0;
}
