// The login: a token once, then a cookie that no script can read.

import { fill, h } from "../core/dom.js";
import { send } from "../core/api.js";

/** Show the form in `root`; `done` is called when the session has begun. */
export function open(root, done) {
  const token = h("input", { type: "password", autocomplete: "off", "aria-label": "Token", required: true });
  const trouble = h("p", { class: "error", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await send("POST", "session", {}, { headers: { authorization: `Bearer ${token.value.trim()}` } });
    } catch (error) {
      trouble.textContent = error.message;
      return;
    }
    done();
  };
  const form = h(
    "form",
    { class: "login", onsubmit: submit },
    h("h1", {}, "Log in"),
    h("p", { class: "dim" }, "With a token of this collector: logclient server token add NAME --role read"),
    token,
    h("button", { class: "main" }, "Log in"),
    trouble,
  );
  fill(root, form);
  token.focus();
}
