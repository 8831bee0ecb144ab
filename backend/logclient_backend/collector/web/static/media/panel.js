// One key of media values: a slider over steps, and the value of each run at that step, side by side.

import { number, swatch } from "../core/colours.js";
import { fill, h } from "../core/dom.js";
import { heatMap } from "./histogram.js";
import { shown } from "./kinds.js";
import { at, references } from "./loader.js";

/**
 * Return the panel of a key: `{element, load(), close()}`. `runs`: `[{id, name}]`. `step` is where the slider begins, null: at the end;
 * `onStep(step)` is called when a user has moved it.
 */
export function panel(key, runs, step, onStep) {
  const ended = new AbortController();
  const slider = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": `Step of ${key}` });
  const label = h("output", { class: "dim" });
  const body = h("div", { class: "media-row" });
  const element = h("section", { class: "media-panel", "aria-label": key }, h("h3", {}, key), h("div", { class: "tool-bar" }, slider, label), body);
  let all = [];
  let steps = [];
  let isLoaded = false;

  async function load() {
    if (isLoaded) return;
    isLoaded = true;
    fill(body, h("span", { class: "dim" }, "loading …"));
    try {
      all = await Promise.all(runs.map((run) => references(run.id, { key }, ended)));
    } catch (error) {
      if (!ended.signal.aborted) fill(body, h("p", { class: "error" }, error.message));
      return;
    }
    steps = [...new Set(all.flat().map((value) => value.step))].sort((a, b) => a - b);
    slider.max = Math.max(0, steps.length - 1);
    const wanted = step === null ? steps.length - 1 : steps.findLastIndex((each) => each <= step);
    slider.value = Math.max(0, wanted);
    slider.disabled = steps.length < 2;
    show();
  }

  function show() {
    const now = steps[Number(slider.value)];
    label.textContent = now === undefined ? "" : `step ${now.toLocaleString("en")} (${Number(slider.value) + 1} of ${steps.length})`;
    fill(body, runs.map((run, index) => cell(run, all[index], now)));
  }

  function cell(run, values, now) {
    const head = runs.length > 1 && h("h4", {}, swatch(number(run.id)), " ", run.name || run.id);
    const value = at(values, now);
    if (!value) return h("div", { class: "media-cell" }, head, h("p", { class: "dim" }, "No value of this key."));
    const isEarlier = value.step !== now && h("p", { class: "dim" }, `of step ${value.step.toLocaleString("en")}`);
    const map = value.kind === "histogram" && values.length > 1 && heatMap(values);
    return h("div", { class: "media-cell" }, head, shown(run.id, value, ended), isEarlier, map);
  }

  slider.addEventListener("input", () => {
    show();
    onStep?.(steps[Number(slider.value)]);
  });
  return { element, load, close: () => ended.abort() };
}
