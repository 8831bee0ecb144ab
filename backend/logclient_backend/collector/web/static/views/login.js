// The login: a token once, then a cookie that no script can read.

import { fill, h } from "../core/dom.js";
import * as session from "../core/session.js";

/** Show the form in `root`; `done` is called when the session has begun. `hasEnded`: there was one before. */
export function open(root, done, hasEnded) {
  const token = h("input", { type: "password", autocomplete: "off", "aria-label": "Token", required: true });
  const trouble = h("p", { class: "error", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await session.login(token.value.trim());
    } catch (error) {
      trouble.textContent = error.status === 401 ? "This token is not known here, or was revoked." : error.message;
      return;
    }
    done();
  };
  const form = h(
    "form",
    { class: "login", onsubmit: submit },
    h("h1", {}, "Log in"),
    hasEnded &&
      h("p", {}, "Your login has ended: it is too old, or its token was revoked. The page goes on where it was."),
    h("p", { class: "dim" }, "With a token of this collector: logclient server token add NAME --role read --data DIR"),
    token,
    h("button", { class: "main" }, "Log in"),
    trouble,
  );
  fill(root, form);
  token.focus();
}
