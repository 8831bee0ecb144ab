// One key of one run as columns: buckets (ranges of steps with their extremes), where a bucket of width 1 is one step
// itself. New points go into it as the collector would have reduced them. No DOM.

import { toNumber } from "../core/format.js";

const COLUMNS = ["x", "endX", "count", "nans", "infs", "negInfs", "min", "max", "last", "time"];
const FIRST_ROOM = 64;

/**
 * Columns of a curve. `x`: first step of a bucket (or x itself, of another key); `endX`: last x of it; `count`: points;
 * `min`, `max`: of finite points, NaN: none; `time`: s since 1970, of the point `last`. Valid up to `length`.
 */
export class Curve {
  constructor({ run, key, width = 1, room = FIRST_ROOM }) {
    this.run = run;
    this.key = key;
    this.width = width; // steps of a bucket, a power of two
    this.length = 0;
    this.points = 0;
    this.lastStep = -Infinity;
    this.leftOut = 0; // points without a known x
    this.isRising = true; // along x; else buckets are neighbouring steps, in the order in which they are drawn
    this.hasTexts = false;
    this.rank = null; // the only one that is in it; null: all are
    this.at = 0; // position in the collector's store; what came later is not in it
    for (const name of COLUMNS) this[name] = new Float64Array(Math.max(room, FIRST_ROOM));
  }

  /** Return whether each bucket is one point. */
  get isRaw() {
    return this.width === 1 && this.points === this.length;
  }

  /** Return points that are not finite: `{nans, infs, negInfs}`. */
  oddities(from = 0, to = this.length) {
    const found = { nans: 0, infs: 0, negInfs: 0 };
    for (let at = from; at < to; at++) {
      found.nans += this.nans[at];
      found.infs += this.infs[at];
      found.negInfs += this.negInfs[at];
    }
    return found;
  }

  /** Return the position of the last bucket that begins at or before `x`; -1: none. Where x rises only. */
  find(x) {
    return search(this.x, this.length, x);
  }

  /**
   * Add one point that was logged later than all that is in the curve, into its bucket. Returns false where its step lies
   * between buckets that are there: the caller keeps order by loading the curve anew.
   */
  append(step, value, time) {
    const start = Math.floor(step / this.width) * this.width;
    let at = this.length - 1;
    if (at >= 0 && start < this.x[at]) {
      at = this.find(start);
      if (at < 0 || this.x[at] !== start) return false;
    } else if (at < 0 || start > this.x[at]) {
      at = this._open(start);
    }
    this.count[at] += 1;
    this.points += 1;
    const odd = Number.isNaN(value) ? this.nans : value === Infinity ? this.infs : value === -Infinity ? this.negInfs : null;
    if (odd) odd[at] += 1;
    else {
      if (!(value >= this.min[at])) this.min[at] = value;
      if (!(value <= this.max[at])) this.max[at] = value;
    }
    if (step >= this.lastStep || at < this.length - 1) {
      this.last[at] = value;
      this.time[at] = time;
    }
    this.lastStep = Math.max(this.lastStep, step);
    return true;
  }

  /** Join neighbouring buckets, twice as wide each time, until at most `most` are left. */
  coarsen(most) {
    while (this.length > most) {
      this.width *= 2;
      let made = -1;
      for (let at = 0; at < this.length; at++) {
        const start = Math.floor(this.x[at] / this.width) * this.width;
        if (made >= 0 && this.x[made] === start) this._join(made, at);
        else {
          made += 1;
          for (const name of COLUMNS) this[name][made] = this[name][at];
          this.x[made] = start;
        }
        this.endX[made] = start + this.width - 1;
      }
      this.length = made + 1;
    }
  }

  _open(start) {
    if (this.length === this.x.length) {
      for (const name of COLUMNS) {
        const wider = new Float64Array(2 * this.length);
        wider.set(this[name]);
        this[name] = wider;
      }
    }
    const at = this.length++;
    this.x[at] = start;
    this.endX[at] = start + this.width - 1;
    for (const name of ["count", "nans", "infs", "negInfs"]) this[name][at] = 0;
    for (const name of ["min", "max", "last"]) this[name][at] = NaN;
    return at;
  }

  _join(into, from) {
    for (const name of ["count", "nans", "infs", "negInfs"]) this[name][into] += this[name][from];
    if (!(this.min[from] >= this.min[into])) this.min[into] = Number.isNaN(this.min[from]) ? this.min[into] : this.min[from];
    if (!(this.max[from] <= this.max[into])) this.max[into] = Number.isNaN(this.max[from]) ? this.max[into] : this.max[from];
    this.last[into] = this.last[from];
    this.time[into] = this.time[from];
  }
}

/** Return the curve of one element of the answer of `curves`. */
export function fromCurves(row, at) {
  const curve = new Curve({ run: row.run, key: row.key, width: row.width, room: row.start.length });
  const n = (curve.length = row.start.length);
  for (let i = 0; i < n; i++) {
    const last = toNumber(row.last[i]);
    const finite = Number.isFinite(last) ? last : NaN;
    curve.x[i] = row.start[i];
    curve.endX[i] = row.start[i] + row.width - 1;
    curve.last[i] = last;
    curve.count[i] = row.count.length ? row.count[i] : 1;
    curve.nans[i] = row.nans.length ? row.nans[i] : 0;
    curve.infs[i] = row.infs.length ? row.infs[i] : 0;
    curve.negInfs[i] = row.neg_infs.length ? row.neg_infs[i] : 0;
    curve.min[i] = row.min.length ? toNumber(row.min[i]) : finite;
    curve.max[i] = row.max.length ? toNumber(row.max[i]) : finite;
    curve.time[i] = row.time_ns[i] / 1e9;
  }
  curve.points = row.points;
  curve.lastStep = n ? row.last_step : -Infinity;
  curve.hasTexts = row.leaves_out_texts;
  curve.rank = row.rank;
  curve.at = at;
  return curve;
}

/** Return the curve of an answer of `run/xy`: x is another key's last known value. */
export function fromXy(row) {
  const n = row.x.length;
  const curve = new Curve({ run: row.run, key: row.y_key, width: row.step_width, room: n });
  curve.length = n;
  for (let i = 0; i < n; i++) {
    curve.x[i] = row.x[i];
    curve.endX[i] = row.last_x[i];
    curve.last[i] = toNumber(row.last[i]);
    curve.min[i] = toNumber(row.min[i]);
    curve.max[i] = toNumber(row.max[i]);
    for (const [name, field] of [["count", "count"], ["nans", "nans"], ["infs", "infs"], ["negInfs", "neg_infs"]]) {
      curve[name][i] = row[field][i];
    }
    curve.time[i] = NaN;
  }
  curve.points = row.points;
  curve.leftOut = row.left_out;
  curve.isRising = row.is_rising;
  curve.hasTexts = row.leaves_out_texts;
  return curve;
}

/** Return the index of the last of `length` rising numbers that is at most `x`; -1: none. */
export function search(numbers, length, x) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
