// Dialogs and menus: the browser's own <dialog> and popover, which keep the focus and close with Escape.

import { h } from "./dom.js";

/** Show a dialog with a title; returns the element. It is gone when it is closed, and `closed()` is called. */
export function dialog(title, content, { className = "", closed = () => {} } = {}) {
  const made = h(
    "dialog",
    { class: className, "aria-label": title },
    h(
      "header",
      {},
      h("h2", {}, title),
      h("button", { class: "plain", onclick: () => made.close(), "aria-label": "Close" }, "×"),
    ),
    content,
  );
  made.addEventListener("close", () => {
    made.remove();
    closed();
  });
  made.addEventListener("click", (event) => event.target === made && made.close());
  document.body.append(made);
  made.showModal();
  return made;
}

/** Show a small panel below an element; returns a function that closes it. Only one is there at a time. */
export function panel(anchor, label, content) {
  document.querySelector(".panel")?.hidePopover();
  const made = h("div", { class: "panel", popover: "auto", role: "dialog", "aria-label": label }, content);
  document.body.append(made);
  made.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    made.remove();
    anchor.setAttribute("aria-expanded", "false");
  });
  made.showPopover();
  const at = anchor.getBoundingClientRect();
  made.style.top = `${Math.min(at.bottom + 4, innerHeight - made.offsetHeight - 8)}px`;
  made.style.left = `${Math.max(8, Math.min(at.left, innerWidth - made.offsetWidth - 8))}px`;
  anchor.setAttribute("aria-expanded", "true");
  (made.querySelector("input") ?? made.querySelector("button"))?.focus();
  return () => made.isConnected && made.hidePopover();
}
