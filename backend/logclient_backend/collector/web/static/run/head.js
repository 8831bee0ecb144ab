// The head of a run's page: its name, its state with the reason, and requests to stop or to save.

import { link } from "../core/address.js";
import { send } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { ago, duration, time } from "../core/format.js";
import { showError } from "../core/messages.js";

/** Show the head of `run` in `root`; `reload()` asks for the run again after a request. */
export function show(root, run, reload) {
  const isOpen = root.querySelector("details")?.open; // of the request that somebody writes at this moment
  if (isOpen) return;
  fill(
    root,
    h(
      "div",
      { class: "run-head" },
      h("h1", {}, run.name || run.id),
      h("span", { class: `run-state ${run.state}` }, run.state),
      run.project && h("a", { href: link(["runs"], { project: run.project }), class: "dim" }, run.project),
      run.tags.map((tag) => h("span", { class: "run-tag" }, tag)),
      h("span", { class: "dim" }, span(run)),
      h("span", { class: "right" }, run.state === "running" && requests(run, reload)),
    ),
    run.reason && h("p", { class: run.state === "finished" ? "dim" : "error" }, run.reason),
    run.observed && h("p", { class: "run-verdict", role: "status" }, `${run.observed.kind}: ${run.observed.text}`),
  );
}

function span(run) {
  const began = `began ${time(run.created_ns)}`;
  if (run.ended_ns) return `${began}, took ${duration((run.ended_ns - run.created_ns) / 1e9)}`;
  return `${began}, last data ${ago(run.last_seen_ns, run.now_ns)}`;
}

function requests(run, reload) {
  const reason = h("input", { placeholder: "Reason, for whoever looks", "aria-label": "Reason", maxlength: 200 });
  const ask = (kind, more = {}) => {
    const asked = { run: run.id, kind, reason: reason.value, ...more };
    return async () => {
      try {
        await send("POST", "run/control", { ...asked, reason: reason.value });
        box.open = false;
        await reload();
      } catch (error) {
        showError(error);
      }
    };
  };
  const box = h(
    "details",
    { class: "run-menu" },
    h("summary", {}, "Stop or save…"),
    h(
      "div",
      { class: "run-menu-body" },
      h("p", { class: "dim" }, "All ranks follow after the same step, if the program asks should_stop() or has a callback."),
      reason,
      h("button", { onclick: ask("save") }, "Save a checkpoint"),
      h("button", { onclick: ask("stop", { save: true }) }, "Save, then stop"),
      h("button", { onclick: ask("stop") }, "Stop"),
      h("button", { onclick: ask("clear") }, "Withdraw requests"),
    ),
  );
  return box;
}
