// From runs to the rows of the table: filtered, sorted, and put into groups.

import { compare, stateOf } from "./columns.js";
import { idOf } from "./store_groups.js";

/** Return the runs that a test lets through, sorted by a column; runs without a value come last, whichever way. */
export function sorted(runs, test, column, order, now) {
  const found = [];
  for (const run of runs) if (test(run, now)) found.push({ run, value: column.value(run, now) });
  const way = order === "asc" ? 1 : -1;
  found.sort((a, b) => {
    if (a.value === undefined || b.value === undefined)
      return (a.value === undefined) - (b.value === undefined) || newest(a.run, b.run);
    return way * compare(a.value, b.value) || newest(a.run, b.run);
  });
  return found.map((each) => each.run);
}

function newest(one, other) {
  return other.created_ns - one.created_ns || (one.id < other.id ? -1 : 1);
}

/** Return the rows of runs without groups. */
export function flat(runs) {
  return runs.map((run) => ({ key: `r${run.id}`, same: run, run }));
}

/**
 * Return the rows of runs in groups by a column; tags: a run is in the group of each of its tags. Groups are in the order
 * of their first run, runs without a value last. `folded`: the labels of the groups whose runs are not shown. `whole`: rows
 * of `store_groups.js` by id where not all runs are loaded; groups of which none is loaded follow.
 */
export function grouped(runs, column, folded, now, whole = new Map()) {
  const groups = new Map();
  for (const run of runs) {
    for (const value of valuesOf(column, run, now)) {
      const id = idOf(value);
      const known = groups.get(id);
      if (known) known.runs.push(run);
      else groups.set(id, { id, value, runs: [run] });
    }
  }
  for (const [id, { value }] of whole)
    if (!groups.has(id)) groups.set(id, { id, value: value ?? undefined, runs: [] });
  const ordered = [...groups.values()].sort((a, b) => (a.value === undefined) - (b.value === undefined));
  return ordered.flatMap((each) => rows(each, column, folded, now, whole.get(each.id)));
}

function rows({ id, value, runs }, column, folded, now, all) {
  const isOpen = !folded.has(id);
  const label =
    value === undefined
      ? `no ${column.label.toLowerCase()}`
      : `${column.part ? `${column.label} = ` : ""}${String(value)}`;
  const isPart = all && all.runs > runs.length;
  const figures = (shown) => {
    if (!shown.isNumber || shown.isTime) return null;
    if (!isPart) return figuresOf(runs, shown, now);
    return all.columns[shown.id]?.runs ? all.columns[shown.id] : null;
  };
  const states = isPart ? textOf(Object.entries(all.states)) : statesOf(runs);
  const group = { id, value, label, isOpen, count: isPart ? all.runs : runs.length, states, figures, runs };
  const members = isOpen ? runs.map((run) => ({ key: `g${id}\n${run.id}`, same: run, run, isMember: true })) : [];
  return [{ key: `g${id}`, same: group, group }, ...members];
}

function valuesOf(column, run, now) {
  if (column.id === "tags") return run.tags.length ? run.tags : [undefined];
  return [column.value(run, now)];
}

/** Return {mean, min, max, runs} over the finite numbers of a column; null where there is none. */
function figuresOf(runs, column, now) {
  const found = [];
  for (const run of runs) {
    const value = column.value(run, now);
    if (typeof value === "number" && Number.isFinite(value)) found.push(value);
  }
  if (!found.length) return null;
  let [sum, min, max] = [0, Infinity, -Infinity];
  for (const value of found) {
    sum += value;
    if (value < min) min = value;
    if (value > max) max = value;
  }
  return { mean: sum / found.length, min, max, runs: found.length };
}

function statesOf(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(stateOf(run), (counts.get(stateOf(run)) ?? 0) + 1);
  return textOf([...counts]);
}

function textOf(counts) {
  return counts.map(([state, count]) => `${count} ${state}`).join(", ");
}
