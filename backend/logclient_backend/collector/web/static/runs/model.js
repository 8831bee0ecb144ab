// The runs that the table knows: loaded page by page, kept up to date, asked for the values of columns as these are needed.
//
// Up to MAX_LOADED runs all are loaded, and filter and sort answer from memory. Of a store with more, the collector filters
// and sorts, and the newest MAX_LOADED of what matches are here; `isComplete` says whether that is all.
//
// A run is replaced by a new object when anything of it changes, so whoever keeps one can compare.

import { get } from "../core/api.js";

export const MAX_LOADED = 5000;
const FIRST_PAGE = 200; // what a screen shows comes at once
const PAGE = 1000;
const MAX_COLUMNS = 60; // of one question; the API takes 64
const NO_QUERY = JSON.stringify({ conditions: [], sort: "created_ns", order: "desc" });

export class Runs {
  /** `changed()` is called after every change, `failed(error)` where a question failed. */
  constructor({ changed, failed }) {
    this.byId = new Map();
    this.total = 0; // of the store's runs, with the conditions where it filters
    this.isLoading = true;
    this.isComplete = false;
    this.hasLoaded = false;
    this.keys = null; // the answer of /columns
    this._changed = changed;
    this._failed = failed;
    this._columns = new Set();
    this._query = NO_QUERY; // what was asked for
    this._isLarge = false; // the store has more runs than are loaded
    this._clock = { now_ns: 0, at: 0 };
    this._ended = new AbortController();
    this._load = null;
  }

  close() {
    this._ended.abort();
    this._load?.abort();
  }

  /** Return the collector's time now, in ns. */
  now() {
    return this._clock.now_ns + (performance.now() - this._clock.at) * 1e6;
  }

  /** Take over a time of the collector. */
  setClock(now_ns) {
    this._clock = { now_ns, at: performance.now() };
  }

  /** Return whether some run that is here, or a newest one of the store, has a value under this key. */
  knows(part, key) {
    return this._names?.[part].has(key) ?? false;
  }

  /** Load what is to be seen; a store with more runs than are loaded gets conditions and order. */
  ask({ columns, conditions, sort, order }) {
    const query = JSON.stringify({ conditions, sort: sort ?? "created_ns", order });
    const missing = [...columns].filter((id) => !this._columns.has(id));
    const isOther = this._isLarge && query !== this._query;
    this._query = this._isLarge ? query : this._query;
    this._wanted = query;
    for (const id of missing) this._columns.add(id);
    if (!this.hasLoaded && !this._load) this._start(() => this._whole());
    else if (isOther) this._start(() => this._whole());
    else if (missing.length) this._more(missing).catch(this._failed);
  }

  /** Load everything anew: after a connection was lost, or a computer was asleep. */
  reload() {
    return this._start(() => this._whole());
  }

  /** Take over rows that have changed, with the fields that changed, and the ids of runs that are gone. */
  apply(rows, gone = []) {
    for (const row of rows) {
      const known = this.byId.get(row.id);
      if (!known && (this._isLarge || row.state === undefined)) continue; // the collector chooses among many
      const columns = { ...known?.columns, ...row.columns };
      if (!known) this.total += 1;
      this.byId.set(row.id, { ...EMPTY, ...known, ...row, columns });
    }
    for (const id of gone) if (this.byId.delete(id)) this.total -= 1;
    const fresh = rows.filter((row) => row.state !== undefined && !row.columns).map((row) => row.id);
    if (fresh.length && this._columns.size) this.refreshColumns(fresh.slice(0, PAGE)).catch(this._failed);
    this._changed();
  }

  /** Ask for metrics of these runs again, as far as columns show them. */
  async refreshMetrics(ids) {
    const keys = [...this._columns].filter((id) => id.startsWith("last::")).map((id) => id.slice(6));
    if (!keys.length || !ids.length) return;
    const found = await get("last", { run: ids.slice(0, PAGE), key: keys.slice(0, 100) }, this._ended);
    const changed = new Map();
    for (const { run, key, last } of found.values) {
      const known = this.byId.get(run);
      if (!known || known.columns[`last::${key}`] === last.value) continue;
      changed.set(run, { ...changed.get(run), [`last::${key}`]: last.value });
    }
    for (const [run, columns] of changed) {
      const known = this.byId.get(run);
      this.byId.set(run, { ...known, columns: { ...known.columns, ...columns } });
    }
    if (changed.size) this._changed();
  }

  /** Ask for the values of all columns of these runs. */
  async refreshColumns(ids) {
    await this.refreshMetrics(ids);
    const columns = [...this._columns].filter((id) => !id.startsWith("last::"));
    if (!columns.length) return;
    for (const id of ids.slice(0, 20)) {
      const page = await this._page({ where: [JSON.stringify(["id", "=", id])], limit: 1 }, columns, this._ended);
      this._take(page.runs);
    }
    this._changed();
  }

  _start(work) {
    this._load?.abort();
    const load = new AbortController();
    this._load = load;
    this.isLoading = true;
    return work()
      .catch((error) => {
        if (!load.signal.aborted) this._failed(error);
      })
      .finally(() => {
        if (this._load !== load) return;
        this._load = null;
        this.isLoading = false;
        this._changed();
      });
  }

  async _whole() {
    const ended = this._load;
    if (!this.keys) this._loadKeys(ended).catch(this._failed);
    const columns = [...this._columns];
    const first = await this._page({ ...this._parameters(), limit: FIRST_PAGE }, columns, ended);
    this._isLarge = first.total > MAX_LOADED || (this._isLarge && this._query !== NO_QUERY);
    if (this._isLarge && this._query !== (this._wanted ?? NO_QUERY)) {
      this._query = this._wanted;
      return this._whole();
    }
    const found = new Set(first.runs.map((run) => run.id));
    this._show(first);
    let page = first;
    while (page.next && found.size < MAX_LOADED) {
      const rest = { ...this._parameters(), limit: Math.min(PAGE, MAX_LOADED - found.size), after: page.next };
      page = await this._page(rest, columns, ended);
      for (const run of page.runs) found.add(run.id);
      this._show(page);
    }
    for (const id of [...this.byId.keys()]) if (!found.has(id)) this.byId.delete(id);
    this.isComplete = !page.next;
    this.hasLoaded = true;
  }

  _show(page) {
    this.setClock(page.now_ns);
    this.total = page.total;
    this._take(page.runs);
    this._changed();
  }

  _take(rows) {
    for (const row of rows) {
      const known = this.byId.get(row.id);
      this.byId.set(row.id, { ...EMPTY, ...row, columns: { ...known?.columns, ...row.columns } });
    }
  }

  async _more(columns) {
    let after = "";
    let count = 0;
    do {
      const page = await this._page({ ...this._parameters(), limit: PAGE, after }, columns, this._ended);
      this._take(page.runs);
      this._changed();
      after = page.next;
      count += page.runs.length;
    } while (after && count < MAX_LOADED);
  }

  _parameters() {
    const { conditions, sort, order } = JSON.parse(this._query);
    return { where: conditions.map((each) => JSON.stringify(each)), sort, order };
  }

  async _page(parameters, columns, { signal }) {
    const first = await get("runs", { ...parameters, column: columns.slice(0, MAX_COLUMNS) }, { signal });
    for (let at = MAX_COLUMNS; at < columns.length; at += MAX_COLUMNS) {
      const more = await get("runs", { ...parameters, column: columns.slice(at, at + MAX_COLUMNS) }, { signal });
      const byId = new Map(more.runs.map((run) => [run.id, run.columns]));
      for (const run of first.runs) Object.assign(run.columns, byId.get(run.id));
    }
    return first;
  }

  async _loadKeys({ signal }) {
    this.keys = await get("columns", {}, { signal });
    this._names = Object.fromEntries(
      ["config", "summary", "last"].map((part) => [part, new Set(this.keys[part].map((each) => each.key))]),
    );
    this._changed();
  }
}

const EMPTY = {
  name: "",
  project: "",
  group: "",
  tags: [],
  state: "running",
  reason: "",
  created_ns: 0,
  ended_ns: 0,
  active_ns: 0,
  rest_s: 0,
  observed: null,
  last_seen_ns: 0,
  attempts: 0,
  records: 0,
  points: 0,
  bytes: 0,
  counts: {},
};
