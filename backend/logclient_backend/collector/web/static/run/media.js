// Media values of one run; new ones come by themselves while it lasts.

import * as gallery from "../media/gallery.js";
import { isLive } from "../runs/columns.js";

/** Show the tab in `root`. */
export function open(root, { id, run }) {
  const one = { id, name: run.name, isLive: isLive(run) };
  const shown = gallery.open(root, [one]);
  return {
    show(now) {
      if (!one.isLive) return;
      one.isLive = isLive(now); // the last question is asked when the run is over
      shown.follow().catch(() => {}); // the bar at the top says so; it is asked again
    },
    close: shown.close,
  };
}
