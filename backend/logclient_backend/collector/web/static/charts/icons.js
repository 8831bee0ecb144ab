// Small drawings for buttons, which no font has to have.

import { element } from "./pen.js";

const PATHS = {
  larger: "M6 2H2V6M10 2H14V6M14 10V14H10M6 14H2V10",
  save: "M8 2V10M4.5 7L8 10.5L11.5 7M2.5 13.5H13.5",
  close: "M3 3L13 13M13 3L3 13",
  reset: "M3 8A5 5 0 1 0 5 4M3 2V5.5H6.5",
};

/** Return a drawing in the colour of the text around it. */
export function icon(name) {
  const made = element("svg", { viewBox: "0 0 16 16", width: 14, height: 14, class: "drawn", "aria-hidden": "true" });
  made.append(element("path", { d: PATHS[name] }));
  return made;
}
