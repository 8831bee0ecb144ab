// Groups over all runs of a store that has more of them than are loaded, as the collector counts them (`/groups`): how many
// runs each has, their states, and mean and range of settings and metrics. Asked for when the question changes, and now and
// then while it stays.

import { get } from "../core/api.js";

const BY = ["group", "project"]; // and settings, and the summary; the table's states have verdicts, its names ids
const MAX_COLUMNS = 60; // of one question; the API takes 64
const WAIT_MS = 300; // while a filter is typed
const AGAIN_MS = 15_000;

export class StoreGroups {
  /** `changed()` is called when groups have come, `failed(error)` where a question failed. */
  constructor({ changed, failed }) {
    this._changed = changed;
    this._failed = failed;
    this._question = "";
    this._answer = null;
    this._timer = 0;
    this._ended = null;
  }

  close() {
    clearTimeout(this._timer);
    this._ended?.abort();
    this._ended = null;
  }

  /**
   * Return `{byId, leftOut}` over the runs for which conditions hold, by a column: rows of the answer by the id that
   * `grouping.js` gives the group. Null where that is not known, or not yet.
   */
  get(by, shown, conditions) {
    if (!BY.includes(by.id) && by.part !== "config" && by.part !== "summary") return this.none();
    const column = shown.filter((each) => each.part && each.isNumber).map((each) => each.id);
    const where = conditions.map((each) => JSON.stringify(each));
    const question = { by: by.id, column: column.slice(0, MAX_COLUMNS), where };
    const text = JSON.stringify(question);
    if (text !== this._question) {
      const isOther = this._answer?.by !== by.id || JSON.stringify(this._answer.where) !== JSON.stringify(where);
      this.close();
      if (isOther) this._answer = null;
      this._question = text;
      this._timer = setTimeout(() => this._ask(question), WAIT_MS);
    }
    return this._answer;
  }

  /** Nothing is asked for now. */
  none() {
    this.close();
    this._question = "";
    this._answer = null;
    return null;
  }

  async _ask(question) {
    this._ended = new AbortController();
    const { signal } = this._ended;
    try {
      if (document.hidden) return;
      const found = await get("groups", question, { signal });
      const byId = new Map(found.groups.map((row) => [idOf(row.value), row]));
      const leftOut = { groups: found.total - found.groups.length, runs: found.left_out_runs };
      this._answer = { by: question.by, where: question.where, byId, leftOut };
      this._changed();
    } catch (error) {
      if (!signal.aborted) this._failed(error);
    } finally {
      if (!signal.aborted) this._timer = setTimeout(() => this._ask(question), AGAIN_MS);
    }
  }
}

/** Return the id of the group of a value; undefined or null: that of the runs without one. */
export function idOf(value) {
  return value === undefined || value === null ? "none" : `${typeof value}${value}`;
}
