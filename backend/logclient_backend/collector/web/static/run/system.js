// Charts of what the agent measured of hosts, devices and ranks while the run went on.

import * as charts from "../views/charts.js";

/** Show the tab in `root`. */
export function open(root, { id, address }) {
  return charts.open(root, address, { runs: [id], side: "system" });
}
