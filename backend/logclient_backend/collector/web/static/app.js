// The page: its header, and the view that the address names. Views are loaded when they are opened.
//
// A view is a module with `open(root, address)`, which shows it in `root` and returns `{update(address), close()}`. `update`
// is called when the address changes within the view, `close` when another view takes its place: it ends requests and timers.

import * as address from "./core/address.js";
import { onUnauthorized } from "./core/api.js";
import { fill, h } from "./core/dom.js";
import { showError } from "./core/messages.js";
import * as theme from "./core/theme.js";
import * as login from "./views/login.js";

const VIEWS = {
  runs: () => import("./views/runs.js"),
  run: () => import("./views/run.js"),
  compare: () => import("./views/compare.js"),
};
const root = document.getElementById("main");
let shown = { name: "", view: null };

async function route(now) {
  const name = now.path[0] in VIEWS ? now.path[0] : "runs";
  const key = name === "run" ? now.path.slice(0, 2).join("/") : name;
  if (shown.name === key && shown.view) {
    shown.view.update(now);
    return;
  }
  shown.view?.close();
  shown = { name: key, view: null };
  try {
    const module = await VIEWS[name]();
    if (shown.name !== key) return; // the user has gone on meanwhile
    shown.view = module.open(fill(root), now);
  } catch (error) {
    shown.name = "";
    showError(error);
  }
}

function leave() {
  shown.view?.close();
  shown = { name: "", view: null };
}

function header() {
  const other = () => `Change to the ${theme.current() === "dark" ? "light" : "dark"} theme`;
  const button = h("button", { onclick: theme.toggle, "aria-label": other() }, "◐");
  theme.watch(() => button.setAttribute("aria-label", other()));
  fill(
    document.getElementById("header"),
    h("a", { class: "brand", href: address.link(["runs"]) }, "logclient"),
    h("nav", { "aria-label": "Views" }, h("a", { href: address.link(["runs"]) }, "Runs")),
    h("div", { class: "right" }, h("a", { href: "docs" }, "API"), button),
  );
}

onUnauthorized(() => {
  if (shown.name === "login") return;
  leave();
  shown.name = "login";
  login.open(root, () => {
    shown.name = "";
    route(address.current());
  });
});
header();
address.watch(route);
route(address.current());
