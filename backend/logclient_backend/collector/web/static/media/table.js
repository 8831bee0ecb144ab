// A table that a user logged: sorted by a column, filtered, page by page.

import { fill, h } from "../core/dom.js";
import { value } from "../core/format.js";
import { address } from "./loader.js";
import { picture } from "./picture.js";

const PAGE = 50;

/** Return the table of `{columns, rows}`, a value of this run. Cells with images are `{image: reference}`. */
export function table(run, { columns, rows }) {
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
    const kept = filter ? rows.filter((row) => row.some((cell) => text(cell).toLowerCase().includes(filter))) : [...rows];
    if (sorted.column >= 0) kept.sort((a, b) => order(a[sorted.column], b[sorted.column]) * (sorted.isDown ? -1 : 1));
    const pages = Math.max(1, Math.ceil(kept.length / PAGE));
    page = Math.min(page, pages - 1);
    const shown = kept.slice(page * PAGE, (page + 1) * PAGE);
    const body = shown.map((row) => h("tr", {}, columns.map((name, at) => h("td", {}, content(run, name, row[at])))));
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

/** Return the text of a cell; of an image its caption. */
function text(cell) {
  return isImage(cell) ? String(cell.image.caption ?? "") : value(cell);
}

function isImage(cell) {
  return typeof cell === "object" && typeof cell?.image === "object" && cell.image !== null;
}

function content(run, column, cell) {
  if (!isImage(cell)) return value(cell);
  const { sha256, mime, lost, caption } = cell.image;
  if (!sha256) return h("span", { class: "dim" }, `Not stored: ${lost}`);
  const src = address(run, { sha256, mime });
  const name = caption || `image of ${column}`;
  const props = { href: src, target: "_blank", rel: "noopener", "aria-label": `Open ${name}` };
  return h("a", props, picture(src, name, caption));
}

/** Compare two cells: numbers by size and before texts, nothing last. */
function order(a, b) {
  const kind = (cell) => (isImage(cell) ? 1 : cell === null || cell === undefined ? 2 : typeof cell === "number" ? 0 : 1);
  if (kind(a) !== kind(b)) return kind(a) - kind(b);
  if (kind(a) === 0) return a - b;
  return text(a).localeCompare(text(b));
}
