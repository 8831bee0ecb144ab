// The columns of the runs table: what each shows, how it sorts, and how wide it is (`width` px at least; what is left
// is shared by `grow`).
//
// A column has an id, which stands in links: the name of a field, or config::KEY, summary::KEY, last::KEY as the API names
// them. A value that a run does not have is undefined, and such runs come last, whichever way they are sorted.

import * as format from "../core/format.js";

const LOSSES = {
  forgotten: "records overwritten before they were stored",
  damaged: "records damaged",
  refused: "calls refused",
  left_out: "values left out",
};
const GROUPS = { config: "Settings", summary: "Summary", last: "Metrics" };
const LATE_S = 60; // a live run of which nothing came for so long is marked

/**
 * Fields of every run. `value(run, now)` is what filters and sorting compare, `text(run, now)` what is shown; `sort`: the
 * name under which the collector sorts by it.
 */
export const FIELDS = [
  { id: "name", label: "Name", width: 180, grow: 3, sort: "name", value: (run) => run.name || run.id },
  { id: "state", label: "State", width: 130, grow: 3, sort: "state", value: stateOf },
  {
    id: "tags",
    label: "Tags",
    width: 110,
    grow: 2,
    value: (run) => (run.tags.length ? run.tags.join(", ") : undefined),
  },
  { id: "project", label: "Project", width: 90, grow: 1, sort: "project", value: (run) => run.project || undefined },
  { id: "group", label: "Group", width: 96, grow: 1, value: (run) => run.group || undefined },
  {
    id: "created",
    label: "Started",
    width: 96,
    sort: "created_ns",
    value: (run) => run.created_ns || undefined,
    text: (run, now) => format.day(run.created_ns, now),
    isTime: true,
  },
  {
    id: "duration",
    label: "Active",
    width: 92,
    isNumber: true,
    value: durationOf,
    text: (run, now) => brief(durationOf(run, now)),
    isDuration: true,
  },
  {
    id: "seen",
    label: "Last data",
    width: 92,
    isNumber: true,
    sort: "last_seen_ns",
    value: (run) => run.last_seen_ns || undefined,
    text: seenText,
    isTime: true,
  },
  { id: "lost", label: "Dropped", width: 82, isNumber: true, value: lostOf },
  { id: "records", label: "Records", width: 88, isNumber: true, value: (run) => run.records },
  { id: "points", label: "Points", width: 88, isNumber: true, value: (run) => run.points },
  {
    id: "bytes",
    label: "Size",
    width: 84,
    isNumber: true,
    value: (run) => run.bytes,
    text: (run) => format.bytes(run.bytes),
  },
  { id: "attempts", label: "Attempts", width: 84, isNumber: true, value: (run) => run.attempts },
  { id: "reason", label: "Reason", width: 180, grow: 2, value: (run) => run.reason || undefined },
  { id: "id", label: "Id", width: 120, grow: 1, value: (run) => run.id },
];
const BY_ID = new Map(FIELDS.map((field) => [field.id, field]));

/** Columns of somebody who has chosen none; metrics and settings that differ are added (`usual`). */
const FIXED = ["name", "state", "tags", "group", "created", "duration", "seen", "lost"];
const MAX_ADDED = { last: 2, config: 2 };

/** Return the column of an id; null where it is none. */
export function column(id) {
  const field = BY_ID.get(id);
  if (field) return { part: "", key: id, group: "Run", ...field };
  const at = id.indexOf("::");
  const part = id.slice(0, Math.max(0, at));
  if (!(part in GROUPS) || at + 2 === id.length) return null;
  return {
    id,
    part,
    key: id.slice(at + 2),
    label: id.slice(at + 2).replaceAll("::", "."),
    group: GROUPS[part],
    width: 86,
    grow: 1,
    isNumber: true,
    sort: part === "last" ? undefined : id,
    value: (run) => comparable(run.columns?.[id]),
    text: (run) => format.value(run.columns?.[id]),
  };
}

/** Return the columns of these ids; where two have one label, each has its group beside it. */
export function columnsOf(ids) {
  const found = ids.map(column);
  const isTwice = ({ label }) => found.filter((each) => each.label === label).length > 1;
  return found.map((each) => (isTwice(each) ? { ...each, label: `${each.label} (${each.group.toLowerCase()})` } : each));
}

/** Return what a column shows of a run, as text. */
export function text(shown, run, now) {
  if (shown.text) return shown.text(run, now);
  return format.value(shown.value(run, now));
}

/** Return the ids of the columns of somebody who has chosen none. `keys`: the answer of /columns. */
export function usual(keys) {
  const differ = (keys?.config ?? []).filter((each) => !each.is_same || each.runs < keys.runs);
  const first = [...(keys?.last ?? [])].sort((a, b) => b.runs - a.runs);
  const take = (found, part) => found.slice(0, MAX_ADDED[part]).map((each) => `${part}::${each.key}`);
  return [...FIXED, ...take(first, "last"), ...take(differ, "config")];
}

/** Return the state of a run as people name it: that it stands still is a state. */
export function stateOf(run) {
  return run.observed && run.state === "running" ? run.observed.kind : run.state;
}

/** Return the sentence beside the state: the verdict of the observer, or why it ended; "" for none. */
export function whyOf(run) {
  if (run.observed) return [run.observed.verdict, run.observed.text].filter(Boolean).join(": ");
  return run.reason ?? "";
}

/** Return how long a run was active, in seconds; undefined where nothing is known of its start. */
export function durationOf(run, now) {
  if (run.active_ns) return run.active_ns / 1e9;
  if (!run.created_ns) return undefined;
  const end = run.ended_ns || (isLive(run) ? now : run.last_seen_ns);
  return Math.max(0, (end - run.created_ns) / 1e9);
}

/** Return how many records, calls and values of a run were dropped, all in all. */
export function lostOf(run) {
  return Object.keys(LOSSES).reduce((sum, name) => sum + (run.counts?.[name] ?? 0), 0);
}

/** Return what `lostOf` counts, as a sentence. */
export function lossText(run) {
  const parts = Object.entries(LOSSES).filter(([name]) => run.counts?.[name]);
  return parts.map(([name, words]) => `${run.counts[name].toLocaleString("en")} ${words}`).join(", ");
}

/** Return whether a run is not over. */
export function isLive(run) {
  return run.state === "running" || run.state === "late";
}

/** Return whether a live run has sent nothing for longer than is usual. */
export function isBehind(run, now) {
  return isLive(run) && now - run.last_seen_ns > (LATE_S + (run.rest_s ?? 0)) * 1e9;
}

function brief(seconds) {
  const whole = seconds > 600 ? seconds - (seconds % 60) : seconds;
  return seconds === undefined ? "" : format.duration(whole);
}

function seenText(run, now) {
  return run.last_seen_ns ? format.ago(run.last_seen_ns, now) : "";
}

function comparable(value) {
  if (value === undefined || value === null) return undefined;
  if (value === "nan" || value === "inf" || value === "-inf") return format.toNumber(value);
  return typeof value === "object" ? JSON.stringify(value) : value;
}

/** Compare two values of a column: numbers, then texts; NaN after all numbers. Undefined is for the caller to place. */
export function compare(one, other) {
  const ranks = [rank(one), rank(other)];
  if (ranks[0] !== ranks[1]) return ranks[0] - ranks[1];
  return one < other ? -1 : one > other ? 1 : 0;
}

function rank(value) {
  if (typeof value === "number") return Number.isNaN(value) ? 1 : 0;
  return typeof value === "boolean" ? 2 : 3;
}
