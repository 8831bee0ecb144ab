// The keys in sections, each key a card with room for its chart. A run may have thousands of keys, so the page holds what is
// near the window: cards are made stretch by stretch, charts card by card, and both go when they are far away.

import { fill, h } from "../core/dom.js";
import { Chart } from "./chart.js";
import { showMenu } from "./export_menu.js";
import { icon } from "./icons.js";
import { toggled } from "./view_state.js";

const STRETCH = 120; // cards that come and go together; columns of 2 to 6 divide it, so that rows are full
const NEAR_STRETCH = "1200px 0px"; // around the window
const NEAR_CARD = "300px 0px";
const KEPT = 12; // charts that went out of sight and are still there
const MAKE_MS = 6; // of making charts in one frame
const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

// The sentence where there is no key, by the side of the run.
const NOTHING = {
  "": "No numbers were logged yet.",
  system: "No metrics of host and devices are here: they are sampled every few seconds, unless LOGCLIENT_SYSTEM=off was set.",
};

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
    this._sections = new Map(); // name -> {element, body, count, name of what it shows}
    this._stretches = new Map(); // element -> its keys
    this._cards = new Map(); // key -> {key, element, body, tools, chart}
    this._toMake = new Set(); // cards that came near
    this._gone = new Set(); // cards that went out of sight with their charts, the first one at the start
    this._nearStretch = new IntersectionObserver((entries) => this._stretchesMoved(entries), { rootMargin: NEAR_STRETCH });
    this._nearCard = new IntersectionObserver((entries) => this._cardsMoved(entries), { rootMargin: NEAR_CARD });
    this._resizer = new ResizeObserver(() => this._reserve());
    this._resizer.observe(root);
  }

  /** Show these keys, those of them that match. Cards that stay keep their charts. */
  show(keys, matches) {
    const { view } = this._board;
    const wanted = bySection(keys.filter(matches));
    const names = new Set(wanted.map(([name]) => name));
    for (const [name, section] of this._sections) {
      if (names.has(name)) continue;
      this._empty(section);
      this._sections.delete(name);
    }
    const elements = wanted.map(([name, list]) => this._update(name, list, view));
    const now = [...this._root.children];
    if (elements.length !== now.length || elements.some((each, i) => each !== now[i])) this._root.replaceChildren(...elements);
    const nothing = keys.length ? "No key matches the filter." : NOTHING[this._board.side];
    if (!elements.length) fill(this._root, h("p", { class: "dim" }, nothing));
    this._reserve();
  }

  close() {
    this._nearStretch.disconnect();
    this._nearCard.disconnect();
    this._resizer.disconnect();
    for (const card of this._cards.values()) this._release(card);
  }

  _update(name, list, view) {
    const section = this._sections.get(name) ?? this._section(name);
    const isOpen = !view.closed.has(name);
    const shows = isOpen ? list.join("\n") : "";
    section.element.open = isOpen;
    section.count.textContent = list.length.toLocaleString("en");
    if (section.shows === shows) return section.element;
    const kept = new Map(list.filter((key) => this._cards.has(key)).map((key) => [key, this._cards.get(key)]));
    this._empty(section, isOpen ? kept : new Map());
    section.shows = shows;
    for (let at = 0; isOpen && at < list.length; at += STRETCH) {
      const part = list.slice(at, at + STRETCH);
      const element = h("div", { class: "chart-grid" });
      this._stretches.set(element, part);
      section.body.append(element);
      if (part.some((key) => kept.has(key))) this._fill(element);
      this._nearStretch.observe(element);
    }
    return section.element;
  }

  /** Take all stretches out of a section; `kept`: cards that go on elsewhere in it. */
  _empty(section, kept = new Map()) {
    for (const element of section.body.children) {
      this._nearStretch.unobserve(element);
      for (const key of this._stretches.get(element)) {
        const card = this._cards.get(key);
        if (card && !kept.has(key)) this._drop(card);
      }
      this._stretches.delete(element);
    }
    section.body.replaceChildren();
    section.shows = null;
  }

  _section(name) {
    const count = h("span", { class: "count" });
    const body = h("div", {});
    const title = h("summary", {}, h("h2", {}, name || "Charts"), " ", count);
    const element = h("details", { class: "section" }, title, body);
    title.addEventListener("click", (event) => {
      event.preventDefault(); // the address says what is open
      this._board.change({ closed: toggled(this._board.view.closed, name) });
    });
    const made = { element, body, count, shows: null };
    this._sections.set(name, made);
    return made;
  }

  /** Give stretches without cards the height that they will have. */
  _reserve() {
    const style = getComputedStyle(this._root);
    const of = (name) => parseFloat(style.getPropertyValue(name));
    const width = this._root.clientWidth;
    const columns = Math.max(1, Math.floor((width + of("--between")) / (Math.min(width, of("--card") || width) + of("--between"))));
    for (const [element, keys] of this._stretches) {
      const rows = Math.ceil(keys.length / columns);
      const height = rows * (of("--plot") + of("--around") + of("--between")) - of("--between");
      element.style.minHeight = element.childElementCount ? "" : `${height}px`;
    }
  }

  _stretchesMoved(entries) {
    let isOther = false;
    for (const { target, isIntersecting } of entries) {
      const keys = this._stretches.get(target);
      if (!keys || isIntersecting === Boolean(target.childElementCount)) continue;
      isOther = true;
      if (isIntersecting) this._fill(target);
      else {
        for (const key of keys) this._drop(this._cards.get(key));
        target.replaceChildren();
      }
    }
    if (isOther) this._reserve();
  }

  _fill(element) {
    element.replaceChildren(...this._stretches.get(element).map((key) => this._card(key).element));
  }

  _card(key) {
    const kept = this._cards.get(key);
    if (kept) return kept;
    const body = h("div", { class: "chart-room" });
    const section = sectionOf(key);
    const name = section ? key.slice(section.length + 1) : key;
    const title = h("span", { class: "chart-title", title: key }, section && h("span", { class: "dim" }, `${section}/`), name);
    const tools = h("span", { class: "chart-tools" });
    const element = h("figure", { class: "chart", "aria-label": key }, h("figcaption", {}, title, tools), body);
    element.dataset.key = key;
    const made = { key, element, body, tools, chart: null };
    this._cards.set(key, made);
    this._nearCard.observe(element);
    return made;
  }

  _cardsMoved(entries) {
    for (const { target, isIntersecting } of entries) {
      const card = this._cards.get(target.dataset.key);
      if (!card) continue;
      if (isIntersecting) {
        this._gone.delete(card);
        if (!card.chart) this._toMake.add(card);
      } else {
        this._toMake.delete(card);
        if (card.chart) this._gone.add(card);
      }
    }
    for (const card of this._gone) {
      if (this._gone.size <= KEPT) break;
      this._release(card);
    }
    this._frame ||= requestAnimationFrame(() => this._make());
  }

  /** Make charts that came near, as many as one frame has time for. */
  _make() {
    this._frame = 0;
    const start = performance.now();
    for (const card of this._toMake) {
      if (performance.now() - start > MAKE_MS) break;
      this._toMake.delete(card);
      card.chart = new Chart(this._board, card.key, card.body);
      this._board.charts.add(card.chart);
      fill(card.tools, tools(this._board, card.chart));
    }
    if (this._toMake.size) this._frame = requestAnimationFrame(() => this._make());
  }

  _release(card) {
    this._gone.delete(card);
    if (!card.chart) return;
    this._board.charts.delete(card.chart);
    card.chart.close();
    card.chart = null;
    card.tools.replaceChildren();
    this._board.live.settle();
  }

  _drop(card) {
    if (!card) return;
    this._nearCard.unobserve(card.element);
    this._toMake.delete(card);
    this._release(card);
    this._cards.delete(card.key);
  }
}

/** Return the buttons of a chart. */
export function tools(board, chart) {
  const { key } = chart;
  const expand = () => board.expand(key);
  const named = { class: "icon", title: "Full window", "aria-label": `Show ${key} in the full window` };
  const larger = h("button", { ...named, onclick: expand }, icon("larger"));
  const what = { class: "icon", title: "Save as CSV, PNG or SVG", "aria-label": `Save ${key}`, "aria-haspopup": "menu" };
  const save = h("button", { ...what, onclick: () => showMenu(save, board, chart) }, icon("save"));
  return chart.isLarge ? [save] : [larger, save];
}
