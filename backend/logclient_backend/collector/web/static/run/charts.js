// The charts of a run, as a tab of its page.

import * as charts from "../views/charts.js";

/** Show the tab in `root`. */
export function open(root, { id, address }) {
  return charts.open(root, address, { runs: [id] });
}
