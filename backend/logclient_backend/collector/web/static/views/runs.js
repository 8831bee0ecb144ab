// The list of runs.

import { current as address, link } from "../core/address.js";
import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { time } from "../core/format.js";
import { showError } from "../core/messages.js";

/** Show the view in `root`. Returns its `update(address)`, called when parameters change, and its `close()`. */
export function open(root) {
  const ended = new AbortController();
  const load = async () => {
    const page = await get("runs", { limit: 100, name: address().params.get("name") }, ended);
    const rows = page.runs.map((run) =>
      h(
        "tr",
        {},
        h("td", {}, h("a", { href: link(["run", run.id]) }, run.name || run.id)),
        h("td", {}, run.state),
        h("td", {}, time(run.created_ns)),
      ),
    );
    const head = ["Name", "State", "Created"].map((text) => h("th", { scope: "col" }, text));
    fill(root, h("h1", {}, "Runs"), h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  };
  load().catch(showError);
  return { update: () => load().catch(showError), close: () => ended.abort() };
}
