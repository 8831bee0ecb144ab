// The keys in sections, each key a card with room for its chart. A chart is made when its card comes near the window, and
// closed when it is far away: a run with thousands of keys costs what a screen of them does.

import { fill, h } from "../core/dom.js";
import { Chart } from "./chart.js";
import { showMenu } from "./export_menu.js";
import { toggled } from "./view_state.js";

const NEAR = "300px 0px"; // around the window: charts are made
const FAR = "1500px 0px"; // beyond: they are closed
const MAKE_MS = 6; // of making charts in one frame
const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** Return keys by section, both in natural order: `[[name, [key, …]], …]`. A key without "/" is in section "", which is first. */
export function bySection(keys) {
  const found = Map.groupBy(keys, (key) => sectionOf(key));
  for (const list of found.values()) list.sort(order.compare);
  return [...found].sort((a, b) => order.compare(a[0], b[0]));
}

/** Return the section of a key: its first part. */
export function sectionOf(key) {
  const at = key.indexOf("/");
  return at > 0 ? key.slice(0, at) : "";
}

export class Sections {
  constructor(board, root) {
    this._board = board;
    this._root = root;
    this._cards = new Map(); // key -> {element, body, chart}
    this._sections = new Map(); // name -> {element, grid, count, keys}
    this._toMake = new Set();
    this._near = new IntersectionObserver((entries) => this._came(entries), { rootMargin: NEAR });
    this._far = new IntersectionObserver((entries) => this._went(entries), { rootMargin: FAR });
  }

  /** Show these keys, those of them that match. Cards that stay keep their charts. */
  show(keys, matches) {
    const { view } = this._board;
    const wanted = bySection(keys.filter(matches));
    const shown = new Set(wanted.flatMap(([, list]) => list));
    for (const [key, card] of this._cards) if (!shown.has(key)) this._drop(key, card);
    for (const name of [...this._sections.keys()]) if (!wanted.some((each) => each[0] === name)) this._sections.delete(name);
    const elements = wanted.map(([name, list]) => {
      const section = this._sections.get(name) ?? this._section(name);
      const isClosed = view.closed.has(name);
      section.element.open = !isClosed;
      section.count.textContent = list.length.toLocaleString("en");
      if (isClosed) {
        for (const key of list) if (this._cards.has(key)) this._drop(key, this._cards.get(key));
        section.grid.replaceChildren();
      } else if (section.keys !== list.join("\n") || !section.grid.childElementCount) {
        section.grid.replaceChildren(...list.map((key) => this._card(key).element));
      }
      section.keys = list.join("\n");
      return section.element;
    });
    this._root.replaceChildren(...elements);
    if (!elements.length) fill(this._root, h("p", { class: "dim" }, keys.length ? "No key matches the filter." : "No numbers were logged yet."));
  }

  close() {
    this._near.disconnect();
    this._far.disconnect();
    for (const [key, card] of this._cards) this._drop(key, card);
  }

  _section(name) {
    const count = h("span", { class: "count" });
    const grid = h("div", { class: "chart-grid" });
    const title = h("summary", {}, h("h2", {}, name || "Charts"), " ", count);
    const element = h("details", { class: "section" }, title, grid);
    title.addEventListener("click", (event) => {
      event.preventDefault(); // the address says what is open
      this._board.change({ closed: toggled(this._board.view.closed, name) });
    });
    const made = { element, grid, count, keys: "" };
    this._sections.set(name, made);
    return made;
  }

  _card(key) {
    const kept = this._cards.get(key);
    if (kept) return kept;
    const body = h("div", { class: "chart-room" });
    const section = sectionOf(key);
    const title = h("span", { class: "chart-title", title: key }, section && h("span", { class: "dim" }, `${section}/`), section ? key.slice(section.length + 1) : key);
    const tools = h("span", { class: "chart-tools" });
    const element = h("figure", { class: "chart", "aria-label": key }, h("figcaption", {}, title, tools), body);
    element.dataset.key = key;
    const made = { element, body, tools, chart: null };
    this._cards.set(key, made);
    this._near.observe(element);
    this._far.observe(element);
    return made;
  }

  _came(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this._toMake.add(target.dataset.key);
      else this._toMake.delete(target.dataset.key);
    }
    this._frame ||= requestAnimationFrame(() => this._make());
  }

  /** Make charts that came near, as many as one frame has time for. */
  _make() {
    this._frame = 0;
    const start = performance.now();
    for (const key of this._toMake) {
      if (performance.now() - start > MAKE_MS) break;
      this._toMake.delete(key);
      const card = this._cards.get(key);
      if (!card || card.chart) continue;
      card.chart = new Chart(this._board, key, card.body);
      this._board.charts.add(card.chart);
      fill(card.tools, tools(this._board, card.chart));
    }
    if (this._toMake.size) this._frame = requestAnimationFrame(() => this._make());
  }

  _went(entries) {
    for (const { target, isIntersecting } of entries) {
      const card = this._cards.get(target.dataset.key);
      if (!isIntersecting && card) this._release(card);
    }
  }

  _release(card) {
    if (!card.chart) return;
    this._board.charts.delete(card.chart);
    card.chart.close();
    card.chart = null;
    card.tools.replaceChildren();
    this._board.live.settle();
  }

  _drop(key, card) {
    this._near.unobserve(card.element);
    this._far.unobserve(card.element);
    this._toMake.delete(key);
    this._release(card);
    this._cards.delete(key);
  }
}

/** Return the buttons of a chart. */
export function tools(board, chart) {
  const { key } = chart;
  const larger = h("button", { class: "icon", title: "Full window", "aria-label": `Show ${key} in the full window`, onclick: () => board.expand(key) }, "⛶");
  const save = h("button", { class: "icon", title: "Save as CSV, PNG or SVG", "aria-label": `Save ${key}`, "aria-haspopup": "menu" }, "⤓");
  save.addEventListener("click", () => showMenu(save, board, chart));
  return chart.isLarge ? [save] : [larger, save];
}
