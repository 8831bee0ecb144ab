// Sentences for the user about something that failed, at the lower edge of the page.

import { h } from "./dom.js";

const SHOWN_MS = 12_000;

/** Show an error until it is closed or has been there for a while. The sentence is its `message`. */
export function showError(error) {
  if (error.name === "AbortError" || error.reason === "unreachable") return; // ended by us; or the bar at the top says it
  if (error.status === 401) return; // the login is shown
  show(error.message, { isError: true });
}

/** Take errors away: the view that they are about has been left. */
export function closeErrors() {
  for (const box of document.querySelectorAll("#messages > .bad")) box.remove();
}

/**
 * Show a sentence. `action`: `[label, work]`, a button with what it does, such as to undo. Returns a function that takes the
 * sentence away.
 */
export function show(text, { action, isError = false } = {}) {
  const [label, work] = action ?? [];
  const act = () => {
    box.remove();
    work();
  };
  const box = h(
    "div",
    { class: isError ? "message bad" : "message" },
    h("span", {}, text),
    action && h("button", { onclick: act }, label),
    h("button", { onclick: () => box.remove(), "aria-label": "Close this message" }, "×"),
  );
  document.getElementById("messages").append(box);
  setTimeout(() => box.remove(), SHOWN_MS);
  return () => box.remove();
}
