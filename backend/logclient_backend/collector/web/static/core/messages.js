// Sentences for the user about something that failed, at the lower edge of the page.

import { h } from "./dom.js";

const SHOWN_MS = 12_000;

/** Show an error until it is closed or has been there for a while. The sentence is its `message`. */
export function showError(error) {
  if (error.name === "AbortError") return; // ended by us
  const box = h(
    "div",
    { class: "message" },
    error.message,
    " ",
    h("button", { onclick: () => box.remove(), "aria-label": "Close this message" }, "×"),
  );
  document.getElementById("messages").append(box);
  setTimeout(() => box.remove(), SHOWN_MS);
}
