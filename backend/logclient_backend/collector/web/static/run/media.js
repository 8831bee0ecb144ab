// Media values of one run.

import * as gallery from "../media/gallery.js";

/** Show the tab in `root`. */
export function open(root, { id, run }) {
  return gallery.open(root, [{ id, name: run.name }]);
}
