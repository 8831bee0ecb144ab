// Who is logged in, and what they may do (`GET /api/v1/session`).

import { get, send } from "./api.js";

const listeners = new Set();
let state = { is_login_needed: false, name: "", roles: [], may: [], ends_ns: 0 };

/** Return the state: `{is_login_needed, name, roles, may, ends_ns}`. */
export function current() {
  return state;
}

/** Return whether the one who is logged in may act in a role: "read", "edit", "control" or "admin". */
export function may(role) {
  return state.may.includes(role);
}

/** Ask who is logged in. */
export async function load() {
  take(await get("session", {}));
}

/** Log in with a token, which is sent once and kept nowhere. */
export async function login(token) {
  take(await send("POST", "session", {}, { headers: { authorization: `Bearer ${token}` } }));
}

/** Log in with a code of `logclient ui`, which counts once. */
export async function loginByCode(code) {
  take(await send("POST", "session", {}, { headers: { "x-logclient-code": code } }));
}

/** Log out: the session is over at the collector, too. */
export async function logout() {
  take(await send("DELETE", "session", {}));
}

/** Call `listener()` when the state has changed. Returns a function that ends this. */
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function take(found) {
  state = found;
  for (const listener of [...listeners]) listener();
}
