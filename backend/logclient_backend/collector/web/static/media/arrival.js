// Bytes of media values that are not at the collector: those of a live run come after the list has them, others were not kept.
//
// Whether they are here is asked for by their hashes, those of a run together, with pauses that grow; never by loading them, since
// each failure of that is an error in the browser's console. Elements that left the page are forgotten.

import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { isLive } from "../runs/columns.js";

const PAUSES_MS = [500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000];
const AFTER_END_S = 120; // in which the agent of a run that is over may still send
const MAX_ASKED = 100; // hashes that the collector takes in one question
const NAMES = { markdown: "text", html: "page", audio: "sound", video: "film" }; // of kinds

const waiting = new Map(); // id of a run -> Waiting

/** Return `{id, name, isLive, mayArrive}` of a description of a run: what the media of a page know of it. */
export function mediaRun(run) {
  const isRecent = run.ended_ns > 0 && run.now_ns - run.ended_ns < AFTER_END_S * 1e9;
  return { id: run.id, name: run.name, isLive: isLive(run), mayArrive: isLive(run) || isRecent };
}

/**
 * Return an element with `make(missing)` if the bytes of a value are here, else with a sentence until they have come. `value`:
 * `{kind, sha256, here}`; `here` undefined: not known. `missing` is to be called where the bytes could not be loaded. `label` stands
 * before the sentence.
 */
export function whenHere(run, value, make, label = "") {
  const box = h("div", {});
  const say = (text) => fill(box, label, h("p", { class: "dim" }, text));
  const over = () => say(`The ${NAMES[value.kind] ?? value.kind} was not kept: it did not come to this collector, or was removed to keep to the budget of its disk.`);
  const put = () => {
    value.here = true;
    fill(box, make(missing));
  };
  const wait = () => {
    say("arriving …");
    if (!waiting.has(run.id)) waiting.set(run.id, new Waiting(run));
    waiting.get(run.id).add({ box, sha256: value.sha256, put, over });
  };
  const missing = async () => {
    try {
      const { here } = await get("run/blobs", { run: run.id, sha256: value.sha256 });
      value.here = here.length > 0;
      if (value.here) say(`This browser cannot show the ${NAMES[value.kind] ?? value.kind}.`);
      else if (run.mayArrive) wait();
      else over();
    } catch (error) {
      if (run.mayArrive) wait();
      else say(error.message);
    }
  };
  if (value.here || (value.here === undefined && !run.mayArrive)) put();
  else if (run.mayArrive) wait();
  else over();
  return box;
}

/** Values of one run whose bytes have not come. */
class Waiting {
  constructor(run) {
    this._run = run;
    this._all = [];
    this._turn = 0;
    this._timer = 0;
    this._wasLive = run.isLive;
  }

  /** `one`: `{box, sha256, put, over}`. It is asked for soon, when `box` is on the page. */
  add(one) {
    this._all.push(one);
    this._turn = 0;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._ask(), 0);
  }

  async _ask() {
    this._all = this._all.filter((one) => one.box.isConnected);
    if (this._wasLive && !this._run.isLive) this._turn = 0; // its agent sends what is left
    this._wasLive = this._run.isLive;
    const isLast = !this._run.isLive && this._turn === PAUSES_MS.length;
    if (!document.hidden) {
      const hashes = [...new Set(this._all.map((one) => one.sha256))].slice(0, MAX_ASKED);
      const here = await this._here(hashes);
      const came = this._all.filter((one) => here.has(one.sha256));
      this._all = this._all.filter((one) => !here.has(one.sha256));
      for (const one of came) one.put();
      if (isLast) for (const one of this._all.splice(0)) one.over();
    }
    clearTimeout(this._timer); // one was added meanwhile
    if (!this._all.length) {
      waiting.delete(this._run.id);
      return;
    }
    this._timer = setTimeout(() => this._ask(), PAUSES_MS[Math.min(this._turn, PAUSES_MS.length - 1)]);
    this._turn = Math.min(this._turn + 1, PAUSES_MS.length);
  }

  async _here(hashes) {
    if (!hashes.length) return new Set();
    try {
      return new Set((await get("run/blobs", { run: this._run.id, sha256: hashes })).here);
    } catch {
      return new Set(); // the bar at the top says so; it is asked again
    }
  }
}
