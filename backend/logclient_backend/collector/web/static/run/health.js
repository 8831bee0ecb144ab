// How the logging itself does: what was accepted, stored and dropped, on which nodes, and what went wrong.

import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { ago, bytes } from "../core/format.js";
import { showError } from "../core/messages.js";

const COUNTS = [
  ["accepted", "Accepted", "records written to shared memory by log()"],
  ["stored", "Stored", "records stored here"],
  ["waiting", "On their way", "records accepted and not yet stored"],
  ["forgotten", "Forgotten", "records overwritten before they were taken: the disk or the machine was too slow"],
  ["damaged", "Damaged", "records whose checksum was wrong, or whose file is missing"],
  ["refused", "Refused", "calls of log() that wrote no record"],
  ["left_out", "Left out", "values that could not be stored, while the rest of their record was"],
];
const MEDIA = "6c636d656469615f"; // "lcmedia_" in hex: the mark of streams of media values (logclient/shm/side_stream.py)
const SIDES = [MEDIA, "6c6373797374656d", "6c63636f6e736f6c"]; // and of host and device metrics, and of captured output: no process logs these
const MEDIA_COUNTS = [
  ["accepted", "Accepted", "media values written to shared memory by log()"],
  ["stored", "Stored", "media values stored by the agent"],
  ["forgotten", "Forgotten", "media values overwritten before they were taken: more than the media budget holds"],
  ["damaged", "Damaged", "media values whose checksum was wrong"],
];
const IS_LOSS = new Set(["forgotten", "damaged", "refused", "left_out"]);

/** Show the tab in `root`. */
export function open(root, { id, run }) {
  const ended = new AbortController();
  const counts = h("section", { "aria-label": "Counts" });
  const media = h("section", { "aria-label": "Media values" });
  const nodes = h("section", { "aria-label": "Nodes" });
  fill(root, h("div", { class: "columns" }, h("div", {}, counts, media), nodes));

  function show(now) {
    fill(counts, h("h2", {}, "Records"), table(COUNTS, now.counts), h("p", { class: "dim" }, sizes(now)), notices(now));
  }

  async function showNodes() {
    const found = await get("run/documents", { run: id }, ended);
    const values = mediaCounts(Object.values(found.nodes));
    if (values.accepted) fill(media, h("h2", {}, "Media values"), table(MEDIA_COUNTS, values));
    const rows = Object.entries(found.nodes).map(([name, node]) => nodeRow(name, node, found.now_ns));
    const heads = ["Host", "Node", "Processes", "Last sign", "Ended"].map((text) => h("th", { scope: "col" }, text));
    fill(nodes, h("h2", {}, "Nodes"), h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
  }

  show(run);
  showNodes().catch(showError);
  return { show, close: () => ended.abort() };
}

/** Return the sums over the streams of media values of all nodes. */
function mediaCounts(nodes) {
  const total = { accepted: 0, stored: 0, forgotten: 0, damaged: 0 };
  for (const node of nodes)
    for (const [id, told] of Object.entries(node.streams ?? {})) {
      if (!id.startsWith(MEDIA)) continue;
      for (const name of ["accepted", "stored", "damaged"]) total[name] += told[name] ?? 0;
      if (node.closed) total.forgotten += Math.max(0, told.accepted - told.stored - told.damaged);
    }
  return total;
}

function table(counts, found) {
  const rows = counts.filter(([name]) => name in found).map(([name, title, about]) => {
    const count = found[name];
    const isBad = IS_LOSS.has(name) && count > 0;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, title),
      h("td", { class: isBad ? "number error" : "number" }, count.toLocaleString("en")),
      h("td", { class: "dim" }, about),
    );
  });
  return h("table", {}, h("tbody", {}, rows));
}

function sizes(run) {
  const perPoint = run.points ? `, ${(run.bytes / run.points).toFixed(1)} bytes a point` : "";
  return `${run.points.toLocaleString("en")} points take about ${bytes(run.bytes)} here${perPoint}.`;
}

function notices(run) {
  const found = run.more?.notices ?? [];
  if (!found.length) return h("p", {}, "Nothing went wrong that the program was told about.");
  return [h("h2", {}, "Notices"), h("ul", {}, found.map((line) => h("li", {}, line)))];
}

function nodeRow(name, node, now_ns) {
  return h(
    "tr",
    {},
    h("td", {}, node.host ?? ""),
    h("td", { class: "dim" }, name),
    h("td", {}, String(Object.keys(node.processes ?? {}).filter((each) => !SIDES.some((mark) => each.startsWith(mark))).length)),
    h("td", {}, node.heard_ns ? ago(node.heard_ns, now_ns) : ""),
    h("td", {}, node.closed ? "yes" : "no"),
  );
}
