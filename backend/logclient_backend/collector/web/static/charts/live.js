// New points of runs that go on: one stream of server-sent events for all charts of the page, and questions every few
// seconds where streams do not come through.
//
// An event holds for a curve only if its position lies behind that of the curve (`Curve.at`); so the stream may begin too
// early, and nothing is counted twice. Nothing is asked while the page is hidden; when it is seen again, the stream goes on
// where it was.

import { get, url } from "../core/api.js";
import * as connection from "../core/connection.js";
import { toNumber } from "../core/format.js";
import { fromCurves } from "./curve.js";

const SETTLE_MS = 300; // charts that scroll by change nothing
const FIRST_MS = 8_000; // until `hello`: a proxy that holds events back is as good as none
const POLL_MS = 5_000;
const AGAIN_MS = 1_000; // after the collector has ended a stream
const CHECK_MS = 15_000; // a network that is cut, or a collector that is frozen, leaves the stream open
const MAX_SERIES = 4_000; // of one stream
const MAX_NAMES = 200; // runs, and keys

export class Live {
  /**
   * `wanted()`: `{runs, keys}` of now, of runs that go on. Calls `onPoints(run, key, point)`, with `{at, attempt, rank, steps,
   * values, times}`; `onReload(run, key)`; `onKeys(run, names)`; `onStatus(text)`: empty, or why nothing comes;
   * `allRanks()`: are all ranks shown; `side`: see `Board`; `lastSteps(key)`: run -> step up to which a curve is known,
   * for questions instead of the stream.
   */
  constructor(calls) {
    Object.assign(this, calls);
    this._from = null; // {at, cursor}: where the stream has to begin
    this._timer = 0;
    this._source = null;
    this._subscribed = "";
    this._isPolling = false;
    this._rounds = 0; // of polling, begun so far
    const check = () => this._source && !document.hidden && connection.check();
    this._checker = setInterval(check, CHECK_MS);
    this._ended = new AbortController();
    const { signal } = this._ended;
    addEventListener("offline", check, { signal });
    const visible = () => (document.hidden ? this._stop() : this.settle());
    document.addEventListener("visibilitychange", visible, { signal });
    this._unwatch = connection.onBack(() => this._again());
  }

  /** Note that curves were loaded up to this position, and what is wanted may have changed. */
  loaded(position) {
    if (!this._from || position.at < this._from.at) {
      this._from = position;
      this._subscribed = ""; // what came since went into the curves that these replace: it has to come again
    }
    this.settle();
  }

  /** Subscribe to what is wanted now, once it has not changed for a moment. */
  settle() {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._open(), SETTLE_MS);
  }

  close() {
    clearInterval(this._checker);
    this._ended.abort();
    this._unwatch();
    this._stop();
  }

  _stop() {
    clearTimeout(this._timer);
    this._isPolling = false;
    this._end();
  }

  /** The collector answers again: nothing may ever come by the stream that there was. */
  _again() {
    if (!this._source) return;
    this._end();
    this._open();
  }

  _end() {
    clearTimeout(this._patience);
    this._source?.close();
    this._source = null;
    this._subscribed = "";
  }

  _open() {
    if (document.hidden) return;
    const wanted = this.wanted();
    const runs = wanted.runs.slice(0, MAX_NAMES);
    const keys = wanted.keys.slice(0, MAX_NAMES);
    if (!runs.length || !keys.length || !this._from) {
      this._end();
      this._isPolling = false;
      this.onStatus("");
      return;
    }
    const chosen = keys.slice(0, Math.floor(MAX_SERIES / runs.length));
    if (this._isPolling) return;
    const name = JSON.stringify([runs, chosen]);
    if (name === this._subscribed && this._source?.readyState !== 2) return;
    this._end();
    this._subscribed = name;
    if (!("EventSource" in window)) {
      this._poll();
      return;
    }
    const source = new EventSource(url("stream", { run: runs, [this.side ? "system_key" : "key"]: chosen, after: this._from.cursor }));
    this._source = source;
    this._listen(source, runs, chosen);
    this._patience = setTimeout(() => this._poll(), FIRST_MS);
  }

  _listen(source, runs, keys) {
    const on = (name, handle) =>
      source.addEventListener(name, (event) => {
        if (source !== this._source) return;
        const data = event.data ? JSON.parse(event.data) : {};
        if (event.lastEventId) this._from = { at: data.at ?? this._from.at, cursor: event.lastEventId };
        handle(data);
      });
    on("hello", () => {
      clearTimeout(this._patience);
      this.onStatus("");
    });
    on("points", (data) => {
      for (const [at, series, attempt, rank, steps, offsets, values] of data.groups) {
        const times = offsets.map((offset) => (data.time_ns + offset) / 1e9);
        series.forEach((number, i) => {
          const [run, key] = pair(number, runs, keys);
          this.onPoints(run, key, { at, attempt, rank, steps, times, values: values[i].map(toNumber) });
        });
      }
    });
    on("reload", (data) => {
      for (const number of data.series) this.onReload(...pair(number, runs, keys));
    });
    on("keys", (data) => {
      for (const [index, key, isSystem] of data.keys) if (isSystem === Boolean(this.side)) this.onKeys(runs[index], [key]);
    });
    on("end", (data) => {
      this._end();
      if (data.reason === "unauthorized") {
        this.onStatus(data.message);
        get("info", {}).catch(() => {}); // shows the login
      } else {
        this._timer = setTimeout(() => this._open(), AGAIN_MS);
      }
    });
    source.onerror = () => {
      if (source !== this._source) return;
      this.onStatus("no connection to the collector: trying again");
      if (source.readyState === 2) {
        // refused: the browser does not try again by itself
        this._end();
        this._poll();
      }
    };
  }

  /** Ask every few seconds for what follows the last known step of each curve. */
  async _poll() {
    this._end();
    if (this._isPolling) return;
    this._isPolling = true;
    const round = (this._rounds += 1);
    while (this._isPolling && round === this._rounds) {
      const { runs, keys } = this.wanted();
      try {
        for (const key of keys) await this._askAfter(runs, key);
        this.onStatus("");
      } catch (error) {
        this.onStatus(error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      if (!this._isPolling || round !== this._rounds) return;
      if (!this.wanted().runs.length) this._isPolling = false;
    }
  }

  async _askAfter(runs, key) {
    const known = this.lastSteps(key);
    const asked = { key, side: this.side || null, most: 2000, ranks: this.allRanks() ? "all" : "main" };
    for (const run of runs) {
      if (!known.has(run)) continue;
      const answer = await get("curves", { ...asked, run, first_step: known.get(run) + 1 });
      for (const row of answer.curves) {
        const curve = fromCurves(row, answer.at);
        const steps = Array.from(curve.x.subarray(0, curve.length));
        if (!steps.length) continue;
        if (curve.width > 1) this.onReload(run, key);
        else {
          const times = Array.from(curve.time.subarray(0, curve.length));
          const values = Array.from(curve.last.subarray(0, curve.length));
          this.onPoints(run, key, { at: answer.at, attempt: null, rank: null, steps, times, values });
        }
      }
    }
  }
}

function pair(number, runs, keys) {
  return [runs[Math.floor(number / keys.length)], keys[number % keys.length]];
}
