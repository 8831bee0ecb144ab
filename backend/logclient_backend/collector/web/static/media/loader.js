// References to media values of one key of one run, and the bytes behind them.

import { get, url } from "../core/api.js";

export const MAX = 20_000; // references that the page keeps: the newest are not among more
const ENDS = { "text/plain": "txt", "text/markdown": "md", "image/jpeg": "jpg", "audio/mpeg": "mp3", "application/octet-stream": "bin" };

/** Return `{rows, cursor}`: references by rising step, rows of `GET run/media`. `asked`: of which `key` or `kind` alone, `since` which cursor. */
export async function references(run, asked, ended) {
  const rows = [];
  let cursor = null;
  let after = 0;
  do {
    const page = await get("run/media", { run, ...asked, after }, ended);
    rows.push(...page.media.map((row) => ({ ...row, has_plotly: page.plotly })));
    cursor ??= page.cursor; // of the first page: what comes while others are asked for is behind it
    after = page.next;
  } while (after && rows.length < MAX);
  return { rows, cursor };
}

/** Return `{keys, cursor}`: the keys of the media values of a run, and what is behind the answer. */
export function keysOf(run, ended) {
  return get("run/media", { run, limit: 1 }, ended);
}

/**
 * Return a function that asks for references stored since `cursor`, and gives them to `take(rows)`. Some may have come before: see
 * `merged`. Calls while it asks become one question after it.
 */
export function follower(run, asked, cursor, take, ended) {
  let isAsking = false;
  let isWanted = false;
  return async () => {
    isWanted = true;
    if (isAsking) return;
    isAsking = true;
    try {
      while (isWanted) {
        isWanted = false;
        const found = await references(run, { ...asked, since: cursor }, ended);
        cursor = found.cursor;
        if (found.rows.length) take(found.rows);
      }
    } finally {
      isAsking = false;
    }
  };
}

/** Return the references of both lists by step, each once. */
export function merged(known, found) {
  const byName = new Map(known.map((row) => [nameOf(row), row]));
  for (const row of found) if (!byName.has(nameOf(row))) byName.set(nameOf(row), row);
  return [...byName.values()].sort((a, b) => a.step - b.step || a.time_ns - b.time_ns);
}

function nameOf(row) {
  return JSON.stringify([row.key, row.step, row.time_ns, row.rank, row.sha256]);
}

/** Return the address of the bytes of a value. */
export function address(run, value) {
  return url("run/blob", { run, sha256: value.sha256, mime: value.mime });
}

/** Return the address of the bytes of a value as a file to be kept, under its name. */
export function download(run, value) {
  return url("run/blob", { run, sha256: value.sha256, name: fileName(value) });
}

/** Return the name of a value as a file: as it was logged, else made of key and step. */
export function fileName(value) {
  if (value.fields.name) return value.fields.name;
  const end = ENDS[value.mime] ?? (value.mime.startsWith("image/svg") ? "svg" : /^[a-z]+\/([a-z0-9]+)$/.exec(value.mime)?.[1]);
  return `${value.key}-${value.step}.${end ?? "bin"}`;
}

/** Return the address of a value as a page for a frame without rights. */
export function frame(run, value) {
  return url("run/frame", { run, sha256: value.sha256, kind: value.kind === "figure" ? "figure" : null });
}

/** Return the text of a value. */
export async function text(run, value, ended) {
  const answer = await fetch(address(run, value), { signal: ended.signal });
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).message), { status: answer.status });
  return answer.text();
}

/** Return the last value at or before a step; the first one where all come later; undefined where there is none. */
export function at(values, step) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle].step <= step) low = middle + 1;
    else high = middle;
  }
  return values[Math.max(0, low - 1)];
}
