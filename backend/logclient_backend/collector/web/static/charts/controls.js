// The bar above the charts, and the list of runs. Every control writes the address; what it shows comes from there.

import * as address from "../core/address.js";
import { swatch } from "../core/colours.js";
import { fill, h } from "../core/dom.js";
import { ago } from "../core/format.js";
import { CONFIG } from "./board.js";
import { SIZES, toggled, usualX, X_KINDS, xKey, xOfKey } from "./view_state.js";

/** Smoothing in percent of the visible range of x, by place of the slider. */
const SMOOTHINGS = [0, 0.2, 0.5, 1, 2, 3, 5, 8, 12, 20];
const SMOOTHING =
  "Each value becomes a mean of its neighbours, weighted by e^(-distance / width). The width is this share of the visible range of x";
const MOST_SETTINGS = 200; // choices of grouping
const BY = { group: "Group", name: "Name", project: "Project" };

export class Controls {
  constructor(board) {
    this._board = board;
    const change = (changes) => board.change(changes);
    this._find = h("input", {
      type: "search",
      placeholder: "Filter keys, or /regex/",
      "aria-label": "Filter keys",
      oninput: () => change({ find: this._find.value }),
    });
    this._findError = h("span", { class: "error", role: "status" });
    this._x = select("X axis", (value) => change({ x: value === usualX(board.side) ? null : value, zoom: null }));
    for (const event of ["pointerenter", "focus"]) this._x.addEventListener(event, () => this._offerKeys());
    this._smooth = h("input", {
      type: "range",
      min: 0,
      max: SMOOTHINGS.length - 1,
      "aria-label": "Smoothing",
      title: SMOOTHING,
      oninput: () => change({ smooth: SMOOTHINGS[this._smooth.value] || null }),
    });
    this._smoothText = h("output", {});
    this._logX = check("Log x", "logx", change);
    this._logY = check("Log y", "logy", change);
    this._outliers = check("Outliers at the edge", "y", change, "robust");
    this._outliers.title = "The range of y shows the bulk; what lies beyond is an arrow at the edge, and counted";
    this._attempts = select("Attempts", (value) => change({ attempts: value || null }), [["", "Newest attempt"], ["all", "All attempts"]]);
    this._ranks = select("Ranks", (value) => change({ ranks: value || null }), [["", "Main rank"], ["all", "All ranks"]]);
    this._group = select("Group runs", (value) => change({ group: value || null, members: null }));
    this._band = select("Band", (value) => change({ band: value || null }), [["", "Quartiles"], ["range", "Min to max"]]);
    const showEvents = (event) => change({ events: event.target.checked ? null : "0" });
    this._events = h("label", { class: "chart-check" }, h("input", { type: "checkbox", onchange: showEvents }), "Events");
    this._size = select("Size of charts", (value) => change({ size: value === "m" ? null : value }), Object.entries(SIZES));
    this._reset = h("button", { onclick: () => board.zoom(null) }, "Reset zoom");
    this._status = h("span", { class: "status", role: "status" });
    this.bar = h(
      "div",
      { class: "chart-bar", role: "toolbar", "aria-label": "Charts" },
      this._find,
      this._findError,
      h("label", { class: "named" }, "x ", this._x),
      h("label", { class: "named" }, "Smooth ", this._smooth, this._smoothText),
      this._logX,
      this._logY,
      this._outliers,
      this._attempts,
      this._ranks,
      h("label", { class: "named" }, "Group by ", this._group),
      this._band,
      this._events,
      this._size,
      this._reset,
      this._status,
    );
    this.list = h("ul", { class: "run-list", "aria-label": "Runs" });
  }

  /** Show the view in all controls; the text that a user types in stays as it is. */
  update() {
    const { view } = this._board;
    if (document.activeElement !== this._find) this._find.value = view.find;
    if (this._x.value !== view.x) {
      if (![...this._x.options].some((option) => option.value === view.x)) this._offerX(xKey(view) ? [xKey(view)] : []);
      this._x.value = view.x;
    }
    const nearest = SMOOTHINGS.findLastIndex((each) => each <= view.smooth);
    if (SMOOTHINGS[this._smooth.value] !== view.smooth) this._smooth.value = nearest;
    this._smoothText.textContent = view.smooth ? `${view.smooth} %` : "off";
    this._smooth.setAttribute("aria-valuetext", view.smooth ? `${view.smooth} percent of the visible range` : "off");
    this._logX.firstChild.checked = view.logX;
    this._logY.firstChild.checked = view.logY;
    this._outliers.firstChild.checked = view.robust;
    this._attempts.value = view.allAttempts ? "all" : "";
    this._ranks.value = view.allRanks ? "all" : "";
    this._group.value = view.group;
    this._band.value = view.band === "range" ? "range" : "";
    this._band.hidden = !view.group;
    this._events.firstChild.checked = view.events;
    this._size.value = view.size;
    this._reset.hidden = !view.zoom;
  }

  filterError(text) {
    this._findError.textContent = text ? "This is no regular expression" : "";
    this._findError.title = text ?? "";
    this._find.setAttribute("aria-invalid", Boolean(text));
  }

  /** Offer what the runs have: keys for x, settings to group by; and list the runs. */
  offer() {
    const board = this._board;
    const runs = [...board.runs.values()];
    this._offered = -1;
    const names = new Set(runs.flatMap((run) => [...run.settings.keys()]));
    const several = [...names].filter((name) => new Set(runs.map((run) => JSON.stringify(run.settings.get(name)))).size > 1);
    const settings = (several.length ? several : [...names]).sort().slice(0, MOST_SETTINGS);
    const given = board.view.group;
    if (given.startsWith(CONFIG) && !settings.includes(given.slice(CONFIG.length))) settings.push(given.slice(CONFIG.length));
    fill(
      this._group,
      h("option", { value: "" }, "nothing"),
      Object.entries(BY).map(([value, text]) => h("option", { value }, text)),
      h("optgroup", { label: "Settings" }, settings.map((name) => h("option", { value: CONFIG + name }, name))),
    );
    this._attempts.hidden = !runs.some((run) => run.attempts > 1) && !board.view.allAttempts;
    this._ranks.hidden = !runs.some((run) => run.ranks.length > 1) && !board.view.allRanks;
    this._group.parentElement.hidden = runs.length < 2 && !given;
    this.update();
    this.listRuns();
  }

  /** Offer all keys along x, once somebody is about to choose: there may be thousands. */
  _offerKeys() {
    const { keys, view } = this._board;
    if (this._offered === keys.size) return;
    this._offered = keys.size;
    const chosen = xKey(view);
    this._offerX([...new Set([...keys.keys(), ...(chosen ? [chosen] : [])])].sort());
    this._x.value = view.x;
  }

  _offerX(keys) {
    fill(
      this._x,
      Object.entries(X_KINDS).map(([value, text]) => h("option", { value }, text)),
      h(
        "optgroup",
        { label: "Another key: its last value at or before each point" },
        keys.map((key) => h("option", { value: xOfKey(key) }, key)),
      ),
    );
  }

  listRuns() {
    const board = this._board;
    const { view } = board;
    fill(this.list, board.ids.map((id) => this._item(id)));
    this.list.hidden = board.ids.length < 2;
    if (!view.group || view.x !== "step") return;
    const groups = Map.groupBy(board.ids.filter((id) => board.runs.has(id)), (id) => board.groupOf(id));
    for (const [value, ids] of groups) {
      if (!value || ids.length < 2) continue;
      const is = view.members.has(value);
      const name = `${view.group}=${value}`;
      const title = is ? "Show these runs as a band" : "Show each of these runs";
      const button = h(
        "button",
        { class: "chip", "aria-pressed": String(is), title, onclick: () => board.toggleMembers(value) },
        swatch(board.numberOf(name)),
        `${view.group.replace(CONFIG, "")} = ${value} (${ids.length} runs)`,
      );
      this.list.prepend(h("li", {}, button));
    }
  }

  /** Show how old the newest data is, while something goes on; and why nothing comes. */
  status() {
    const board = this._board;
    const live = board.liveRuns.length;
    const now = Date.now() * 1e6 + board.clockNs;
    const text = live && board.lastDataNs ? `last data ${ago(board.lastDataNs, now)}` : "";
    fill(this._status, board.trouble && h("span", { class: "error" }, `${board.trouble} `), text);
  }

  _item(id) {
    const board = this._board;
    const run = board.runs.get(id);
    if (!run) return h("li", { class: "dim" }, `${id}: ${board.unknown?.includes(id) ? "no such run here" : "loading"}`);
    const isHidden = board.view.hidden.has(id);
    const toggle = h(
      "button",
      {
        class: "chip",
        "aria-pressed": String(!isHidden),
        title: `${isHidden ? "Show" : "Hide"} ${id}`,
        onclick: () => board.change({ hide: toggled(board.view.hidden, id) }),
      },
      swatch(board.numberOf(id)),
      board.nameOf(id),
    );
    const link = { href: address.link(["run", id]), title: "Open this run", "aria-label": `Open ${board.nameOf(id)}` };
    return h("li", { class: isHidden ? "is-hidden" : "" }, toggle, h("a", link, "→"));
  }
}

function select(label, choose, options = []) {
  const items = options.map(([value, text]) => h("option", { value }, text));
  const made = h("select", { "aria-label": label, onchange: () => choose(made.value) }, items);
  return made;
}

function check(text, name, change, on = "1") {
  const box = h("input", { type: "checkbox", onchange: () => change({ [name]: box.checked ? on : null }) });
  return h("label", { class: "chart-check" }, box, text);
}
