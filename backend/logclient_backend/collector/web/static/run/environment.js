// The surroundings of a run's program: command line, commit, machine; packages and variables when they are asked for.

import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { bytes } from "../core/format.js";
import { showError } from "../core/messages.js";
import { leaves } from "./leaves.js";

/** Return the section of a run: `more.environments` of `/run` has a short form of each node's. */
export function environments(run, ended) {
  const found = run.more?.environments ?? [];
  return found.map((each) => [h("h2", {}, found.length > 1 ? `Environment on ${each.host}` : "Environment"), facts(each), rest(run.id, each, ended)]);
}

function facts({ command, code, machine, gpus, packages, missing }) {
  const rows = [
    ["Command", (command.arguments ?? []).join(" ")],
    ["Executable", command.executable],
    ["Directory", command.folder],
    ["Commit", code.commit && `${code.commit.slice(0, 12)}${code.dirty ? ", with changes" : ""}${code.branch ? ` (${code.branch})` : ""}`],
    ["Remote", code.remote],
    ["Machine", [machine.processors && `${machine.processors} x ${machine.processor || "processor"}`, machine.memory_bytes && bytes(machine.memory_bytes), machine.system].filter(Boolean).join(", ")],
    ["GPUs", gpus.map((gpu) => gpu.name ?? "").join(", ")],
    ["Packages", packages || ""],
    ...Object.entries(missing).map(([part, why]) => [`No ${part}`, why]),
  ];
  return h("dl", { class: "facts" }, rows.filter(([, text]) => text).map(([name, text]) => [h("dt", {}, name), h("dd", {}, String(text))]));
}

/** Return a fold that asks for the rest when it is opened. */
function rest(id, environment, ended) {
  const body = h("div", {});
  const box = h("details", {}, h("summary", {}, "Packages and variables"), body);
  box.addEventListener("toggle", async () => {
    if (!box.open || body.childElementCount) return;
    try {
      const all = await get("run/environment", { run: id }, ended);
      const mine = all.environments.find((each) => each.node === environment.node) ?? {};
      const shown = { packages: mine.packages, variables: mine.command?.variables, diff: mine.code?.diff };
      fill(body, h("table", { class: "values" }, h("tbody", {}, leaves(shown).map(row))));
    } catch (error) {
      showError(error);
    }
  });
  return box;
}

function row([name, value]) {
  return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, String(value ?? "")));
}
