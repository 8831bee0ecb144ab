// Who is stuck and why: the verdict of `logclient why` over all nodes, the ranks, stacks in groups, and stalls that are over.

import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { duration, time } from "../core/format.js";

const EVERY_MS = 5_000;
const MAX_ROWS = 512;

/** Show the tab in `root`. */
export function open(root, { id, run }) {
  const ended = new AbortController();
  const now = h("section", { "aria-label": "Now" });
  const past = h("section", { "aria-label": "Stalls" });
  let isLive = false;
  let timer = 0;
  fill(root, now, past);

  async function look() {
    clearTimeout(timer);
    if (ended.signal.aborted) return;
    if (isLive && !document.hidden) {
      try {
        fill(now, page(await get("run/why", { run: id }, ended)));
      } catch (error) {
        if (!ended.signal.aborted) fill(now, h("p", { class: "error" }, error.message));
      }
    }
    timer = setTimeout(look, EVERY_MS);
  }

  function show(found) {
    isLive = ["running", "late"].includes(found.state);
    if (!isLive) fill(now, h("p", {}, "The run is over: nobody is watched any more."));
    fill(past, stalls(found.more?.stalls ?? []));
  }

  show(run);
  look();
  return {
    show,
    close() {
      ended.abort();
      clearTimeout(timer);
    },
  };
}

function page(found) {
  const nodes = found.nodes.map((node) => `${node.host}: ${node.text}`).filter((line) => !found.text.includes(line));
  return [
    h("p", { class: found.stuck ? "run-verdict stuck" : "run-verdict", role: "status" }, `${found.verdict}: ${found.text}`),
    nodes.length > 0 && [h("h2", {}, "Nodes"), h("ul", {}, nodes.map((line) => h("li", {}, line)))],
    found.processes.length > 0 && [h("h2", {}, "Ranks"), ranks(found)],
    found.groups.length > 0 && [h("h2", {}, "Stacks"), found.groups.map(group)],
    found.gpus.some((each) => each.devices?.length) && [h("h2", {}, "GPUs"), found.gpus.map(gpus)],
  ];
}

function ranks(found) {
  const blamed = new Set(found.blamed.map((each) => `${each.host} ${each.pid}`));
  const heads = ["Rank", "Host", "PID", "Kernel", "CPU", "Step", "Last record", "Section", "Where"];
  const rows = found.processes.slice(0, MAX_ROWS).map((each) =>
    h(
      "tr",
      { class: blamed.has(`${each.host} ${each.pid}`) ? "blamed" : null },
      [
        each.rank ?? "",
        each.host,
        each.pid,
        [each.kernel_state, each.wait_channel].filter(Boolean).join(" "),
        `${Math.round(each.cpu_share * 100)} %`,
        each.step ?? "",
        each.age_s === null ? "" : `${duration(each.age_s)} ago`,
        each.section ? `${each.section} ${duration(each.section_s)}` : "",
        each.frames[0] ?? each.no_stack,
      ].map((text) => h("td", {}, String(text))),
    ),
  );
  const more = found.processes.length - MAX_ROWS;
  return [
    h("table", {}, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows)),
    more > 0 && h("p", { class: "dim" }, `and ${more} more`),
  ];
}

function group(each) {
  const names = each.processes.map((one) => one.name).join(", ");
  return h("details", { class: "stack", open: true }, h("summary", {}, names), h("pre", {}, each.frames.join("\n")));
}

function gpus(each) {
  const heads = ["GPU", "Utilisation", "Memory", "SM clock", "Power", "Temperature"];
  const rows = (each.devices ?? []).map((one) =>
    h(
      "tr",
      {},
      [one.name ?? one.index, percent(one.utilisation), unit(one.memory_mib, "MiB"), unit(one.sm_mhz, "MHz"), unit(one.power_w, "W"), unit(one.temperature_c, "°C")].map(
        (text) => h("td", {}, String(text ?? "")),
      ),
    ),
  );
  return [h("h3", {}, each.host), h("table", {}, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows))];
}

function percent(given) {
  return given === null || given === undefined ? "" : `${given} %`;
}

function unit(given, name) {
  return given === null || given === undefined ? "" : `${given} ${name}`;
}

function stalls(found) {
  if (!found.length) return h("p", { class: "dim" }, "No stall of this run is on record.");
  const rows = [...found].reverse().map((stall) =>
    h(
      "tr",
      {},
      h("td", {}, time(stall.begin_ns)),
      h("td", {}, stall.end_ns ? duration((stall.end_ns - stall.begin_ns) / 1e9) : "not over"),
      h("td", {}, stall.text ?? stall.verdict ?? ""),
    ),
  );
  const heads = ["Began", "Lasted", "Verdict"].map((text) => h("th", { scope: "col" }, text));
  return [h("h2", {}, "Stalls"), h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows))];
}
