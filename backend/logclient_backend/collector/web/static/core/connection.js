// Whether the collector answers, and takes what is new: a bar at the top while it does not, and a call to whoever shows live
// data when it answers again.
//
// Every request reports here (`begin`). A request without an answer for WAITING_S, or one that failed, is a loss; from then
// on the collector is asked every PROBE_MS while the page is visible, and the first answer ends it.

import { fill, h } from "./dom.js";

const WAITING_S = 8;
const PROBE_MS = 2000;
const TICK_MS = 1000;

const pending = new Map(); // request -> when it began
const listeners = new Set();
let answeredAt = performance.now();
let isLost = false;
let notReady = ""; // why nothing new is taken
let probe = async () => {};
let ticker = 0;
let probedAt = 0;
let isProbing = false;

/** A request begins. Returns `{answered(), failed(), ended()}`: call one of them once. */
export function begin() {
  const key = {};
  pending.set(key, performance.now());
  tick();
  const end = (what) => () => {
    pending.delete(key);
    what();
  };
  return { answered: end(answered), failed: end(lost), ended: end(() => {}) };
}

/** Something came, by a stream for example. */
export function answered() {
  answeredAt = performance.now();
  if (!isLost) return;
  isLost = false;
  show();
  for (const listener of [...listeners]) listener();
}

/** Something failed that only a collector out of reach explains. */
export function lost() {
  if (isLost) return;
  isLost = true;
  probedAt = performance.now();
  show();
  tick();
}

/** Note whether the collector takes what is new: `why` not, empty where it does. It is asked again until it does. */
export function ready(why) {
  if (why === notReady) return;
  notReady = why;
  show();
  tick();
}

/** Ask whether the collector is there: a stream broke off, or has sent nothing for a while. */
export function check() {
  if (!isLost) ask();
}

/** Set how the collector is asked whether it is there. */
export function probeBy(ask) {
  probe = ask;
}

/** Call `listener()` when the collector answers again. Returns a function that ends this. */
export function onBack(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function ask() {
  if (isProbing) return;
  isProbing = true;
  const end = () => (isProbing = false);
  probe().then(end, end); // the request itself reports here
}

function tick() {
  ticker ||= setInterval(() => {
    const now = performance.now();
    const oldest = Math.min(...pending.values());
    if (now - oldest > WAITING_S * 1000 && !document.hidden) lost();
    if (isLost || notReady) {
      show();
      if (!document.hidden && now - probedAt >= PROBE_MS) {
        probedAt = now;
        ask();
      }
    } else if (!pending.size) {
      clearInterval(ticker);
      ticker = 0;
    }
  }, TICK_MS);
}

function show() {
  const bar = document.getElementById("connection");
  bar.hidden = !isLost && !notReady;
  const silent = Math.round((performance.now() - answeredAt) / 1000);
  const lost = `The collector has not answered for ${silent} s. What you see is as it was then; the page goes on by itself when it is back.`;
  const behind = `The collector takes nothing new at this moment: ${notReady}. What is stored is shown.`;
  fill(bar, !bar.hidden && h("span", {}, isLost ? lost : behind));
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (isLost) probedAt = 0; // at once
  for (const key of pending.keys()) pending.set(key, performance.now()); // the computer may have been asleep
});
