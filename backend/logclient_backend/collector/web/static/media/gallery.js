// All media values of some runs: a panel for each key, loaded when it comes into view.

import * as address from "../core/address.js";
import { fill, h } from "../core/dom.js";
import { showError } from "../core/messages.js";
import { follower, keysOf } from "./loader.js";
import { panel } from "./panel.js";

/** Show the gallery in `root`. `runs`: as `mediaRun` (arrival.js) gives them. Its parameters: `media` (part of a key), `step`. */
export function open(root, runs) {
  const ended = new AbortController();
  const find = h("input", { type: "search", placeholder: "Filter keys", "aria-label": "Filter keys", value: address.current().params.get("media") ?? "" });
  const list = h("div", { class: "gallery" });
  const panels = new Map();
  let followers = [];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) panels.get(entry.target.dataset.key)?.load();
  });
  fill(root, h("div", { class: "tool-bar" }, find), list);

  async function load() {
    const found = await Promise.all(runs.map((run) => keysOf(run.id, ended)));
    followers = runs.map((run, index) => follower(run.id, {}, found[index].cursor, (rows) => take(index, rows), ended));
    addPanels(found.flatMap((page) => page.keys));
    if (!panels.size) fill(list, h("p", { class: "dim" }, "No images, tables or other media were logged: run.log(step, {\"sample\": logclient.Image(array)})"));
  }

  function addPanels(keys) {
    const fresh = new Set(keys.filter((key) => !panels.has(key)));
    if (!fresh.size) return;
    const given = address.current().params.get("step");
    const step = given === null ? null : Number(given);
    if (!panels.size) fill(list);
    for (const key of fresh) {
      const made = panel(key, runs, step, (now) => address.change({ step: now }));
      made.element.dataset.key = key;
      panels.set(key, made);
      seen.observe(made.element);
    }
    const sorted = [...panels.keys()].sort();
    sorted.forEach((key, at) => fresh.has(key) && list.insertBefore(panels.get(key).element, list.children[at] ?? null));
    filter();
  }

  function take(index, rows) {
    const byKey = Map.groupBy(rows, (row) => row.key);
    addPanels([...byKey.keys()]);
    for (const [key, some] of byKey) panels.get(key).add(index, some);
  }

  function filter() {
    const wanted = find.value.toLowerCase();
    for (const [key, each] of panels) each.element.hidden = !key.toLowerCase().includes(wanted);
  }

  find.addEventListener("input", () => {
    address.change({ media: find.value || null });
    filter();
  });
  const loading = load().catch((error) => ended.signal.aborted || showError(error));
  return {
    /** Ask for what is new, where a run goes on. */
    async follow() {
      await loading;
      await Promise.all(followers.map((ask) => ask()));
    },
    close() {
      ended.abort();
      seen.disconnect();
      for (const each of panels.values()) each.close();
    },
  };
}
