// The panel in which a user chooses the line of a run.

import * as colours from "../core/colours.js";
import { panel } from "../core/dialog.js";
import { h } from "../core/dom.js";

/** Show it below `anchor`. */
export function openLines(anchor, run) {
  const now = colours.number(run.id);
  const choose = (number) => () => {
    close();
    colours.choose(run.id, number);
  };
  const all = Array.from({ length: colours.LINES }, (_, number) =>
    h(
      "button",
      {
        class: "plain",
        onclick: choose(number),
        "aria-label": `Line ${number + 1}`,
        "aria-pressed": String(number === now),
      },
      colours.swatch(number),
    ),
  );
  const close = panel(anchor, "Line of this run", [
    h("div", { class: "lines" }, all),
    h("button", { onclick: choose(null) }, "By its id"),
  ]);
}
