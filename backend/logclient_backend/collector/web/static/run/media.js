// Media values of one run; new ones come by themselves while it lasts.

import { mediaRun } from "../media/arrival.js";
import * as gallery from "../media/gallery.js";

/** Show the tab in `root`. */
export function open(root, { run }) {
  const one = mediaRun(run);
  const shown = gallery.open(root, [one]);
  return {
    show(now) {
      if (!one.isLive) return;
      Object.assign(one, mediaRun(now)); // the last question is asked when the run is over
      shown.follow().catch(() => {}); // the bar at the top says so; it is asked again
    },
    close: shown.close,
  };
}
