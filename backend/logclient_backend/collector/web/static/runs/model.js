// The runs that the table knows: loaded page by page, kept up to date, asked for the values of columns as these are needed.
//
// Up to MAX_LOADED runs all are loaded, and filter and sort answer from memory. Of a store with more, the collector filters
// and sorts, and the newest MAX_LOADED of what matches are here; `isComplete` says whether that is all.
//
// A run is replaced by a new object when anything of it changes, so whoever keeps one can compare. An answer that comes
// late takes back nothing that is known as of a later moment (`newer.js`), and an event of the stream that is older than an
// edit takes back nothing of it: both have a position of the store, `at`.

import { get } from "../core/api.js";
import { Newer } from "./newer.js";

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
    this._newer = new Newer();
    this._at = 0; // position of the list
    this._from = 0; // position from which on the stream has all changes
    this._edited = new Map(); // id -> field -> position of the answer of the newest edit made here
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

  /** A stream has begun that has the changes from this position on: a list that is older is loaded anew. */
  streamBegan(at) {
    this._from = at;
    if (this.hasLoaded && !this._load && this._at < at) this.reload();
  }

  /** Take over rows that have changed, with the fields that changed, and the ids of runs that are gone; `at`: of the event. */
  apply(changed, gone = [], at = Infinity) {
    const rows = this._withoutEdited(changed, at);
    for (const row of rows) {
      this._newer.note(row.id, row);
      this._put(row);
    }
    for (const id of gone) {
      this._newer.note(id, null);
      if (this.byId.delete(id)) this.total -= 1;
    }
    this._applied(rows);
  }

  /** Ask for the runs for which a condition holds, and take over what differs. */
  async refresh(where, limit) {
    const asked = { where: JSON.stringify(where), sort: "last_seen_ns", limit };
    await this._asking(async (when) => {
      const page = await get("runs", asked, this._ended);
      this.setClock(page.now_ns);
      const rows = page.runs
        .filter((run) => !this._newer.isGone(run.id, when))
        .map((run) => this._newer.over(run.id, run, when))
        .filter((run) => differs(this.byId.get(run.id), run));
      for (const row of rows) this._put(row);
      this._applied(rows);
    });
  }

  /**
   * Edit a field of runs: `ask()` returns `{done, at}`, the ids of those that were changed and the position of the answer,
   * `next(run)` what the field of a run is then.
   * A field that has got another value by the time of the answer is left: that came from the collector, as will what follows.
   */
  async edit(ids, field, ask, next) {
    const before = new Map(ids.map((id) => [id, this.byId.get(id)?.[field]]));
    const { done, at } = await ask();
    const rows = [];
    for (const id of done) {
      this._edited.set(id, (this._edited.get(id) ?? new Map()).set(field, at));
      const known = this.byId.get(id);
      if (known && isSame(known[field], before.get(id))) rows.push({ id, [field]: next(known) });
    }
    this.apply(rows);
    return done;
  }

  /** Ask for metrics of these runs again, as far as columns show them. */
  async refreshMetrics(ids) {
    const keys = [...this._columns].filter((id) => id.startsWith("last::")).map((id) => id.slice(6));
    if (!keys.length || !ids.length) return;
    await this._asking(async (when) => {
      const found = await get("last", { run: ids.slice(0, PAGE), key: keys.slice(0, 100) }, this._ended);
      const changed = new Map();
      for (const { run, key, last } of found.values)
        changed.set(run, { ...changed.get(run), [`last::${key}`]: last.value });
      let isOther = false;
      for (const [run, values] of changed) {
        const known = this.byId.get(run);
        if (!known) continue;
        const columns = this._newer.over(run, values, when);
        if (Object.entries(columns).every(([id, value]) => known.columns[id] === value)) continue;
        this.byId.set(run, { ...known, columns: { ...known.columns, ...columns } });
        isOther = true;
      }
      if (isOther) this._changed();
    });
  }

  /** Ask for the values of all columns of these runs. */
  async refreshColumns(ids) {
    await this.refreshMetrics(ids);
    const columns = [...this._columns].filter((id) => !id.startsWith("last::"));
    if (!columns.length) return;
    for (const id of ids.slice(0, 20)) {
      await this._asking(async (when) => {
        const page = await this._page({ where: [JSON.stringify(["id", "=", id])], limit: 1 }, columns, this._ended);
        this._take(page.runs, when);
      });
    }
    this._changed();
  }

  /** Return rows of an event without the fields that were edited since; what they are now is asked for where that differs. */
  _withoutEdited(rows, at) {
    return rows.map((row) => {
      const rest = { ...row };
      for (const [field, edited] of this._edited.get(row.id) ?? []) {
        if (at >= edited || !(field in row)) continue;
        delete rest[field];
        if (!isSame(row[field], this.byId.get(row.id)?.[field])) this.refresh(["id", "=", row.id], 1).catch(this._failed);
      }
      return rest;
    });
  }

  /** Run `work(when)`, which asks for runs as of now. */
  async _asking(work) {
    const when = this._newer.begin();
    try {
      return await work(when);
    } finally {
      this._newer.end(when);
    }
  }

  _put(row) {
    const known = this.byId.get(row.id);
    if (!known && (this._isLarge || row.state === undefined)) return; // the collector chooses among many
    const columns = { ...known?.columns, ...row.columns };
    if (!known) this.total += 1;
    this.byId.set(row.id, { ...EMPTY, ...known, ...row, columns });
  }

  _applied(rows) {
    const fresh = rows.filter((row) => row.state !== undefined && !row.columns).map((row) => row.id);
    if (fresh.length && this._columns.size) this.refreshColumns(fresh.slice(0, PAGE)).catch(this._failed);
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

  _whole() {
    return this._asking((when) => this._loadAll(when));
  }

  async _loadAll(began) {
    const ended = this._load;
    if (!this.keys) this._loadKeys(ended).catch(this._failed);
    const columns = [...this._columns];
    const first = await this._page({ ...this._parameters(), limit: FIRST_PAGE }, columns, ended);
    this._isLarge = first.total > MAX_LOADED || (this._isLarge && this._query !== NO_QUERY);
    if (this._isLarge && this._query !== (this._wanted ?? NO_QUERY)) {
      this._query = this._wanted;
      return this._whole();
    }
    this._at = first.at;
    const found = new Set(first.runs.map((run) => run.id));
    this._show(first, began);
    let page = first;
    while (page.next && found.size < MAX_LOADED) {
      const rest = { ...this._parameters(), limit: Math.min(PAGE, MAX_LOADED - found.size), after: page.next };
      page = await this._asking(async (when) => {
        const next = await this._page(rest, columns, ended);
        this._show(next, when);
        return next;
      });
      for (const run of page.runs) found.add(run.id);
      if (this._at < this._from) break;
    }
    if (this._at < this._from) return this._whole(); // the stream began meanwhile
    for (const id of [...this.byId.keys()])
      if (!found.has(id) && (this._isLarge || !this._newer.has(id, "state", began))) this.byId.delete(id);
    if (!this._isLarge && !page.next) this.total = this.byId.size; // others came and went meanwhile
    this.isComplete = !page.next;
    this.hasLoaded = true;
  }

  _show(page, when) {
    this.setClock(page.now_ns);
    this.total = page.total;
    this._take(page.runs, when);
    this._changed();
  }

  /** Take over rows that were asked for at that moment. */
  _take(rows, when) {
    for (const row of rows) {
      if (this._newer.isGone(row.id, when)) continue;
      const known = this.byId.get(row.id);
      const { columns: given = {}, ...fields } = row;
      const columns = { ...known?.columns, ...this._newer.over(row.id, given, when) };
      this.byId.set(row.id, { ...EMPTY, ...known, ...this._newer.over(row.id, fields, when), columns });
    }
  }

  async _more(columns) {
    let after = "";
    let count = 0;
    do {
      after = await this._asking(async (when) => {
        const page = await this._page({ ...this._parameters(), limit: PAGE, after }, columns, this._ended);
        this._take(page.runs, when);
        count += page.runs.length;
        return page.next;
      });
      this._changed();
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

function differs(known, run) {
  return !known || Object.entries(run).some(([name, value]) => name !== "columns" && !isSame(known[name], value));
}

function isSame(one, other) {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}
