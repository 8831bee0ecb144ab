// One key of media values: a slider over steps, and the value of each run at that step, side by side.

import { number, swatch } from "../core/colours.js";
import { fill, h } from "../core/dom.js";
import { heatMap } from "./histogram.js";
import { shown } from "./kinds.js";
import { at, merged, references } from "./loader.js";

/**
 * Return the panel of a key: `{element, load(), add(index, rows), close()}`. `runs`: as `mediaRun` gives them. `step` is where the slider begins,
 * null: at the end; `onStep(step)` is called when a user has moved it. `add` takes new values of a run: a slider at its end follows them.
 */
export function panel(key, runs, step, onStep) {
  const ended = new AbortController();
  const slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": `Step of ${key}` });
  const label = h("output", { class: "dim" });
  const body = h("div", { class: "media-row" });
  const element = h("section", { class: "media-panel", "aria-label": key }, h("h3", {}, key), h("div", { class: "tool-bar" }, slider, label), body);
  let all = runs.map(() => []);
  let steps = [];
  let cells = []; // `{value, element}` by run, as shown
  let isAsked = false;
  let isLoaded = false;

  async function load() {
    if (isAsked) return;
    isAsked = true;
    fill(body, h("span", { class: "dim" }, "loading …"));
    let found;
    try {
      found = await Promise.all(runs.map((run) => references(run.id, { key }, ended)));
    } catch (error) {
      if (!ended.signal.aborted) fill(body, h("p", { class: "error" }, error.message));
      return;
    }
    isLoaded = true;
    all = all.map((known, index) => merged(found[index].rows, known)); // some may have come meanwhile
    arrange(step ?? Infinity);
  }

  function add(index, rows) {
    const isAtEnd = Number(slider.value) === steps.length - 1;
    const now = steps[Number(slider.value)];
    all[index] = merged(all[index], rows);
    if (!isLoaded) return;
    body.style.minHeight = `${body.offsetHeight}px`; // an image has no height before it has come: the page would jump
    arrange(isAtEnd || now === undefined ? Infinity : now);
  }

  /** Put the slider on the last step that is not behind `wanted`. */
  function arrange(wanted) {
    steps = [...new Set(all.flat().map((value) => value.step))].sort((a, b) => a - b);
    slider.max = Math.max(0, steps.length - 1);
    slider.value = Math.max(0, steps.findLastIndex((each) => each <= wanted));
    slider.disabled = steps.length < 2;
    show();
  }

  function show() {
    const now = steps[Number(slider.value)];
    label.textContent = now === undefined ? "" : `step ${now.toLocaleString("en")} (${Number(slider.value) + 1} of ${steps.length})`;
    cells = runs.map((run, index) => {
      const value = at(all[index], now);
      const name = value && [value.step === now, value.kind === "histogram" && all[index].length]; // all histograms are in the heat map
      const old = cells[index];
      const isSame = old && old.value === value && String(old.name) === String(name);
      return isSame ? old : { value, name, element: cell(run, all[index], now) };
    });
    if (cells.some((each, index) => body.children[index] !== each.element)) fill(body, cells.map((each) => each.element));
  }

  function cell(run, values, now) {
    const head = runs.length > 1 && h("h4", {}, swatch(number(run.id)), " ", run.name || run.id);
    const value = at(values, now);
    if (!value) return h("div", { class: "media-cell" }, head, h("p", { class: "dim" }, "No value of this key."));
    const isEarlier = value.step !== now && h("p", { class: "dim" }, `of step ${value.step.toLocaleString("en")}`);
    const map = value.kind === "histogram" && values.length > 1 && heatMap(values);
    return h("div", { class: "media-cell" }, head, shown(run, value, ended), isEarlier, map);
  }

  slider.addEventListener("input", () => {
    body.style.minHeight = "";
    show();
    onStep?.(steps[Number(slider.value)]);
  });
  return { element, load, add, close: () => ended.abort() };
}
