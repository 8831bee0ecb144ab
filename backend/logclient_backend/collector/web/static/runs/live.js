// Keeps the list of runs up to date while it is in sight: by the collector's stream of changes, or by questions every few
// seconds where there is none (a proxy that holds streams back). Nothing is asked while the page is hidden; when it is
// seen again, one question brings what was missed.

import { get, url } from "../core/api.js";
import * as connection from "../core/connection.js";
import { isLive } from "./columns.js";

const POLL_MS = 4000;
const WHOLE_EVERY = 4; // polls: also runs that changed without sending anything, and whether some are gone
const METRICS_MS = 5000;
const MAX_ROWS = 1000;
const CHECK_MS = 15_000; // a collector that is frozen keeps the stream open
const HELLO_MS = 6000; // a stream that has not begun by then is held back by something

export class Live {
  /** `runs`: the model. */
  constructor(runs) {
    this._runs = runs;
    this._source = null;
    this._cursor = "";
    this._polls = 0;
    this._canStream = "EventSource" in window;
    this._timers = [];
    this._ended = new AbortController();
    const visible = () => (document.hidden ? this._stop() : this._start(true));
    document.addEventListener("visibilitychange", visible, { signal: this._ended.signal });
    this._unwatch = connection.onBack(() => {
      this._stop();
      if (!document.hidden) this._start(true);
    });
    if (!document.hidden) this._start(false);
  }

  close() {
    this._ended.abort();
    this._unwatch();
    this._stop();
  }

  _start(isCatchUp) {
    this._stop();
    if (isCatchUp) {
      this._runs.reload();
      connection.check();
    }
    if (this._canStream) this._stream();
    else this._timers.push(setInterval(() => this._poll().catch(() => {}), POLL_MS));
    this._timers.push(setInterval(connection.check, CHECK_MS));
    this._timers.push(setInterval(() => this._metrics().catch(() => {}), METRICS_MS));
  }

  _stop() {
    this._source?.close();
    this._source = null;
    for (const timer of this._timers.splice(0)) clearInterval(timer);
  }

  _stream() {
    const source = new EventSource(url("stream", { runs: 1, after: this._cursor || null }));
    this._source = source;
    let hasBegun = false;
    let isFollowed = Boolean(this._cursor); // the list is up to date as of the beginning
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        hasBegun = true;
        connection.answered();
        if (event.lastEventId) this._cursor = event.lastEventId;
        take(JSON.parse(event.data));
      });
    on("hello", ({ at, now_ns }) => {
      this._runs.setClock(now_ns);
      if (!isFollowed) this._runs.streamBegan(at);
      isFollowed = true;
    });
    on("runs", ({ at, now_ns, rows, gone }) => {
      this._runs.setClock(now_ns);
      this._runs.apply(rows, gone, at);
    });
    on("reload", ({ runs }) => runs && this._runs.reload());
    on("end", ({ reason }) => {
      source.close();
      this._cursor = "";
      if (reason !== "stopping") this._runs.reload(); // also shows the login where that has ended
      if (reason === "slow") this._later();
    });
    const giveUp = () => {
      if (hasBegun || this._source !== source) return;
      source.close();
      this._canStream = false;
      this._start(false);
    };
    this._timers.push(setTimeout(giveUp, HELLO_MS));
    source.onerror = () => {
      if (!hasBegun && source.readyState === EventSource.CLOSED)
        giveUp(); // refused: there is no such path
      else if (hasBegun) connection.check();
    };
  }

  _later() {
    this._timers.push(setTimeout(() => this._source && this._stream(), METRICS_MS));
  }

  async _poll() {
    this._polls += 1;
    if (!this._runs.hasLoaded || this._runs.isLoading) return;
    const newest = Math.max(0, ...[...this._runs.byId.values()].map((run) => run.last_seen_ns));
    await this._runs.refresh(["last_seen_ns", ">=", newest], MAX_ROWS);
    if (this._polls % WHOLE_EVERY) return;
    await this._runs.refresh(["state", "=", "running"], MAX_ROWS);
    const { total } = await get("runs", { limit: 1 }, this._ended);
    if (this._runs.isComplete && total !== this._runs.byId.size) await this._runs.reload();
  }

  async _metrics() {
    const live = [...this._runs.byId.values()].filter(isLive).map((run) => run.id);
    await this._runs.refreshMetrics(live);
  }
}
