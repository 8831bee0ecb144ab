// The menu that saves a chart: its points, or its picture.

import { h } from "../core/dom.js";
import { showError } from "../core/messages.js";
import { allPoints, visiblePoints } from "./export_csv.js";
import { saveFile, toPng, toSvgText } from "./export_picture.js";

const CHOICES = [
  ["CSV: all points, every digit", "points.csv", (board, chart) => allPoints(board, chart)],
  ["CSV: what is drawn now", "visible.csv", (board, chart) => visiblePoints(board, chart)],
  ["PNG picture", "png", (board, chart) => toPng(board, chart)],
  ["SVG picture", "svg", (board, chart) => toSvgText(board, chart)],
];

/** Show the menu at a button. Arrow keys move, Escape closes it. */
export function showMenu(button, board, chart) {
  const menu = h("div", { class: "chart-menu", role: "menu", "aria-label": `Save ${chart.key}` });
  const close = () => {
    menu.remove();
    document.removeEventListener("pointerdown", outside, true);
    button.focus();
  };
  const outside = (event) => menu.contains(event.target) || close();
  for (const [text, ending, make] of CHOICES) {
    const choose = async () => {
      close();
      button.setAttribute("aria-busy", "true");
      try {
        await saveFile(`${fileName(chart.key)}.${ending}`, await make(board, chart));
      } catch (error) {
        showError(error);
      } finally {
        button.removeAttribute("aria-busy");
      }
    };
    menu.append(h("button", { role: "menuitem", class: "plain", onclick: choose }, text));
  }
  menu.addEventListener("keydown", (event) => {
    const items = [...menu.children];
    const at = items.indexOf(document.activeElement);
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown") items[(at + 1) % items.length].focus();
    else if (event.key === "ArrowUp") items[(at + items.length - 1) % items.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  button.after(menu);
  menu.firstChild.focus();
  document.addEventListener("pointerdown", outside, true);
}

/** Return a name for a file of a key: what file systems forbid, and leading dots, become `_`. */
export function fileName(key) {
  return key.replace(/[^\p{L}\p{N}._ -]/gu, "_").replace(/^\.+/, "_").slice(0, 120) || "chart";
}
