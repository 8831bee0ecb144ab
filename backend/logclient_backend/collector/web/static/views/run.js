// The page of one run: what it is, how it goes, and a tab for each side of it.
//
// The description of the run is asked for again every few seconds while the run lasts and the page is visible, and when somebody
// comes back to the page; tabs that show it receive it by `show(run)`. A tab is a module of `run/` with `open(root, {id, run, address})`, which returns
// `{show(run), update(address), close()}`.

import * as address from "../core/address.js";
import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { showError } from "../core/messages.js";
import * as head from "../run/head.js";

const TABS = {
  overview: ["Overview", () => import("../run/overview.js")],
  charts: ["Charts", () => import("../run/charts.js")],
  media: ["Media", () => import("../run/media.js")],
  files: ["Files", () => import("../run/files.js")],
  system: ["System", () => import("../run/system.js")],
  console: ["Console", () => import("../run/console.js")],
  witness: ["Witness", () => import("../run/witness.js")],
  health: ["Logging", () => import("../run/health.js")],
};
const FIRST = "overview";
const EVERY_MS = 3_000;

/** Show the page in `root`. */
export function open(root, now) {
  const id = now.path[1] ?? "";
  const ended = new AbortController();
  const top = h("div", {});
  const tabs = h("nav", { class: "tabs", "aria-label": "Parts of this run" });
  const body = h("div", { class: "tab" });
  let run = null;
  let shown = { name: "", tab: null };
  let timer = 0;
  let isAsking = false;
  fill(root, top, tabs, body);

  async function load() {
    run = await get("run", { run: id }, ended);
    document.title = `${run.name || run.id} · logclient`;
    head.show(top, run, load);
    shown.tab?.show?.(run);
  }

  async function openTab(name) {
    shown.tab?.close?.();
    shown = { name, tab: null };
    const module = await TABS[name][1]();
    if (shown.name !== name || ended.signal.aborted) return;
    shown.tab = module.open(fill(body), { id, run, address: address.current() });
  }

  function update(where) {
    const name = where.path[2] in TABS ? where.path[2] : FIRST;
    showTabs(tabs, id, name);
    if (!run) return;
    if (shown.name === name) shown.tab?.update?.(where);
    else openTab(name).catch(showError);
  }

  /** Ask again; `isSeen`: somebody comes back to the page, and a run that is over may have been renamed meanwhile. */
  async function again({ isSeen = false } = {}) {
    if (isAsking) return;
    clearTimeout(timer);
    if (ended.signal.aborted || document.hidden || !run || !(isSeen || isLive(run))) return;
    isAsking = true;
    try {
      await load();
    } catch (error) {
      if (error.status === 404) showError(error);
    } finally {
      isAsking = false;
    }
    timer = setTimeout(again, EVERY_MS);
  }

  const wake = () => again({ isSeen: true });
  document.addEventListener("visibilitychange", wake, { signal: ended.signal });
  window.addEventListener("focus", wake, { signal: ended.signal });
  load()
    .then(() => update(address.current()))
    .then(() => (timer = setTimeout(again, EVERY_MS)))
    .catch((error) => {
      if (!ended.signal.aborted) fill(top, h("p", { class: "error", role: "alert" }, error.message));
    });
  return {
    update,
    close() {
      ended.abort();
      clearTimeout(timer);
      shown.tab?.close?.();
      document.title = "logclient";
    },
  };
}

/** Does the collector expect more of this run? */
export function isLive(run) {
  return run !== null && ["running", "late"].includes(run.state);
}

function showTabs(nav, id, current) {
  const links = Object.entries(TABS).map(([name, [title]]) =>
    h("a", { href: address.link(["run", id, name]), "aria-current": name === current ? "page" : null }, title),
  );
  fill(nav, links);
}
