// Some runs side by side: settings that differ, last and best values, how settings and values hang together.

import * as address from "../core/address.js";
import { get } from "../core/api.js";
import { line } from "../core/colours.js";
import { fill, h } from "../core/dom.js";
import { toNumber, value } from "../core/format.js";
import { showError } from "../core/messages.js";
import * as theme from "../core/theme.js";
import { parallel } from "../compare/parallel.js";
import { scatter } from "../compare/scatter.js";
import { rowsOf } from "../compare/settings.js";
import { settingsTable, valuesTable } from "../compare/tables.js";
import { mediaRun } from "../media/arrival.js";
import * as gallery from "../media/gallery.js";

const MAX_RUNS = 100;
const MAX_KEYS = 500; // of one run, in the table of values

/** Show the view in `root`. The runs are the parameters `run` of the address. */
export function open(root, now) {
  const ended = new AbortController();
  let found = null; // {runs, settings, values}
  let ids = "";
  const tables = h("div", {});
  const media = h("section", { "aria-label": "Media" });
  let shownMedia = null;

  async function load(where) {
    const wanted = where.params.getAll("run").slice(0, MAX_RUNS);
    ids = wanted.join("\n");
    if (wanted.length < 2) {
      fill(root, h("h1", {}, "Compare"), h("p", {}, "Choose two or more runs in the ", h("a", { href: address.link(["runs"]) }, "list of runs"), "."));
      return;
    }
    const runs = await Promise.all(wanted.map((run) => get("run", { run }, ended)));
    const extremes = await Promise.all(wanted.map((run) => get("run/extremes", { run, limit: MAX_KEYS }, ended)));
    fill(root, tables, media);
    found = { runs, settings: rowsOf(runs.map((run) => run.config)), values: valuesOf(extremes) };
    show();
    shownMedia?.close();
    const body = h("div", {});
    fill(media, h("h2", {}, "Media"), body);
    shownMedia = gallery.open(body, runs.map(mediaRun));
  }

  function show() {
    const { params } = address.current();
    const { runs, settings, values } = found;
    const onlyDiffering = params.get("settings") !== "all";
    const charts = address.link(["charts"], { run: runs.map((run) => run.id) });
    fill(
      tables,
      h("h1", {}, `Compare ${runs.length} runs`),
      h("p", {}, h("a", { href: charts }, "Curves of these runs")),
      section("Settings", [toggle(onlyDiffering, settings), settingsTable(runs, settings, onlyDiffering)]),
      section("Values", [valueKind(params), valuesTable(runs, values, params.get("value") ?? "last")]),
      section("Settings and values", drawings(params)),
    );
  }

  function drawings(params) {
    const { runs } = found;
    const axes = axesOf(found);
    if (!axes.length) return h("p", { class: "dim" }, "No setting and no value differs.");
    const target = chosen(axes, params.get("y"), axes.length - 1);
    const first = chosen(axes, params.get("x"), 0);
    const shown = axes.filter((axis) => axis.isSetting).slice(0, 12).concat(target.isSetting ? [] : [target]);
    const drawn = runs.map((run) => ({ id: run.id, name: run.name || run.id, ...line(run.id) }));
    const width = Math.max(400, root.clientWidth - 32);
    const go = (id) => address.go(["run", id]);
    return [
      h("p", {}, select("Horizontal", axes, first, "x"), " ", select("Vertical", axes, target, "y")),
      h("div", { class: "drawing" }, parallel(shown, drawn, width, go)),
      h("div", { class: "drawing" }, scatter(first, target, drawn, Math.min(width, 720), go)),
    ];
  }

  function update(where) {
    if (where.params.getAll("run").slice(0, MAX_RUNS).join("\n") !== ids) load(where).catch(fail);
    else if (found) show();
  }

  function fail(error) {
    if (!ended.signal.aborted) showError(error);
  }

  const unwatch = theme.watch(() => found && show());
  load(now).catch(fail);
  return {
    update,
    close() {
      ended.abort();
      shownMedia?.close();
      unwatch();
    },
  };
}

/** Return key -> per run {last, min, max} or undefined, over the keys of all runs. */
function valuesOf(extremes) {
  const made = new Map();
  extremes.forEach((one, at) => {
    for (const each of one.keys) {
      if (!made.has(each.key)) made.set(each.key, new Array(extremes.length).fill(undefined));
      made.get(each.key)[at] = { last: each.last.value, min: each.min, max: each.max };
    }
  });
  return made;
}

function axesOf({ settings, values }) {
  const differing = settings.filter((row) => row.differs && row.values.some((each) => each !== undefined));
  const axes = differing.map((row) => ({ name: row.path, values: row.values, isSetting: true }));
  for (const [key, each] of values) {
    const lasts = each.map((one) => (one === undefined ? undefined : toNumber(one.last)));
    if (lasts.some(Number.isFinite)) axes.push({ name: key, values: lasts, isSetting: false });
  }
  return axes;
}

function chosen(axes, name, otherwise) {
  return axes.find((axis) => axis.name === name) ?? axes[otherwise];
}

function section(title, content) {
  return h("section", { "aria-label": title }, h("h2", {}, title), content);
}

function toggle(onlyDiffering, settings) {
  const same = settings.filter((row) => !row.differs).length;
  const box = h("input", { type: "checkbox", checked: !onlyDiffering, onchange: (event) => address.change({ settings: event.target.checked ? "all" : null }) });
  return h("label", { class: "dim" }, box, ` also settings that are equal (${value(same)})`);
}

function valueKind(params) {
  const now = params.get("value") ?? "last";
  const options = [
    ["last", "Last value"],
    ["min", "Lowest value"],
    ["max", "Highest value"],
  ].map(([name, text]) => h("option", { value: name, selected: name === now }, text));
  const onchange = (event) => address.change({ value: event.target.value === "last" ? null : event.target.value });
  return h("label", {}, "Show ", h("select", { onchange, "aria-label": "Which value of each key" }, options));
}

function select(label, axes, current, parameter) {
  const options = axes.map((axis) => h("option", { value: axis.name, selected: axis === current }, axis.name));
  return h("label", {}, `${label} `, h("select", { "aria-label": label, onchange: (event) => address.change({ [parameter]: event.target.value }) }, options));
}
