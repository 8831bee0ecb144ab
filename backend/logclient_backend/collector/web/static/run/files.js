// Files of a run as a list: by name, key, kind, step, size and time, each as a download. At first what was logged as `File`;
// all other media values on request, since their bytes are files as well. New ones come by themselves while the run lasts.

import * as address from "../core/address.js";
import { fill, h } from "../core/dom.js";
import { bytes, time } from "../core/format.js";
import { showError } from "../core/messages.js";
import { mediaRun, whenHere } from "../media/arrival.js";
import { MAX, download, fileName, follower, merged, references } from "../media/loader.js";

const PAGE = 100;
const FIRST = "name"; // the column by which files are sorted at first
// name of a column -> title, what it is sorted by, what it shows
const COLUMNS = {
  name: ["Name", (row) => fileName(row).toLowerCase(), nameCell],
  key: ["Key", (row) => row.key.toLowerCase(), (row) => h("td", {}, row.key)],
  kind: ["Kind", (row) => row.kind, (row) => h("td", {}, row.kind)],
  step: ["Step", (row) => row.step, (row) => h("td", { class: "number" }, row.step.toLocaleString("en"))],
  bytes: ["Size", (row) => row.bytes, (row) => h("td", { class: "number" }, row.lost ? "" : bytes(row.bytes))],
  time: ["Time", (row) => row.time_ns, (row) => h("td", { class: "when" }, time(row.time_ns))],
};

/** Show the tab in `root`. Its parameters: `values` ("all": not only files), `find`, `sort` (a column), `down`. */
export function open(root, { id, run }) {
  const one = mediaRun(run);
  const ended = new AbortController();
  const find = h("input", { type: "search", placeholder: "Filter names and keys", "aria-label": "Filter names and keys" });
  const which = h(
    "select",
    { "aria-label": "Which values", onchange: () => address.change({ values: which.value || null }) },
    [["", "Files"], ["all", "All values with bytes"]].map(([value, text]) => h("option", { value }, text)),
  );
  const list = h("div", {});
  const loaded = new Map(); // which values -> `{rows, follow}`
  let page = 0;
  let isCut = false;
  find.value = address.current().params.get("find") ?? "";
  find.addEventListener("input", () => address.change({ find: find.value || null }));
  fill(root, h("div", { class: "tool-bar" }, find, which), list);

  async function show() {
    const { params } = address.current();
    which.value = params.get("values") === "all" ? "all" : "";
    const kind = which.value;
    if (!loaded.has(kind)) {
      fill(list, h("p", { class: "dim" }, "loading …"));
      const asked = kind ? {} : { kind: "file" };
      const { rows, cursor } = await references(id, asked, ended);
      loaded.set(kind, { rows: rows.filter(hasBytes), follow: follower(id, asked, cursor, (more) => add(kind, more), ended) });
      isCut = rows.length >= MAX;
    }
    if (which.value === kind) draw(loaded.get(kind).rows, params);
  }

  function add(kind, more) {
    const now = loaded.get(kind);
    const before = now.rows.length;
    now.rows = merged(now.rows, more.filter(hasBytes));
    if (which.value !== kind || now.rows.length === before) return;
    const focused = list.contains(document.activeElement) && document.activeElement.dataset.column;
    draw(now.rows, address.current().params);
    if (focused) list.querySelector(`[data-column="${focused}"]`)?.focus();
  }

  function draw(all, params) {
    if (!all.length) {
      const example = 'run.log(step, {"config": logclient.File("config.yaml")})';
      fill(list, h("p", { class: "dim" }, which.value ? "No value with bytes was logged. " : "No file was logged. ", "A program logs one by ", h("code", {}, example), "."));
      return;
    }
    const wanted = (params.get("find") ?? "").toLowerCase();
    const column = COLUMNS[params.get("sort")] ? params.get("sort") : FIRST;
    const isDown = params.get("down") === "1";
    const rows = all.filter((row) => fileName(row).toLowerCase().includes(wanted) || row.key.toLowerCase().includes(wanted));
    rows.sort((a, b) => (isDown ? -1 : 1) * order(COLUMNS[column][1](a), COLUMNS[column][1](b)));
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    page = Math.min(page, pages - 1);
    const heads = Object.entries(COLUMNS).map(([name, [title]]) => head(name, title, name === column, isDown));
    const body = rows.slice(page * PAGE, (page + 1) * PAGE).map((row) => h("tr", {}, Object.values(COLUMNS).map(([, , cell]) => cell(row, one))));
    const count = `${rows.length.toLocaleString("en")} of ${all.length.toLocaleString("en")} ${which.value ? "values" : "files"}, ${bytes(rows.reduce((sum, row) => sum + row.bytes, 0))}`;
    const turn = (by, label) => h("button", { disabled: page + by < 0 || page + by >= pages, onclick: () => (page += by, draw(all, params)), "aria-label": label }, by < 0 ? "‹" : "›");
    fill(
      list,
      h("div", { class: "wide" }, h("table", { class: "files" }, h("caption", { class: "unseen" }, "Files of this run"), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body))),
      h("p", { class: "dim", role: "status" }, count, pages > 1 && [" ", turn(-1, "Previous page"), ` ${page + 1} / ${pages} `, turn(1, "Next page")]),
      isCut && h("p", { class: "dim" }, `Only the first ${MAX.toLocaleString("en")} values by step are listed: logclient export RUN --media has all.`),
    );
  }

  function head(name, title, isSorted, isDown) {
    const onclick = () => {
      address.change({ sort: name === FIRST ? null : name, down: isSorted && !isDown ? "1" : null });
      list.querySelector(`[data-column="${name}"]`)?.focus();
    };
    const mark = isSorted ? (isDown ? " ↓" : " ↑") : "";
    const sorted = isSorted ? (isDown ? "descending" : "ascending") : null;
    const kind = ["step", "bytes"].includes(name) ? "number" : null;
    return h("th", { scope: "col", class: kind, "aria-sort": sorted }, h("button", { onclick, class: "bare", dataset: { column: name } }, title + mark));
  }

  const update = () => {
    page = 0;
    return show().catch((error) => ended.signal.aborted || showError(error));
  };
  update();
  return {
    show(now) {
      if (!one.isLive) return;
      Object.assign(one, mediaRun(now)); // the last question is asked when the run is over
      for (const { follow } of loaded.values()) follow().catch(() => {}); // the bar at the top says so; it is asked again
    },
    update,
    close: () => ended.abort(),
  };
}

/** Is this a value with bytes, or one that was to have some? */
function hasBytes(row) {
  return row.sha256 || row.lost;
}

function nameCell(row, run) {
  const name = fileName(row);
  if (row.lost) return h("td", {}, name, h("div", { class: "error" }, `Not stored: ${row.lost}`));
  const link = () => h("a", { href: download(run.id, row), download: name, "aria-label": `Download ${name}` }, name);
  return h("td", {}, whenHere(run, row, link, name), row.fields.caption && h("div", { class: "dim" }, row.fields.caption));
}

function order(a, b) {
  return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
}
