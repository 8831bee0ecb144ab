// The table of runs. What a user sets up is in the address: q (filter), sort, by (groups), fold and but (folded groups), col.

import * as address from "../core/address.js";
import { get } from "../core/api.js";
import * as colours from "../core/colours.js";
import { fill, h, perFrame } from "../core/dom.js";
import { showError } from "../core/messages.js";
import * as session from "../core/session.js";
import { Actions } from "../runs/actions.js";
import { openColumns } from "../runs/column_dialog.js";
import * as columns from "../runs/columns.js";
import { parse } from "../runs/filter.js";
import * as grouping from "../runs/grouping.js";
import { noMatch, noRuns, openHelp } from "../runs/help.js";
import { openLines } from "../runs/line_panel.js";
import { Live } from "../runs/live.js";
import { MAX_LOADED, Runs } from "../runs/model.js";
import { openViews } from "../runs/saved_views.js";
import { Selection } from "../runs/selection.js";
import { StoreGroups } from "../runs/store_groups.js";
import { Table } from "../runs/table.js";

const PARAMETERS = ["q", "sort", "by", "fold", "but", "col"];
const SORT = "-created";
const USUAL = "logclient.usual"; // the usual columns of last time, so that the table does not change while it loads
const TICK_MS = 1000;
const ASK_MS = 200; // after the last key, where the collector filters
const LINK_MS = 300; // after the last key the link has the filter, too: writing it takes the browser some milliseconds
const GROUPS = ["group", "project", "tags", "state"];

/** Show the view in `root`. Returns its `update(address)`, called when parameters change, and its `close()`. */
export function open(root) {
  const view = new RunsView();
  root.classList.add("full");
  fill(root, view.element);
  view.start();
  return {
    update: () => view.refresh(),
    close: () => {
      view.close();
      root.classList.remove("full");
    },
  };
}

/** Return a sentence about groups and runs that one answer has no room for. */
function ofGroups({ groups, runs }) {
  if (groups) return `${groups.toLocaleString("en")} more groups are not shown: filter for them.`;
  return runs ? `Groups: over the newest runs, without ${runs.toLocaleString("en")} older ones.` : "";
}

class RunsView {
  constructor() {
    this._runs = new Runs({ changed: perFrame(() => this._recompute()), failed: showError });
    this._selection = new Selection(() => this._paint());
    this._table = new Table({
      sort: (id) => this._sort(id),
      activate: (index) => this._selection.activate(index),
      select: (index, event) => this._selection.click(index, event),
      selectAll: (isOn) => (isOn ? this._selection.all() : this._selection.clear()),
      toggle: (group) => this._toggle(group),
      line: (run, element) => openLines(element, run),
      key: (event) => this._key(event),
    });
    this._actions = new Actions(this._runs, () => this._selection.clear());
    this._storeGroups = new StoreGroups({ changed: perFrame(() => this._recompute()), failed: showError });
    this._filter = { text: null, parsed: null };
    this._shownColumns = { key: "", list: [] };
    this._ended = new AbortController();
    this._build();
  }

  _build() {
    this._field = h("input", {
      type: "search",
      class: "filter",
      placeholder: "Filter: a word, state=failed, config.lr<0.01, loss<0.3 …",
      "aria-label": "Filter runs",
      "aria-describedby": "filter-note",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this._typed(),
      onkeydown: (event) => this._filterKey(event),
      onblur: () => this._link(),
    });
    this._note = h("div", { id: "filter-note", class: "note", role: "status" });
    this._by = h("select", {
      "aria-label": "Group by",
      onchange: () => address.change({ by: this._by.value || null, fold: null, but: null }, { push: true }),
    });
    this._fold = h("button", { onclick: () => this._foldAll() }, "Fold all");
    this._count = h("span", { class: "count", role: "status" });
    const views = h(
      "button",
      {
        "aria-haspopup": "dialog",
        onclick: () =>
          openViews(
            views,
            () => this._asText(),
            (text) => this._apply(text),
          ),
      },
      "Views",
    );
    const chooseColumns = h("button", { "aria-haspopup": "dialog", onclick: () => this._chooseColumns() }, "Columns");
    const help = h("button", { onclick: openHelp, "aria-label": "Keys and filter", title: "Keys and filter (?)" }, "?");
    this._place = h("div", { class: "place" }, this._table.element);
    this._empty = h("div", {});
    this.element = h(
      "div",
      { class: "runs-view" },
      h("h1", { class: "unseen" }, "Runs"),
      h(
        "div",
        { class: "toolbar", role: "toolbar", "aria-label": "Runs" },
        this._field,
        h("label", { class: "by" }, "Group by", this._by),
        this._fold,
        chooseColumns,
        views,
        help,
        this._count,
      ),
      this._note,
      this._place,
      this._empty,
      this._actions.element,
    );
  }

  start() {
    const { signal } = this._ended;
    this._unwatch = [colours.watch(() => this._table.renew()), session.watch(() => this._paint())];
    document.addEventListener("keydown", (event) => this._globalKey(event), { signal });
    addEventListener("pagehide", () => this._link(), { signal });
    this._ticker = setInterval(() => !document.hidden && this._table.show({}), TICK_MS);
    get("info", {}, this._ended).then(
      (info) => {
        this._info = info;
        this._recompute();
      },
      () => {},
    );
    this.refresh();
    this._live = new Live(this._runs);
  }

  close() {
    this._ended.abort();
    clearTimeout(this._linking);
    clearInterval(this._ticker);
    clearTimeout(this._asking);
    for (const end of this._unwatch) end();
    this._live.close();
    this._storeGroups.close();
    this._runs.close();
    this._table.close();
  }

  /** The address has changed, or what is shown may have. */
  refresh() {
    this._params = address.current().params;
    if (this._linking) this._params.set("q", this._field.value);
    else if (document.activeElement !== this._field) this._field.value = this._params.get("q") ?? "";
    this._recompute();
  }

  _typed() {
    clearTimeout(this._linking);
    this._linking = setTimeout(() => this._link(), LINK_MS);
    this._params.set("q", this._field.value);
    this._recompute();
  }

  /** Write the filter into the address. */
  _link() {
    if (!this._linking) return;
    clearTimeout(this._linking);
    this._linking = 0;
    address.change({ q: this._field.value });
  }

  // ---- from runs to rows ----

  _recompute() {
    const shown = this._columns();
    const parsed = this._parsed();
    const [sortId, order] = this._sorting();
    const sort = columns.column(sortId) ?? columns.column("created");
    const by = columns.column(this._params.get("by") ?? "");
    this._askFor(shown, parsed, sort, order, by);
    const now = this._runs.now();
    const runs = grouping.sorted(this._runs.byId.values(), parsed.test, sort, order, now);
    this._listed = runs;
    this._whole = this._groupsOfStore(by, shown, parsed, runs, now);
    const items = by ? grouping.grouped(runs, by, this._folded(), now, this._whole?.byId) : grouping.flat(runs);
    this._selection.setItems(items, runs);
    this._table.show({ items, columns: shown, sort: sort.id, order, now: () => this._runs.now() });
    this._showToolbar(by);
    this._paint();
    this._showEmpty(runs.length);
  }

  _askFor(shown, parsed, sort, order, by) {
    const needed = new Set([...shown, sort, ...(by ? [by] : [])].filter((each) => each.part).map((each) => each.id));
    for (const id of parsed.needs) needed.add(id);
    const ask = () => this._runs.ask({ columns: needed, conditions: parsed.conditions, sort: sort.sort, order });
    clearTimeout(this._asking);
    if (this._runs.hasLoaded) this._asking = setTimeout(ask, ASK_MS);
    else ask();
  }

  _columns() {
    let ids = this._params.getAll("col").filter(columns.column);
    if (!ids.length) ids = this._usual();
    const key = JSON.stringify(ids);
    if (key !== this._shownColumns.key)
      this._shownColumns = { key, list: columns.columnsOf(["name", ...ids.filter((id) => id !== "name")]) };
    return this._shownColumns.list;
  }

  _usual() {
    if (this._runs.keys) {
      const found = columns.usual(this._runs.keys);
      const text = JSON.stringify(found);
      if (localStorage.getItem(USUAL) !== text) keep(USUAL, text);
      return found;
    }
    try {
      return JSON.parse(localStorage.getItem(USUAL) ?? "null")?.filter(columns.column) ?? columns.usual(null);
    } catch {
      return columns.usual(null);
    }
  }

  /** Return the filter that holds: of an expression that is wrong, the last one that was right. */
  _parsed() {
    const text = this._params.get("q") ?? "";
    if (text === this._filter.text && this._filter.keys === this._runs.keys) return this._filter.parsed;
    const found = parse(text, (part, key) => this._runs.knows(part, key));
    const isWaiting = found.problem && !this._runs.keys; // for the names of settings and metrics
    const last = this._filter.parsed ?? parse("", () => false);
    this._filter = {
      text,
      keys: this._runs.keys,
      problem: isWaiting ? "" : found.problem,
      parsed: found.problem ? last : found,
    };
    return this._filter.parsed;
  }

  _sorting() {
    const text = this._params.get("sort") ?? SORT;
    return text.startsWith("-") ? [text.slice(1), "desc"] : [text, "asc"];
  }

  _sort(id) {
    const [now, order] = this._sorting();
    const isTime = columns.column(id).isTime;
    const next = now === id ? (order === "asc" ? `-${id}` : id) : isTime ? `-${id}` : id;
    address.change({ sort: next === SORT ? null : next });
  }

  // ---- groups ----

  /** Return groups over all runs where not all are loaded, and the collector can choose and group them; else null. */
  _groupsOfStore(by, shown, parsed, runs, now) {
    const isPart = this._runs.hasLoaded && !this._runs.isComplete;
    const isPlain = (run) => typeof by.value(run, now) !== "object";
    if (!by || !isPart || parsed.here.length || !runs.every(isPlain)) return this._storeGroups.none();
    return this._storeGroups.get(by, shown, parsed.conditions);
  }

  _folded() {
    const isAll = this._params.get("fold") === "all";
    const but = new Set(this._params.getAll("but"));
    return { has: (id) => but.has(id) !== isAll };
  }

  _toggle(group) {
    const but = new Set(this._params.getAll("but"));
    if (!but.delete(group.id)) but.add(group.id);
    address.change({ but: [...but] });
  }

  _foldAll() {
    const isAll = this._params.get("fold") === "all" && !this._params.has("but");
    address.change({ fold: isAll ? null : "all", but: null });
  }

  // ---- what is shown around the table ----

  _showToolbar(by) {
    const differ = (this._runs.keys?.config ?? [])
      .filter((each) => !each.is_same || each.runs < this._runs.keys.runs)
      .slice(0, 100);
    const key = JSON.stringify([by?.id, differ.map((each) => each.key)]);
    if (key !== this._byKey) {
      this._byKey = key;
      const options = [["", "nothing"], ...GROUPS.map((id) => [id, columns.column(id).label.toLowerCase()])];
      const settings = differ.map((each) => [`config::${each.key}`, each.key]);
      if (by?.part && !settings.some(([id]) => id === by.id)) settings.push([by.id, by.label]);
      const made = ([value, label]) =>
        h(
          "option",
          { value, selected: value === (by?.id ?? "") },
          label.length > 60 ? `${label.slice(0, 60)}…` : label,
        );
      fill(this._by, options.map(made), settings.length > 0 && h("optgroup", { label: "Setting" }, settings.map(made)));
    }
    this._fold.hidden = !by;
    this._fold.textContent = this._params.get("fold") === "all" && !this._params.has("but") ? "Unfold all" : "Fold all";
    const total = this._runs.total;
    const here = this._listed.length;
    const loaded = this._runs.byId.size;
    const words =
      here === total
        ? `${total.toLocaleString("en")} ${total === 1 ? "run" : "runs"}`
        : `${here.toLocaleString("en")} of ${total.toLocaleString("en")} runs`;
    const hasNone = !loaded && !this._runs.hasLoaded;
    this._count.textContent = hasNone
      ? "Loading …"
      : this._runs.isLoading && loaded < Math.min(total, MAX_LOADED)
        ? `${words} (loading)`
        : words;
    this._showNote();
  }

  _showNote() {
    const { problem, parsed } = this._filter;
    const loaded = this._runs.byId.size.toLocaleString("en");
    const isPart = this._runs.hasLoaded && !this._runs.isComplete;
    const notes = [];
    if (isPart && parsed.here.length)
      notes.push(
        `${parsed.here.join(" ")}: looked up in the ${loaded} runs that are loaded, of ${this._runs.total.toLocaleString("en")}.`,
      );
    const [sortId] = this._sorting();
    if (isPart && !columns.column(sortId)?.sort)
      notes.push(`Sorted and shown: ${loaded} runs that are loaded; filter for the others.`);
    if (isPart && this._params.has("by"))
      notes.push(this._whole ? ofGroups(this._whole.leftOut) : `Groups: over the ${loaded} runs that are loaded.`);
    const text = problem || notes.filter(Boolean).join(" ");
    if (this._note.textContent !== text) this._note.textContent = text;
    this._note.classList.toggle("bad", Boolean(problem));
    this._field.setAttribute("aria-invalid", String(Boolean(problem)));
  }

  _paint() {
    const ids = [...this._selection.ids].filter((id) => this._runs.byId.has(id));
    this._table.show({
      selected: this._selection.ids,
      active: this._selection.active,
      isAll: this._selection.isAll,
      isSome: ids.length > 0,
    });
    this._actions.show(ids, this._selection.listed);
  }

  _showEmpty(count) {
    const isEmpty = count === 0 && this._runs.hasLoaded && !this._runs.isLoading;
    const text = this._params.get("q") ?? "";
    const isNone = isEmpty && this._runs.byId.size === 0 && !text;
    this._place.hidden = isNone;
    const key = isEmpty ? `${isNone} ${this._runs.total} ${Boolean(this._info)}` : "";
    if (key === this._emptyKey) return;
    this._emptyKey = key;
    const clear = () => {
      this._field.value = "";
      this._typed();
      this._field.focus();
    };
    fill(
      this._empty,
      isNone ? noRuns(this._info) : isEmpty && noMatch(text, Math.max(this._runs.total, this._runs.byId.size), clear),
    );
  }

  // ---- views ----

  _asText() {
    const kept = new URLSearchParams();
    for (const name of PARAMETERS) for (const value of this._params.getAll(name)) kept.append(name, value);
    return kept.toString();
  }

  _apply(text) {
    this._link();
    const wanted = new URLSearchParams(text);
    this._field.value = wanted.get("q") ?? "";
    address.change(Object.fromEntries(PARAMETERS.map((name) => [name, wanted.getAll(name)])), { push: true });
  }

  _chooseColumns() {
    const change = (ids) => {
      const usual = this._usual();
      const next = ids ?? usual;
      address.change({ col: JSON.stringify(next) === JSON.stringify(usual) ? null : next });
      return next;
    };
    openColumns(
      this._columns().map((each) => each.id),
      this._runs.keys,
      change,
    );
  }

  // ---- keys ----

  _globalKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox]), select, textarea")) return;
    const work = { "/": () => this._field.focus(), "?": openHelp, c: () => this._chooseColumns() }[event.key];
    if (!work) return;
    event.preventDefault();
    work();
  }

  _filterKey(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this._table.focus();
      if (this._selection.active < 0) this._move(0);
    } else if (event.key === "Escape" && !this._field.value) this._table.focus();
  }

  _key(event) {
    const isAll = event.key === "a" && (event.ctrlKey || event.metaKey);
    if (event.target !== event.currentTarget && !isAll) return; // a button within
    const { active } = this._selection;
    const item = this._selection.items[active];
    const page = this._table.page();
    const moves = {
      ArrowDown: active + 1,
      ArrowUp: active - 1,
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: Infinity,
    };
    if (event.key in moves) this._move(moves[event.key], event.shiftKey);
    else if (event.key === " ") this._selection.toggle(active);
    else if (event.key === "Enter" && item?.run) address.go(["run", item.run.id]);
    else if (item?.group && (event.key === "Enter" || event.key === (item.group.isOpen ? "ArrowLeft" : "ArrowRight")))
      this._toggle(item.group);
    else if (isAll) this._selection.all();
    else if (event.key === "Escape") this._selection.clear();
    else if (event.key === "Delete") this._actions.delete().catch(showError);
    else return;
    event.preventDefault();
  }

  _move(to, isRange = false) {
    this._selection.move(to, isRange);
    if (this._selection.active >= 0) this._table.reveal(this._selection.active);
  }
}

function keep(key, text) {
  try {
    localStorage.setItem(key, text);
  } catch {
    // no room: the table looks for a moment as for somebody new
  }
}
