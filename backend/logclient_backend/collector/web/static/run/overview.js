// The overview of a run: where and how it ran, its notes, config, summary and alerts.

import { fill, h } from "../core/dom.js";
import { duration, time, value } from "../core/format.js";
import { environments } from "./environment.js";
import { leaves } from "./leaves.js";

/** Show the overview in `root`. */
export function open(root, { run }) {
  let filter = "";
  let last = "";
  let lastEnvironments = "";
  const ended = new AbortController();
  const facts = h("section", { "aria-label": "Facts" });
  const events = h("section", { "aria-label": "Events" });
  const around = h("section", { "aria-label": "Environment" });
  const input = h("input", { type: "search", placeholder: "Filter names and values", "aria-label": "Filter config and summary" });
  const config = h("section", { "aria-label": "Config" });
  const summary = h("section", { "aria-label": "Summary" });
  input.addEventListener("input", () => {
    filter = input.value.toLowerCase();
    showTrees();
  });
  fill(root, h("div", { class: "columns" }, h("div", {}, facts, events, around), h("div", {}, input, config, summary)));

  function showTrees() {
    fill(config, h("h2", {}, "Config"), table(run.config, filter, "No config was given to init."));
    fill(summary, h("h2", {}, "Summary"), table(run.summary, filter, "The program has set no summary."));
  }

  function show(now) {
    run = now;
    fill(facts, h("h2", {}, "Run"), h("dl", { class: "facts" }, factsOf(run)), notes(run));
    fill(events, eventsOf(run));
    const trees = JSON.stringify([run.config, run.summary]);
    if (trees !== last) showTrees();
    last = trees;
    const surroundings = JSON.stringify(run.more?.environments);
    if (surroundings !== lastEnvironments) fill(around, environments(run, ended));
    lastEnvironments = surroundings;
  }

  show(run);
  return { show, close: () => ended.abort() };
}

function factsOf(run) {
  const more = run.more ?? {};
  const rows = [
    ["Id", run.id],
    ["Group", run.group],
    ["Began", time(run.created_ns)],
    ["Ended", time(run.ended_ns)],
    ["Active", run.active_ns ? duration(run.active_ns / 1e9) : ""],
    ["Attempts", run.attempts > 1 ? run.attempts : ""],
    ["Hosts", (more.hosts ?? []).join(", ")],
    ["Ranks", run.ranks.length ? ranges(run.ranks) : ""],
    ["Processes", more.processes],
    ["Exit code", more.exit_code],
    ["Signal", more.signal],
    ["Records", run.records.toLocaleString("en")],
    ["Points", run.points.toLocaleString("en")],
  ];
  return rows
    .filter(([, text]) => text !== "" && text !== null && text !== undefined)
    .map(([name, text]) => [h("dt", {}, name), h("dd", {}, String(text))]);
}

function notes(run) {
  return run.notes && [h("h2", {}, "Notes"), h("p", { class: "run-notes" }, run.notes)];
}

function eventsOf(run) {
  const { exception = {}, alerts = [] } = run.more ?? {};
  return [
    exception.type && [
      h("h2", {}, "Exception"),
      h("pre", { class: "error" }, `${exception.type}: ${exception.text}\n${(exception.last_lines ?? []).join("\n")}`),
    ],
    alerts.length > 0 && [
      h("h2", {}, "Alerts"),
      h(
        "table",
        {},
        h("tbody", {}, alerts.slice(-50).reverse().map(alertRow)),
      ),
    ],
  ];
}

function alertRow(alert) {
  const when = alert.time_ns ?? alert.time;
  return h("tr", {}, h("td", { class: "dim" }, time(when)), h("td", {}, alert.title ?? ""), h("td", {}, alert.text ?? ""));
}

function table(tree, filter, otherwise) {
  const all = leaves(tree);
  if (!all.length) return h("p", { class: "dim" }, otherwise);
  const shown = all.filter(([path, leaf]) => `${path} ${value(leaf)}`.toLowerCase().includes(filter));
  if (!shown.length) return h("p", { class: "dim" }, `None of the ${all.length} values matches.`);
  const rows = shown.map(([path, leaf]) => h("tr", {}, h("th", { scope: "row" }, path), h("td", {}, value(leaf))));
  return h("table", { class: "values" }, h("tbody", {}, rows));
}

/** Return ranks as "0-7, 12". */
export function ranges(ranks) {
  const parts = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}
