// Requests to the API of the collector that served this page (web/app.py); the login's cookie goes with them.
//
// Paths are relative to the page, which may stand below any path of a proxy. A request that changes something has a header
// that no form of another site can send.

import * as connection from "./connection.js";

const BASE = new URL("api/v1/", document.baseURI.replace(/#.*/, ""));
const DEADLINE_MS = 30_000;

/** An answer that is an error: `status` (0: no answer), `reason` (a word), `message` (a sentence for people). */
export class ApiError extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** Ask: `get("run/keys", {run, limit: 100})`; a parameter may be a list. `signal` ends the question early. */
export function get(path, params, { signal } = {}) {
  return ask("GET", path, params, { signal });
}

/** Change something: method POST or DELETE; `headers` and `body` (JSON) where the path takes them. */
export function send(method, path, params, { headers = {}, body, signal } = {}) {
  const more = body === undefined ? {} : { "content-type": "application/json" };
  return ask(method, path, params, { headers: { "x-logclient": "1", ...more, ...headers }, body, signal });
}

/** Return the address of a path of the API, for images and downloads. */
export function url(path, params = {}) {
  const made = new URL(path, BASE);
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined) continue;
    for (const each of Array.isArray(value) ? value : [value]) made.searchParams.append(name, each);
  }
  return made.href;
}

let unauthorized = () => {};

/** Set what is called when the login has ended, or there is none. */
export function onUnauthorized(listener) {
  unauthorized = listener;
}

async function ask(method, path, params, { headers = {}, body, signal } = {}) {
  const deadline = AbortSignal.timeout(DEADLINE_MS);
  const signals = signal ? AbortSignal.any([signal, deadline]) : deadline;
  const content = body === undefined ? undefined : JSON.stringify(body);
  const contact = connection.begin();
  let answer;
  try {
    answer = await fetch(url(path, params), { method, headers, body: content, signal: signals });
    const isFromProxy =
      [502, 503, 504].includes(answer.status) && !answer.headers.get("content-type")?.includes("json");
    (isFromProxy ? contact.failed : contact.answered)();
    if (answer.ok) return await answer.json();
  } catch (error) {
    if (signal?.aborted) {
      contact.ended();
      throw error; // the caller ended it
    }
    contact.failed();
    throw new ApiError(0, "unreachable", "The collector does not answer: it is stopped, or the network is cut off.");
  }
  throw await errorOf(answer);
}

connection.probeBy(async () => {
  const { not_ready } = await get("info", {});
  connection.ready(not_ready);
});

async function errorOf(answer) {
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // an error of a proxy, which is no JSON
  }
  if (answer.status === 401) unauthorized();
  const text = told.message ?? `The collector, or a proxy before it, answered ${answer.status}.`;
  return new ApiError(answer.status, told.error ?? "refused", text);
}
