// Views that a user has given a name: filter, order, groups and columns, kept in this browser. A link holds the same.

import { panel } from "../core/dialog.js";
import { fill, h } from "../core/dom.js";
import { showError } from "../core/messages.js";
import { cut } from "./cells.js";

const KEY = "logclient.views";
const MAX_NAME = 100;

/** Show the views below a button. `now()`: the view as it is, as text; `apply(text)` shows another. */
export function openViews(anchor, now, apply) {
  const name = h("input", {
    placeholder: "Name of this view",
    "aria-label": "Name of this view",
    maxlength: MAX_NAME,
    required: true,
  });
  const list = h("ul", { class: "views" });
  const save = (event) => {
    event.preventDefault();
    const wanted = name.value.trim();
    if (!wanted) return;
    keep([...load().filter((each) => each.name !== wanted), { name: wanted, view: now() }]);
    name.value = "";
    show();
  };
  function show() {
    const found = load();
    fill(
      list,
      found.length
        ? found.map(row)
        : h("li", { class: "dim" }, "None yet. A view is the filter, the order, the groups and the columns."),
    );
  }
  function row(each) {
    const open = () => {
      close();
      apply(each.view);
    };
    const isNow = each.view === now();
    return h(
      "li",
      {},
      h(
        "button",
        { class: "plain label", onclick: open, "aria-current": isNow ? "true" : null },
        h("bdi", {}, cut(each.name, 60)),
      ),
      h(
        "button",
        {
          class: "plain",
          onclick: () => {
            keep(load().filter((one) => one.name !== each.name));
            show();
          },
          "aria-label": `Delete the view ${cut(each.name, 60)}`,
        },
        "×",
      ),
    );
  }
  show();
  const close = panel(anchor, "Saved views", [
    h("h3", {}, "Saved views"),
    list,
    h("form", { class: "row", onsubmit: save }, name, h("button", { class: "main" }, "Save")),
  ]);
}

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return found.filter((each) => typeof each.name === "string" && typeof each.view === "string");
  } catch {
    return []; // written by hand, or by another version
  }
}

function keep(views) {
  try {
    localStorage.setItem(KEY, JSON.stringify(views));
  } catch {
    showError(new Error("This browser keeps no more views: delete one, or keep the link of this page."));
  }
}
