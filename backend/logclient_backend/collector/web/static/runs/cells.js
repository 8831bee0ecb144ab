// The cells of the runs table.

import { link } from "../core/address.js";
import * as colours from "../core/colours.js";
import { h } from "../core/dom.js";
import * as format from "../core/format.js";
import * as columns from "./columns.js";

const MAX_TEXT = 300; // characters of a cell in the document; the whole text is in its title, up to MAX_TITLE
const MAX_TITLE = 2000;
const MAX_TAGS = 6;
const GOOD = new Set(["running", "finished"]);
const BAD = new Set(["failed", "killed", "lost", "stalled", "terminated"]);

/** Return the cell of a run in a column. */
export function cell(shown, run, now) {
  const made = MAKERS[shown.id]?.(run, now) ?? plain(shown, run, now);
  made.className = [made.className, shown.isNumber ? "number" : ""].filter(Boolean).join(" ");
  return made;
}

/** Return whether what a column shows of this run changes with the clock. */
export function isTimed(shown, run) {
  return shown.id === "seen" || (shown.id === "duration" && columns.isLive(run));
}

/** Return the cell of a row of a group: the mean of a column, with its range. `found`: {mean, min, max, runs}, or null. */
export function groupCell(shown, found) {
  if (!found) return h("td", { class: "number" });
  const words = (value) =>
    shown.isDuration ? format.duration(value) : shown.id === "bytes" ? format.bytes(Math.round(value)) : short(value);
  const range = found.min === found.max ? "" : `${words(found.min)}–${words(found.max)}`;
  const title = `Mean of ${found.runs} runs: ${words(found.mean)}${range ? `, from ${words(found.min)} to ${words(found.max)}` : ""}`;
  return h(
    "td",
    { class: "number", title },
    h("span", { class: "mean" }, words(found.mean)),
    range && h("span", { class: "range" }, range),
  );
}

function short(value) {
  return format.value(Number.isInteger(value) ? value : Number(Number(value).toPrecision(3)));
}

/** Return a text that is no longer than a cell can show. */
export function cut(text, most = MAX_TEXT) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

function plain(shown, run, now) {
  const text = columns.text(shown, run, now);
  return h("td", { title: text ? cut(text, MAX_TITLE) : null }, h("bdi", {}, cut(text)));
}

const MAKERS = {
  name(run) {
    const name = run.name || run.id;
    const number = colours.number(run.id);
    return h(
      "th",
      { scope: "row", class: "name", title: cut(run.name ? `${run.name}\n${run.id}` : run.id, MAX_TITLE) },
      h(
        "button",
        { class: "line", dataset: { line: "" }, tabIndex: -1, "aria-label": `Change the line of ${cut(name, 80)}` },
        colours.swatch(number),
      ),
      h("a", { href: link(["run", run.id]), tabIndex: -1 }, h("bdi", {}, cut(name))),
    );
  },
  state(run) {
    const state = columns.stateOf(run);
    const why = columns.whyOf(run);
    const kind = BAD.has(state) ? "bad" : GOOD.has(state) ? (state === "running" ? "good" : "done") : "warn";
    return h(
      "td",
      { class: "status", title: why ? cut(`${state}: ${why}`, MAX_TITLE) : null },
      h("span", { class: `badge ${kind}` }, state),
      why && h("bdi", { class: "why" }, cut(why)),
    );
  },
  tags(run) {
    const shown = run.tags.slice(0, MAX_TAGS).map((tag) => h("span", { class: "mark" }, h("bdi", {}, cut(tag, 60))));
    const more = run.tags.length - MAX_TAGS;
    return h("td", { class: "tags", title: cut(run.tags.join(", "), MAX_TITLE) }, shown, more > 0 && ` +${more}`);
  },
  seen(run, now) {
    const text = columns.text(columns.column("seen"), run, now);
    return h(
      "td",
      {
        class: columns.isBehind(run, now) ? "behind" : columns.isLive(run) ? "" : "dim",
        title: `Last data: ${format.time(run.last_seen_ns)}`,
      },
      text,
    );
  },
  created(run, now) {
    return h("td", { title: format.time(run.created_ns) }, columns.text(columns.column("created"), run, now));
  },
  lost(run) {
    const lost = columns.lostOf(run);
    return h(
      "td",
      { class: lost ? "lost" : "dim", title: lost ? columns.lossText(run) : "Nothing was dropped" },
      format.value(lost),
    );
  },
};
