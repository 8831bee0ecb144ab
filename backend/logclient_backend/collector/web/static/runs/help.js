// What an empty table teaches, and the list of keys.

import { dialog } from "../core/dialog.js";
import { h } from "../core/dom.js";

const KEYS = [
  ["/", "go to the filter"],
  ["↓ from the filter", "go to the table"],
  ["↑ ↓ Page Home End", "move in the table"],
  ["Enter", "open the run; fold or unfold a group"],
  ["← →", "fold, unfold a group"],
  ["Space", "select, or no longer"],
  ["Shift + ↑ ↓, Shift + click", "select a range"],
  ["Ctrl + A", "select all that are listed"],
  ["Delete", "delete those selected; can be undone"],
  ["Escape", "clear the selection; leave the filter"],
  ["c", "choose columns"],
  ["?", "this list"],
];
const EXAMPLES = [
  ["resnet", "the name, id, project, group or a tag contains it"],
  ["-debug", "nothing of it does"],
  ["state=failed", "also running, finished, late, lost, stalled, …"],
  ["tag=base", "has this tag"],
  ["config.lr<0.01", "a setting; config.model.layers is one in a section"],
  ["loss<0.3", "the last value of a metric; summary.loss is a result"],
  ["name~seed", "a text contains it"],
  ["created>2d", "started in the last two days; also created>2026-11-30"],
  ["duration>2h dropped>0", "all terms must hold"],
];

/** Show the keys and the language of the filter. */
export function openHelp() {
  const rows = (pairs, tag) =>
    h(
      "dl",
      {},
      pairs.map(([term, words]) => [h("dt", {}, h(tag, {}, term)), h("dd", {}, words)]),
    );
  const parts = [
    h("section", {}, h("h3", {}, "Keys"), rows(KEYS, "kbd")),
    h("section", {}, h("h3", {}, "Filter"), rows(EXAMPLES, "code")),
  ];
  return dialog("Keys and filter", h("div", { class: "two" }, parts), { className: "help" });
}

/** Return what a table without any runs shows. `info`: the answer of /info. */
export function noRuns(info) {
  const lines = [
    "import logclient",
    'run = logclient.init(project="digits", name="mlp", config={"lr": 1e-3})',
    'for step in range(1000): run.log(step, {"loss": 1 / (step + 1)})',
  ];
  const server = info?.grpc ? `LOGCLIENT_SERVER=${info.grpc} LOGCLIENT_TOKEN=… python train.py` : "python train.py";
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "No runs yet"),
    h("p", {}, "Three lines log a run:"),
    h("pre", {}, lines.join("\n")),
    h("p", {}, "Its records come here while it runs:"),
    h("pre", {}, server),
    h(
      "p",
      { class: "dim" },
      "The token is one of ",
      h("code", {}, "logclient server token add NAME --role ingest --data DIR"),
      ". Runs of a folder come with ",
      h("code", {}, "logclient sync FOLDER"),
      ".",
    ),
  );
}

/** Return what a table shows whose filter lets no run through. */
export function noMatch(text, total, clear) {
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "No run matches"),
    h("p", {}, `None of ${total.toLocaleString("en")} runs: all terms of the filter must hold.`),
    h(
      "p",
      {},
      h("button", { onclick: clear }, "Clear the filter"),
      " ",
      h("button", { onclick: openHelp }, "What can be written here"),
    ),
  );
}
