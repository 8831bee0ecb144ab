// References to media values of one key of one run, and the bytes behind them.

import { get, url } from "../core/api.js";

const MAX = 20_000; // references of a key that the page keeps: the newest are not among more

/** Return all references of a key by rising step: rows of `GET run/media`. */
export async function references(run, key, ended) {
  const found = [];
  let after = 0;
  do {
    const page = await get("run/media", { run, key, after }, ended);
    found.push(...page.media);
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

/** Return the address of a value that is a page of its own, for a frame without rights. */
export function frame(run, value) {
  return url("run/frame", { run, sha256: value.sha256 });
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
