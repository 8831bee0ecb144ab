// All media values of some runs: a panel for each key, loaded when it comes into view.

import * as address from "../core/address.js";
import { fill, h } from "../core/dom.js";
import { showError } from "../core/messages.js";
import { keysOf } from "./loader.js";
import { panel } from "./panel.js";

/** Show the gallery in `root`. `runs`: `[{id, name}]`. Its parameters: `media` (part of a key), `step`. */
export function open(root, runs) {
  const ended = new AbortController();
  const find = h("input", { type: "search", placeholder: "Filter keys", "aria-label": "Filter keys", value: address.current().params.get("media") ?? "" });
  const list = h("div", { class: "gallery" });
  let panels = new Map();
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) panels.get(entry.target.dataset.key)?.load();
  });
  fill(root, h("div", { class: "tool-bar" }, find), list);

  async function load() {
    const keys = [...new Set((await Promise.all(runs.map((run) => keysOf(run.id, ended)))).flat())].sort();
    if (!keys.length) {
      fill(root, h("p", { class: "dim" }, "No images, tables or other media were logged: run.log(step, {\"sample\": logclient.Image(array)})"));
      return;
    }
    const given = address.current().params.get("step");
    const step = given === null ? null : Number(given);
    panels = new Map(keys.map((key) => [key, panel(key, runs, step, (now) => address.change({ step: now }))]));
    for (const [key, each] of panels) {
      each.element.dataset.key = key;
      list.append(each.element);
      seen.observe(each.element);
    }
    filter();
  }

  function filter() {
    const wanted = find.value.toLowerCase();
    for (const [key, each] of panels) each.element.hidden = !key.toLowerCase().includes(wanted);
  }

  find.addEventListener("input", () => {
    address.change({ media: find.value || null });
    filter();
  });
  load().catch((error) => ended.signal.aborted || showError(error));
  return {
    close() {
      ended.abort();
      seen.disconnect();
      for (const each of panels.values()) each.close();
    },
  };
}
