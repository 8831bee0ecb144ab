// The points of a chart as CSV. Numbers are written as the collector sent them, digit by digit: an int beyond 2^53 and the
// shortest form of a float come out as they went in, which no number of JavaScript would keep.

import { url } from "../core/api.js";
import { exact } from "./readout.js";

const PAGE = 200_000; // points
const FIELDS = ["step", "value", "time_ns", "rank", "stream"];
const HEAD = ["run", "name", "key", "step", "time_ns", "rank", "attempt", "value"];
const BUCKETS = ["run", "name", "key", "x", "last_x", "points", "nans", "infs", "neg_infs", "min", "max", "last"];
const FORMULA = /^[=+\-@\t\r]/; // what spreadsheets run, in texts

/** Return all points of the runs that the chart shows, of every attempt and rank, in the order of the API, as a Blob. */
export async function allPoints(board, chart) {
  const parts = [`${HEAD.join(",")}\r\n`];
  for (const run of board.shownRuns(chart.key)) {
    const start = [run, board.nameOf(run), chart.key].map(cell).join(",");
    let after = "";
    for (;;) {
      const page = await pageOf(run, chart.key, board.side || null, after);
      const lines = page.step.map(
        (step, i) =>
          `${start},${step},${page.time_ns[i]},${page.rank[i] === "null" ? "" : page.rank[i]},` +
          `${page.attempts[Number(page.stream[i])]},${valueCell(page.value[i])}\r\n`,
      );
      parts.push(lines.join(""));
      if (page.isAll) break;
      after = page.next;
    }
  }
  return new Blob(parts, { type: "text/csv" });
}

/** Return what is drawn: the buckets of each curve in the visible range, a single point where a bucket is one. */
export function visiblePoints(board, chart) {
  const { shown } = chart;
  const lines = [BUCKETS.join(",")];
  for (const { run, curve, x, from, to } of shown.curves) {
    const start = [run, board.nameOf(run), chart.key].map(cell).join(",");
    for (let i = from; i < to; i++) {
      if (x[i] < shown.x[0] || x[i] > shown.x[1]) continue;
      const ends = shown.kind === "step" || shown.kind === "key" ? [curve.x[i], curve.endX[i]] : [x[i], x[i]];
      const numbers = [...ends, curve.count[i], curve.nans[i], curve.infs[i], curve.negInfs[i]];
      const values = [curve.min[i], curve.max[i], curve.last[i]].map(odd);
      lines.push(`${start},${numbers.join(",")},${values.join(",")}`);
    }
  }
  return new Blob([lines.join("\r\n"), "\r\n"], { type: "text/csv" });
}

/** Return one page of a series with its numbers as texts. */
async function pageOf(run, key, side, after) {
  const answer = await fetch(url("run/series", { run, key, side, after, limit: PAGE, field: FIELDS }));
  const text = await answer.text();
  const parsed = JSON.parse(text);
  if (!answer.ok) throw new Error(parsed.message);
  return {
    ...Object.fromEntries(FIELDS.map((name) => [name, exactColumn(text, name)])),
    attempts: parsed.streams.map((each) => each.attempt),
    next: parsed.next,
    isAll: parsed.is_all,
  };
}

/**
 * Return the elements of one array of an object of JSON as the texts that they are there. The object's own strings cannot
 * be taken for it: in them quotes are escaped.
 */
export function exactColumn(json, name) {
  const mark = `"${name}":[`;
  let at = json.indexOf(mark);
  if (at < 0) return [];
  at += mark.length;
  const element = /"(?:[^"\\]|\\.)*"|[^,\]"]+/y;
  const found = [];
  while (json[at] !== "]") {
    element.lastIndex = at;
    found.push(element.exec(json)[0]);
    at = element.lastIndex;
    if (json[at] === ",") at += 1;
  }
  return found;
}

/** Return a value of JSON as a cell: numbers as they are, texts (also "nan" and "inf") without quotes of JSON. */
function valueCell(json) {
  return json.startsWith('"') ? cell(JSON.parse(json)) : json;
}

function odd(number) {
  return { NaN: "nan", "+inf": "inf", "-inf": "-inf" }[exact(number)] ?? exact(number);
}

/** Return a text as a cell: quoted where it has to be, and no formula. */
function cell(text) {
  const safe = FORMULA.test(text) && !/^-inf$/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
