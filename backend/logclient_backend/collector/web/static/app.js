// The page: its header, and the view that the address names. Views are loaded when they are opened.
//
// A view is a module with `open(root, address)`, which shows it in `root` and returns `{update(address), close()}`. `update`
// is called when the address changes within the view, `close` when another view takes its place: it ends requests and timers.

import * as address from "./core/address.js";
import { onUnauthorized } from "./core/api.js";
import { fill, h } from "./core/dom.js";
import { closeErrors, show, showError } from "./core/messages.js";
import * as session from "./core/session.js";
import * as theme from "./core/theme.js";
import * as login from "./views/login.js";

const VIEWS = {
  runs: () => import("./views/runs.js"),
  charts: () => import("./views/charts.js"),
  run: () => import("./views/run.js"),
  compare: () => import("./views/compare.js"),
};
const root = document.getElementById("main");
let shown = { name: "", view: null };

function nameOf(now) {
  return now.path[0] in VIEWS ? now.path[0] : "runs";
}

async function route(now) {
  const name = nameOf(now);
  const key = name === "run" ? now.path.slice(0, 2).join("/") : name;
  if (shown.name === key && shown.view) {
    shown.view.update(now);
    return;
  }
  close();
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

function close() {
  shown.view?.close();
  if (shown.view) closeErrors();
}

function leave() {
  close();
  shown = { name: "", view: null };
}

function header() {
  const other = () => `Change to the ${theme.current() === "dark" ? "light" : "dark"} theme`;
  const button = h("button", { onclick: theme.toggle, "aria-label": other() }, "◐");
  theme.watch(() => button.setAttribute("aria-label", other()));
  const who = h("span", { class: "who" });
  const logout = h("button", { onclick: () => session.logout().then(() => ask(), showError), hidden: true }, "Log out");
  session.watch(() => {
    const { name, roles, ends_ns } = session.current();
    who.textContent = name && `${name} (${roles.includes("admin") ? "admin" : roles.join(", ")})`;
    logout.hidden = !ends_ns; // without a login there is nothing to end
  });
  fill(
    document.getElementById("header"),
    h("a", { class: "brand", href: address.link(["runs"]) }, "logclient"),
    h("nav", { "aria-label": "Views" }, h("a", { href: address.link(["runs"]), "aria-current": "page" }, "Runs")),
    h("div", { class: "right" }, who, logout, h("a", { href: "docs" }, "API"), button),
  );
}

/** Show the login instead of the view; the view comes back where it was, since the address has it. */
function ask(hasEnded = false) {
  if (shown.name === "login") return;
  leave();
  shown.name = "login";
  const done = () => {
    shown.name = "";
    route(address.current());
  };
  root.classList.remove("full");
  login.open(root, done, hasEnded);
}

function watched(now) {
  if (shown.name !== "login") route(now);
}

async function start() {
  VIEWS[nameOf(address.current())]().catch(() => {}); // its files come meanwhile; `route` reports what is wrong
  const { path, params } = address.current();
  const code = path[0] === "login" ? params.get("code") : null;
  if (path[0] === "login") history.replaceState(null, "", address.link(["runs"])); // a code stays in no history
  try {
    if (code) await session.loginByCode(code);
    else await session.load();
  } catch (error) {
    if (code) show(error.message, { isError: true });
    await session.load().catch(showError);
  }
  onUnauthorized(() => ask(Boolean(session.current().name)));
  if (session.current().is_login_needed) ask();
  else route(address.current());
  address.watch(watched);
}

header();
start();
