// A table that a user logged: sorted by a column, filtered, page by page.

import { fill, h } from "../core/dom.js";
import { value } from "../core/format.js";

const PAGE = 50;

/** Return the table of `{columns, rows}`. */
export function table({ columns, rows }) {
  let sorted = { column: -1, isDown: false };
  let filter = "";
  let page = 0;
  const box = h("div", { class: "media-table" });
  const find = h("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows" });
  find.addEventListener("input", () => {
    filter = find.value.toLowerCase();
    page = 0;
    show();
  });

  function show() {
    const kept = filter ? rows.filter((row) => row.some((cell) => value(cell).toLowerCase().includes(filter))) : [...rows];
    if (sorted.column >= 0) kept.sort((a, b) => order(a[sorted.column], b[sorted.column]) * (sorted.isDown ? -1 : 1));
    const pages = Math.max(1, Math.ceil(kept.length / PAGE));
    page = Math.min(page, pages - 1);
    const shown = kept.slice(page * PAGE, (page + 1) * PAGE);
    const body = shown.map((row) => h("tr", {}, columns.map((_, at) => h("td", {}, value(row[at])))));
    fill(box, h("div", { class: "wide" }, h("table", { class: "compare" }, h("thead", {}, h("tr", {}, columns.map(head))), h("tbody", {}, body))));
    const count = `${kept.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    const turn = (by, label) => h("button", { disabled: page + by < 0 || page + by >= pages, onclick: () => (page += by, show()), "aria-label": label }, by < 0 ? "‹" : "›");
    box.append(h("p", { class: "dim" }, count, " ", turn(-1, "Previous page"), ` ${page + 1} / ${pages} `, turn(1, "Next page")));
  }

  function head(name, at) {
    const mark = sorted.column === at ? (sorted.isDown ? " ↓" : " ↑") : "";
    const onclick = () => {
      sorted = { column: at, isDown: sorted.column === at && !sorted.isDown };
      show();
    };
    const direction = sorted.column === at ? (sorted.isDown ? "descending" : "ascending") : "none";
    return h("th", { scope: "col", "aria-sort": direction }, h("button", { onclick, class: "bare" }, `${name}${mark}`));
  }

  show();
  return h("div", {}, find, box);
}

/** Compare two cells: numbers by size and before texts, nothing last. */
function order(a, b) {
  const kind = (cell) => (cell === null || cell === undefined ? 2 : typeof cell === "number" ? 0 : 1);
  if (kind(a) !== kind(b)) return kind(a) - kind(b);
  if (kind(a) === 0) return a - b;
  return String(a).localeCompare(String(b));
}
