// Curves and bands from the collector: questions of one moment go together, few at a time, and what was read of runs that
// are over is kept.
//
// A question that its chart has dropped meanwhile is not asked. Answers come as `Curve` (`curve.js`).

import { get } from "../core/api.js";
import { toNumber } from "../core/format.js";
import { fromCurves, fromXy } from "./curve.js";

const AT_ONCE = 3; // requests; a browser has 6 connections to a host, one of which is the stream
const KEYS_AT_ONCE = 12; // of one request: the charts of one screen come soon, and one after the other
const PAIRS_AT_ONCE = 400;
const RUNS_AT_ONCE = 200;
const KEPT_BUCKETS = 500_000; // of runs that are over: 80 bytes each
const ROUND = 256; // widths of plots are rounded up to it, so that charts of nearly one width share questions

/** Return how many buckets to ask for, for a plot of so many pixels: at least one bucket per pixel comes. */
export function mostFor(pixels) {
  return Math.min(8192, 2 * ROUND * Math.max(1, Math.ceil(pixels / ROUND)));
}

export class Loader {
  /** `isOver(run)`: nothing will come of that run any more. `side`: of the runs; empty for what was logged. */
  constructor(isOver, side = "") {
    this._isOver = isOver;
    this._side = side || null;
    this._waiting = []; // questions of this moment
    this._queue = []; // requests that wait for their turn
    this._inFlight = 0;
    this._kept = new Map(); // name -> curve, the one that was used last at the end
    this._keptBuckets = 0;
    this.newest = { at: 0, cursor: "" }; // position of the last answer
    this.onAnswer = () => {}; // of `curves`: (position, its keys)
  }

  /**
   * Return the curves of one key: run -> `Curve`, without runs that do not have it. `steps`: null for all, else a range;
   * `signal` ends the wish.
   */
  async curves({ runs, key, most, steps = null, allAttempts = false, allRanks = false, signal }) {
    const range = { most, steps, allAttempts, allRanks };
    const found = new Map();
    const missing = [];
    for (const run of runs) {
      const kept = this._find(name(run, key, range));
      if (kept) found.set(run, kept);
      else missing.push(run);
    }
    const parts = [];
    for (let at = 0; at < missing.length; at += RUNS_AT_ONCE) parts.push(missing.slice(at, at + RUNS_AT_ONCE));
    const answers = await Promise.all(parts.map((part) => this._wait({ runs: part, key, range, signal })));
    for (const [run, curve] of answers.flat()) found.set(run, curve);
    return found;
  }

  /** Put a question among those of this moment. */
  _wait(question) {
    return new Promise((done, reject) => {
      if (!this._waiting.length) setTimeout(() => this._gather());
      this._waiting.push({ ...question, done, reject });
    });
  }

  /** Return the curves of one key over another: run -> `Curve`. */
  async xy({ runs, x, key, most, zoom = null, signal }) {
    const found = new Map();
    const one = async (run) => {
      const range = zoom ? { first_x: zoom[0], last_x: zoom[1] } : {};
      try {
        const row = await this._run(() => get("run/xy", { run, x, y: key, side: this._side, most, ...range }, { signal }), signal);
        found.set(run, fromXy(row));
      } catch (error) {
        if (error.reason !== "no_key" && error.reason !== "no_numbers") throw error;
      }
    };
    await Promise.all(runs.map(one));
    return found;
  }

  /** Return several runs as one band, ready to draw; null where none has the key. */
  async band({ runs, key, most, steps = null, kind, signal }) {
    const range = steps ? { first_step: steps[0], last_step: steps[1] } : {};
    const asked = { key, run: runs, side: this._side, most: Math.min(4000, most), quantile: [0.25, 0.75], ...range };
    try {
      return bandOf(await this._run(() => get("band", asked, { signal }), signal), kind);
    } catch (error) {
      if (error.reason === "no_key" || error.reason === "no_numbers") return null;
      throw error;
    }
  }

  /** Forget what is kept: another collector, or another meaning of the data. */
  clear() {
    this._kept.clear();
    this._keptBuckets = 0;
  }

  _gather() {
    const waiting = this._waiting.filter((each) => !each.signal?.aborted);
    for (const each of this._waiting) if (each.signal?.aborted) each.reject(ended());
    this._waiting = [];
    const groups = Map.groupBy(waiting, (each) => JSON.stringify([each.runs, each.range]));
    for (const group of groups.values()) {
      const size = Math.max(1, Math.min(KEYS_AT_ONCE, Math.floor(PAIRS_AT_ONCE / group[0].runs.length)));
      for (let at = 0; at < group.length; at += size) this._ask(group.slice(at, at + size));
    }
  }

  async _ask(questions) {
    const { runs, range } = questions[0];
    const open = new Set(questions);
    const ender = new AbortController();
    for (const each of questions) {
      each.signal?.addEventListener("abort", () => {
        open.delete(each);
        each.reject(ended());
        if (!open.size) ender.abort();
      });
    }
    try {
      const keys = [...new Set(questions.map((each) => each.key))];
      const found = await this._run(() => this._pages(runs, keys, range, ender.signal), ender.signal);
      for (const each of open) each.done([...(found.get(each.key) ?? new Map())]);
    } catch (error) {
      for (const each of open) each.reject(error);
    }
  }

  /** Return key -> run -> curve, all pages of the answer. */
  async _pages(runs, keys, range, signal) {
    const found = new Map(keys.map((key) => [key, new Map()]));
    const asked = {
      run: runs,
      key: keys,
      side: this._side,
      most: range.most,
      all_attempts: range.allAttempts || null,
      ranks: range.allRanks ? "all" : "main",
      first_step: range.steps?.[0],
      last_step: range.steps?.[1],
    };
    let after = null;
    do {
      const answer = await get("curves", { ...asked, after }, { signal });
      for (const row of answer.curves) {
        const curve = fromCurves(row, answer.at);
        found.get(row.key).set(row.run, curve);
        this._keep(name(row.run, row.key, range), curve);
      }
      this.newest = { at: answer.at, cursor: answer.cursor };
      this.onAnswer(this.newest, keys);
      after = answer.next;
    } while (after);
    return found;
  }

  /** Run a request when its turn has come. */
  async _run(request, signal) {
    if (this._inFlight >= AT_ONCE) await new Promise((resolve) => this._queue.push(resolve));
    if (signal?.aborted) {
      this._next();
      throw ended();
    }
    this._inFlight += 1;
    try {
      return await request();
    } finally {
      this._inFlight -= 1;
      this._next();
    }
  }

  _next() {
    if (this._inFlight < AT_ONCE) this._queue.shift()?.();
  }

  _find(of) {
    const kept = this._kept.get(of);
    if (!kept) return null;
    this._kept.delete(of);
    this._kept.set(of, kept);
    return kept;
  }

  _keep(of, curve) {
    if (!this._isOver(curve.run)) return;
    this._kept.set(of, curve);
    this._keptBuckets += curve.length;
    for (const [oldest, { length }] of this._kept) {
      if (this._keptBuckets <= KEPT_BUCKETS) break;
      this._kept.delete(oldest);
      this._keptBuckets -= length;
    }
  }
}

/** Return a band of the API as it is drawn: its edges are the extremes of all points, or the quartiles of the runs. */
function bandOf(row, kind) {
  const n = row.start.length;
  const of = (values) => Float64Array.from(values, toNumber);
  const quantile = (share) => of(row.quantiles.find((each) => each.quantile === share).value);
  return {
    x: Float64Array.from(row.start, (start) => start + (row.width - 1) / 2),
    start: row.start,
    width: row.width,
    mean: of(row.mean),
    low: kind === "range" ? of(row.min) : quantile(0.25),
    high: kind === "range" ? of(row.max) : quantile(0.75),
    runs: row.runs,
    nans: row.nans,
    infs: row.infs,
    negInfs: row.neg_infs,
    points: row.points,
    members: row.members,
    length: n,
  };
}

function name(run, key, range) {
  return JSON.stringify([run, key, range]);
}

function ended() {
  return new DOMException("nobody waits for it any more", "AbortError");
}

