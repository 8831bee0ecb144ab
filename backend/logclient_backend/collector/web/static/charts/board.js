// All charts of one view: the runs, the view that the address describes, who may paint when, and what is live.

import * as address from "../core/address.js";
import * as colours from "../core/colours.js";
import { get } from "../core/api.js";
import { h } from "../core/dom.js";
import { showError } from "../core/messages.js";
import * as theme from "../core/theme.js";
import { Live } from "./live.js";
import { Loader } from "./loader.js";
import { loadMarks } from "./marks.js";
import { dataKey, drawKey, toggled, zoomText } from "./view_state.js";

const FRAME_MS = 8; // of painting in one frame: the rest of it belongs to the browser
const RUNS_AT_ONCE = 3; // requests for the runs themselves
const AGAIN_MS = 15_000; // state and marks of runs that go on
const TEXT = "text";
/** Of the parameter `group`: what follows is the name of a setting. */
export const CONFIG = "config::";
/** States in which nothing comes any more. */
const OVER = new Set(["finished", "failed", "preempted", "killed", "terminated", "replaced"]);

export class Board {
  /** `ids`: of the runs, in the order of the address. `onRuns()`, `onKeys()`, `onView(before)`, `onStatus()` are set by the view. */
  constructor(ids, view, side = "") {
    this.ids = ids;
    this.side = side; // of the runs: empty for what was logged
    this.view = view;
    this.runs = new Map(); // id -> {id, name, startS, ...} as `run` answers
    this.keys = new Map(); // key -> runs that have it as numbers
    this.marks = new Map(); // run -> {events, gaps}
    this.charts = new Set(); // mounted
    this.lastDataNs = 0;
    this.clockNs = 0; // of the collector minus ours
    this.trouble = "";
    this._dirty = new Set();
    this._ended = new AbortController();
    this.loader = new Loader((run) => OVER.has(this.runs.get(run)?.state), side);
    this.loader.onAnswer = (position) => this.live.loaded(position);
    this.live = new Live({
      side,
      wanted: () => this._wanted(),
      lastSteps: (key) => this._lastSteps(key),
      allRanks: () => this.view.allRanks,
      onPoints: (run, key, point) => this._points(run, key, point),
      onReload: (run, key) => this._of(key).forEach((chart) => chart.loadSoon()),
      onKeys: (run, names) => this._newKeys(run, names),
      onStatus: (text) => {
        this.trouble = text;
        this.onStatus();
      },
    });
    this._themes = [theme.watch(() => this._repaint()), colours.watch(() => this._repaint())];
    this._readPalette();
    this._timer = setInterval(() => this._again(), AGAIN_MS);
  }

  /** Load runs, keys and marks. */
  async open() {
    const { signal } = this._ended;
    const work = this.ids.map((id) => async () => {
      try {
        await this._loadRun(id, signal);
      } catch (error) {
        if (error.reason !== "no_run") throw error;
        this.unknown.push(id);
      }
    });
    this.unknown = [];
    await atMost(RUNS_AT_ONCE, work);
    this.onRuns();
    this.onKeys();
    atMost(2, [...this.runs.keys()].map((id) => () => this._loadMarks(id))).catch(showError);
  }

  close() {
    this._ended.abort();
    clearInterval(this._timer);
    this.live.close();
    for (const end of this._themes) end();
  }

  /** Take the view of the address. */
  take(view) {
    const before = this.view;
    this.view = view;
    const isOther = dataKey(before) !== dataKey(view);
    this.onView(before);
    if (drawKey(before) !== drawKey(view)) for (const chart of this.charts) chart.changed({ isOther });
  }

  /** Change parameters of the address; the page follows. */
  change(changes, options) {
    address.change(changes, options);
  }

  zoom(range) {
    this.change({ zoom: zoomText(range) });
  }

  /** Show a chart in the full window, or none; Back closes it. */
  expand(key) {
    this.change({ chart: key || null }, { push: Boolean(key) });
  }

  toggleMembers(value) {
    this.change({ members: toggled(this.view.members, value) });
  }

  // --- runs

  /** Return chosen runs that are not hidden and have this key. */
  shownRuns(key) {
    const have = this.keys.get(key) ?? new Set();
    return this.ids.filter((id) => have.has(id) && !this.view.hidden.has(id));
  }

  /** Return runs that are drawn one by one. */
  singles(key) {
    const grouped = new Set(this.groups(key).filter((each) => !this.view.members.has(each.value)).flatMap((each) => each.runs));
    return this.shownRuns(key).filter((id) => !grouped.has(id));
  }

  /** Return runs that are drawn as bands: `{name, value, runs}`; a group of one is a line. */
  groups(key) {
    if (!this.view.group || this.view.x !== "step") return [];
    const found = Map.groupBy(this.shownRuns(key), (id) => this.groupOf(id));
    found.delete("");
    return [...found]
      .filter(([, runs]) => runs.length > 1)
      .map(([value, runs]) => ({ name: `${this.view.group}=${value}`, value, runs }));
  }

  membersOfBands(key) {
    return this.groups(key).flatMap((each) => each.runs);
  }

  /** Return the group of a run as text; empty: none. */
  groupOf(id) {
    const run = this.runs.get(id);
    const by = this.view.group;
    const found = by.startsWith(CONFIG) ? run?.settings.get(by.slice(CONFIG.length)) : run?.[by];
    if (found === undefined || found === null || found === "") return "";
    return typeof found === "object" ? JSON.stringify(found) : String(found);
  }

  nameOf(id) {
    const run = this.runs.get(id);
    return run?.name || id;
  }

  linkOf(id) {
    return h("a", { href: address.link(["run", id]) }, this.nameOf(id));
  }

  attemptOf(id) {
    return this.runs.get(id)?.attempts || 1;
  }

  /** Return the number of the line of a run or a group. A run that is alone needs no dashes to be told from others. */
  numberOf(id) {
    return this.ids.length === 1 && !this.view.group ? colours.number(id) % colours.COLOURS : colours.number(id);
  }

  /** Return a function of a name: its line. Colours are read once for all of a picture. */
  lineOf() {
    return (id) => {
      const number = this.numberOf(id);
      return { colour: this.palette.series[number % colours.COLOURS], dash: colours.DASHES[Math.floor(number / colours.COLOURS)] };
    };
  }

  // --- painting

  /** Paint a chart in one of the next frames: never more in one than there is time for. */
  paintSoon(chart) {
    this._dirty.add(chart);
    this._frame ||= requestAnimationFrame(() => this._paint());
  }

  _paint() {
    this._frame = 0;
    const start = performance.now();
    for (const chart of this._dirty) {
      if (performance.now() - start > FRAME_MS) break;
      this._dirty.delete(chart);
      chart.draw();
    }
    if (this._dirty.size) this._frame = requestAnimationFrame(() => this._paint());
  }

  /** Move the cursors of all other charts. */
  followers(from, x) {
    for (const chart of this.charts) if (chart !== from) chart.follow(x);
  }

  _repaint() {
    this._readPalette();
    for (const chart of this.charts) this.paintSoon(chart);
    this.onRuns();
  }

  _readPalette() {
    const of = (name) => theme.colour(name);
    this.palette = {
      dim: of("--ink-dim"),
      ink: of("--ink"),
      paper: of("--paper"),
      grid: of("--line"),
      warn: of("--warn"),
      bad: of("--bad"),
      series: Array.from({ length: colours.COLOURS }, (_, i) => of(`--series-${i}`)),
    };
  }

  // --- live

  get liveRuns() {
    return this.ids.filter((id) => this.runs.has(id) && !OVER.has(this.runs.get(id).state));
  }

  _wanted() {
    const runs = this.liveRuns.filter((id) => !this.view.hidden.has(id));
    return { runs, keys: [...new Set([...this.charts].map((chart) => chart.key))].sort() };
  }

  _of(key) {
    return [...this.charts].filter((chart) => chart.key === key);
  }

  _lastSteps(key) {
    const known = new Map();
    for (const chart of this._of(key)) for (const [run, curve] of chart.whole) known.set(run, curve.lastStep);
    return known;
  }

  _points(run, key, point) {
    this.lastDataNs = Math.max(this.lastDataNs, point.times.at(-1) * 1e9);
    for (const chart of this._of(key)) if (!chart.takesPoints(run) || !chart.append(run, point)) chart.loadSoon();
  }

  _newKeys(run, names) {
    for (const key of names) this._addKey(key, run);
    this.onKeys();
  }

  async _again() {
    if (document.hidden) return;
    for (const id of this.liveRuns) {
      const before = this.runs.get(id);
      try {
        await this._loadRun(id, this._ended.signal, { isKnown: true });
      } catch {
        return; // the stream says why
      }
      const now = this.runs.get(id);
      if (now.attempts !== before.attempts || OVER.has(now.state)) {
        for (const chart of this.charts) chart.load({ isAnew: true });
        this._loadMarks(id).catch(() => {});
      }
    }
    this.onStatus();
  }

  // --- loading

  async _loadRun(id, signal, { isKnown = false } = {}) {
    const first = isKnown ? null : get("run/keys", { run: id, side: this.side || null }, { signal });
    first?.catch(() => {}); // of a run that is not here: the other answer says so
    const info = await get("run", { run: id }, { signal });
    this.clockNs = info.now_ns - Date.now() * 1e6;
    const settings = flattened(info.config);
    this.runs.set(id, { ...info, settings, startS: info.created_ns / 1e9, texts: this.runs.get(id)?.texts ?? [] });
    if (isKnown) return;
    let after = "";
    do {
      const page = await (after ? get("run/keys", { run: id, side: this.side || null, after }, { signal }) : first);
      for (const row of page.keys) {
        if (row.types.length === 1 && row.types[0] === TEXT) this.runs.get(id).texts.push(row.key);
        else this._addKey(row.key, id);
        if (!OVER.has(info.state)) this.lastDataNs = Math.max(this.lastDataNs, row.last.time_ns);
      }
      after = page.next;
    } while (after);
  }

  async _loadMarks(id) {
    const info = this.runs.get(id);
    this.marks.set(id, await loadMarks(info, info.texts, this.side || null, this._ended.signal));
    for (const chart of this.charts) this.paintSoon(chart);
  }

  _addKey(key, run) {
    if (!this.keys.has(key)) this.keys.set(key, new Set());
    this.keys.get(key).add(run);
  }
}

/** Return the values of a config by the names that lists have: parts of nested keys are joined by "::". */
export function flattened(config, before = "", made = new Map()) {
  for (const [name, value] of Object.entries(config ?? {})) {
    if (value !== null && typeof value === "object" && Object.keys(value).length) flattened(value, `${before}${name}::`, made);
    else made.set(before + name, value);
  }
  return made;
}

async function atMost(count, work) {
  const left = [...work];
  const one = async () => {
    while (left.length) await left.shift()();
  };
  await Promise.all(Array.from({ length: Math.min(count, left.length) }, one));
}
