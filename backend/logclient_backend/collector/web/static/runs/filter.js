// The filter of the runs table: terms that must all hold, as a user types them.
//
//     word                 the name, id, project, group or a tag contains it, in capitals or not
//     -word                it does not
//     state=failed         a field of the run: = != < <= > >=, and ~ for "contains"
//     config.lr<0.01       a setting; config.model.layers is model::layers where there is no such key with a dot
//     loss<0.3             the last value of a metric, if it is no field; last.loss and summary.loss say which
//     "two words"          quotes keep spaces and signs
//
// `parse` gives the test for rows that are here and the conditions for the collector, which knows runs that are not.

import * as columns from "./columns.js";

const QUOTED = '"((?:[^"\\\\]|\\\\.)*)"';
const SIGNS = "!=|<=|>=|=|<|>|~";
const TERM = new RegExp(
  `\\s*(?:([-!])?(?:${QUOTED}|([^\\s"=<>!~]+))(?:\\s*(${SIGNS})\\s*(?:${QUOTED}|([^\\s"]+))?)?|(\\S))`,
  "gy",
);
const UNITS = { s: 1, sec: 1, m: 60, min: 60, h: 3600, d: 86400 };
const NAMES = {
  tag: "tags",
  tags: "tags",
  started: "created",
  age: "seen",
  dropped: "lost",
  active: "duration",
  size: "bytes",
};
const ENDED = new Set(["finished", "failed", "preempted", "killed", "terminated", "replaced"]);
const IN_API = { "~": "contains" };
const SIMPLE = new Set(["name", "project", "group", "id"]);

/** An expression that has no meaning; its message is a sentence for the user. */
class Wrong extends Error {}

/**
 * Parse an expression. `known(part, key)`: is there a setting, summary or metric of that name; part is "config", "summary"
 * or "last". Returns `{test(run, now), conditions, needs, problem, here}`: conditions for the collector, columns whose values
 * it needs, a sentence about what is wrong (""), and the terms that only this page can test.
 */
export function parse(text, known) {
  const found = { tests: [], conditions: [], needs: new Set(), here: [], problem: "" };
  try {
    for (const match of text.matchAll(TERM)) take(found, read(match), known);
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    found.problem = error.message;
  }
  const { tests } = found;
  return { ...found, test: (run, now) => tests.every((test) => test(run, now)) };
}

function read([whole, sign, quoted, bare, op, quotedValue, bareValue, stray]) {
  if (stray === '"') throw new Wrong('A quote is not closed: write "two words".');
  if (stray) throw new Wrong(`Before “${stray}” a name is missing: write config.lr<0.01 or loss<0.3.`);
  const name = quoted === undefined ? bare : unescaped(quoted);
  const value = quotedValue === undefined ? bareValue : unescaped(quotedValue);
  if (op && value === undefined) throw new Wrong(`After “${name}${op}” a value is missing.`);
  return { whole: whole.trim(), isNegated: Boolean(sign), name, op, value, isText: quotedValue !== undefined };
}

function unescaped(text) {
  return text.replace(/\\(.)/g, "$1");
}

function take(found, term, known) {
  if (!term.op) return takeWord(found, term);
  const shown = resolve(term, known);
  if (shown.part) found.needs.add(shown.id);
  const wanted = wantedOf(term, shown);
  const test = testOf(shown, term.op, wanted);
  found.tests.push(term.isNegated ? (run, now) => !test(run, now) : test);
  const condition = term.isNegated ? null : conditionOf(shown, term.op, wanted);
  if (condition) found.conditions.push(condition);
  else found.here.push(term.whole);
}

function takeWord(found, { name, isNegated, whole }) {
  const word = name.toLowerCase();
  found.tests.push((run) => haystack(run).includes(word) !== isNegated);
  if (isNegated) found.here.push(whole);
  else found.conditions.push(["any", "contains", name]);
}

const haystacks = new WeakMap();

function haystack(run) {
  let made = haystacks.get(run);
  if (made === undefined) {
    made = [run.name, run.id, run.project, run.group, ...run.tags].join("\n").toLowerCase();
    haystacks.set(run, made);
  }
  return made;
}

function resolve({ name, whole }, known) {
  const lower = name.toLowerCase();
  const field = columns.column(NAMES[lower] ?? lower);
  if (field && !field.part) return field;
  const [, part, key] = /^(config|summary|last)(?:\.|::)(.+)$/s.exec(name) ?? [];
  if (part) return columns.column(`${part}::${spelled(part, key, known)}`);
  for (const each of ["last", "config", "summary"]) {
    const found = spelled(each, name, known);
    if (known(each, found)) return columns.column(`${each}::${found}`);
  }
  throw new Wrong(
    `There is no field, metric or setting “${name}”. Write config.${name} or last.${name} if only old runs have it, or "${whole}" for a name.`,
  );
}

function spelled(part, key, known) {
  if (known(part, key)) return key;
  const nested = key.replaceAll(".", "::");
  return known(part, nested) ? nested : key;
}

function wantedOf({ name, op, value, isText }, shown) {
  if (op === "~") return value.toLowerCase();
  if (shown.id === "tags" && !["=", "!="].includes(op)) throw new Wrong("Tags are compared with =, != and ~.");
  if (shown.isTime) return time(name, value);
  if (shown.isDuration) return seconds(name, value);
  if (shown.part) return isText ? value : plain(value);
  if (!shown.isNumber) return value;
  const number = Number(value);
  if (isText || Number.isNaN(number)) throw new Wrong(`“${name}” is a number: “${value}” is none.`);
  return number;
}

function plain(value) {
  if (value === "true" || value === "false") return value === "true";
  if (/^[-+]?(inf|nan)$/i.test(value))
    return { nan: NaN, inf: Infinity, "+inf": Infinity, "-inf": -Infinity }[value.toLowerCase()] ?? NaN;
  const number = Number(value);
  return value.trim() !== "" && !Number.isNaN(number) ? number : value;
}

function seconds(name, value) {
  const [, count, unit] = /^(\d+(?:\.\d+)?)([a-z]*)$/.exec(value) ?? [];
  if (count === undefined || (unit && !(unit in UNITS)))
    throw new Wrong(`“${name}” is a duration, such as 90s, 5min, 2h or 3d.`);
  return Number(count) * (UNITS[unit] ?? 1);
}

/** Return a time in ns: of a day, of a minute, or so long before now. */
function time(name, value) {
  const day = /^\d{4}-\d\d-\d\d$/.test(value) ? `${value}T00:00` : value;
  const at = /^\d{4}-/.test(value) ? new Date(day).getTime() : NaN;
  if (!Number.isNaN(at)) return at * 1e6;
  try {
    return (Date.now() - seconds(name, value.replace(/^-/, "")) * 1e3) * 1e6;
  } catch {
    throw new Wrong(`“${name}” is a time: a day such as 2026-11-30, or 2h for two hours ago.`);
  }
}

function testOf(shown, op, wanted) {
  if (op === "~") return (run, now) => texts(shown, run, now).some((each) => each.toLowerCase().includes(wanted));
  if (shown.id === "tags") return (run) => run.tags.includes(wanted) === (op === "=");
  if (shown.id === "state") return (run) => (columns.stateOf(run) === wanted || run.state === wanted) === (op === "=");
  const holds = HOLDS[op];
  return (run, now) => {
    const value = shown.value(run, now);
    if (op === "=" && Number.isNaN(wanted)) return Number.isNaN(value);
    return typeof value === typeof wanted ? holds(value, wanted) : op === "!=";
  };
}

const HOLDS = {
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
};

function texts(shown, run, now) {
  if (shown.id === "tags") return run.tags;
  const value = shown.value(run, now);
  return value === undefined ? [] : [String(value)];
}

/** Return the condition for the collector, which may let more through than the test; null where it has none. */
function conditionOf(shown, op, wanted) {
  const word = IN_API[op] ?? op;
  if (shown.part === "config" || shown.part === "summary") {
    if (op === "~" || (typeof wanted === "number" && !Number.isFinite(wanted))) return null; // it minds capitals
    return [shown.part, shown.key, word, wanted];
  }
  if (shown.id === "tags") return op === "~" ? ["any", "contains", wanted] : ["tag", op, wanted];
  if (shown.id === "state") {
    if (op !== "=") return null;
    return ["state", "=", ENDED.has(wanted) ? wanted : "running"]; // late and lost follow from the clock
  }
  if (shown.id === "created") return ["created_ns", op, wanted];
  if (shown.id === "seen") return ["last_seen_ns", op, wanted];
  if (SIMPLE.has(shown.id)) {
    if (op === "~") return ["any", "contains", wanted];
    return shown.id === "name" ? null : [shown.id, op, wanted]; // a run without a name shows its id
  }
  return null;
}
