// Events and gaps of runs, and where they lie along x: alerts, stalls, attempts that began again, texts that a run logged as
// events, and records that were dropped.

import { get } from "../core/api.js";
import { search } from "./curve.js";

/** Keys of texts whose points are events: `event`, `events/…`, `checkpoint`, `checkpoints/…`, in any section. */
const EVENT_KEY = /(^|\/)(events?|checkpoints?)(\/|$)/i;
const MOST_TEXTS = 200; // of one key

/** Return `{events, gaps}` of a run. `info`: the answer of `run`; `textKeys`: its keys of texts alone. */
export async function loadMarks(info, textKeys, side, signal) {
  const run = info.id;
  const found = await get("run/marks", { run, side }, { signal });
  const events = [];
  for (const { attempt, first } of found.attempts) {
    if (attempt > 1) events.push({ run, kind: "restart", text: `attempt ${attempt} begins`, ...first });
  }
  for (const alert of info.more?.alerts ?? []) {
    const text = [alert.title, alert.text].filter(Boolean).join(": ");
    const rank = alert.rank === undefined ? "" : ` (rank ${alert.rank})`;
    events.push({ run, kind: alert.level || "info", text: `alert: ${text}${rank}`, time_ns: alert.time });
  }
  for (const stall of info.more?.stalls ?? []) {
    if (stall.since_ns) events.push({ run, kind: "warning", text: `stalled: ${stall.verdict ?? ""}`, time_ns: stall.since_ns });
  }
  for (const key of textKeys.filter((each) => EVENT_KEY.test(each))) {
    const asked = { run, key, side, limit: MOST_TEXTS, field: ["step", "value", "time_ns"] };
    const page = await get("run/series", asked, { signal });
    page.step.forEach((step, i) => {
      if (typeof page.value[i] === "string") {
        events.push({ run, kind: "event", text: `${key}: ${page.value[i]}`, step, time_ns: page.time_ns[i] });
      }
    });
  }
  return { events, gaps: found.gaps.map((gap) => ({ run, ...gap })), leftOut: found.left_out_gaps };
}

/**
 * Return x of a place `{step, time_ns}`, one of which may be missing; NaN: not known. `laid`: a curve of the run with its x
 * (`layers.js`), which relates steps and times.
 */
export function placeOf(place, kind, startS, laid) {
  const timeS = place.time_ns ? place.time_ns / 1e9 : NaN;
  if (kind === "time") return timeS;
  if (kind === "relative") return timeS - startS;
  if (kind !== "step") return NaN;
  if (place.step !== undefined) return place.step;
  if (!laid || !laid.curve.length) return NaN;
  const at = search(laid.curve.time, laid.curve.length, timeS);
  return at < 0 ? laid.curve.x[0] : laid.curve.endX[at];
}

/** Return gaps in x: `{from, to, text}`. One at the end of a run has its edge where its last record lies. */
export function gapsInX(gaps, kind, startS) {
  const made = [];
  for (const gap of gaps) {
    const [before, after] = [gap.before ?? gap.after, gap.after ?? gap.before];
    if (!before) continue;
    const ends = [placeOf(before, kind, startS), placeOf(after, kind, startS)];
    if (!ends.every(Number.isFinite)) continue;
    const text = `${gap.count.toLocaleString("en")} records ${WORDS[gap.cause] ?? gap.cause}`;
    made.push({ from: Math.min(...ends), to: Math.max(...ends), count: gap.count, text });
  }
  return made;
}

const WORDS = {
  forgotten: "dropped: overwritten before they were stored",
  damaged: "damaged",
  trimmed: "removed from the node's disk before they were sent",
};
