// References to media values of one key of one run, and the bytes behind them.

import { get, url } from "../core/api.js";

export const MAX = 20_000; // references that the page keeps: the newest are not among more
const ENDS = { "text/plain": "txt", "text/markdown": "md", "image/jpeg": "jpg", "audio/mpeg": "mp3", "application/octet-stream": "bin" };

/** Return references by rising step: rows of `GET run/media`. `asked`: of which `key` or `kind` alone. */
export async function references(run, asked, ended) {
  const found = [];
  let after = 0;
  do {
    const page = await get("run/media", { run, ...asked, after }, ended);
    found.push(...page.media.map((row) => ({ ...row, has_plotly: page.plotly })));
    after = page.next;
  } while (after && found.length < MAX);
  return found;
}

/** Return the keys of the media values of a run. */
export async function keysOf(run, ended) {
  return (await get("run/media", { run, limit: 1 }, ended)).keys;
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
  if (!answer.ok) throw new Error((await answer.json()).message);
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
