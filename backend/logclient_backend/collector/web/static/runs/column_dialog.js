// The dialog in which a user chooses columns and puts them in order.

import { dialog } from "../core/dialog.js";
import { fill, h } from "../core/dom.js";
import { cut } from "./cells.js";
import { column, FIELDS } from "./columns.js";

const MAX_SHOWN = 200; // of the keys that match; a search finds the others
const PARTS = [
  ["last", "Metrics (last value)"],
  ["config", "Settings"],
  ["summary", "Summary"],
];

/** Show it. `ids`: the columns now; `keys`: the answer of /columns; `changed(ids)` is called after every change; null: usual ones. */
export function openColumns(ids, keys, changed) {
  let chosen = [...ids];
  const search = h("input", {
    type: "search",
    placeholder: "Search settings and metrics",
    "aria-label": "Search columns",
    oninput: show,
  });
  const there = h("div", { class: "choices" });
  const order = h("ol", { class: "order", "aria-label": "Columns that are shown, in their order" });

  function apply(next) {
    chosen = next;
    changed(chosen);
    synchronize();
  }

  /** Show what is chosen, without new boxes: the one that was clicked keeps the focus. */
  function synchronize() {
    for (const box of there.querySelectorAll("input")) box.checked = chosen.includes(box.value);
    fill(order, chosen.map(row));
  }

  function toggle(id, isOn) {
    apply(isOn ? [...chosen, id] : chosen.filter((each) => each !== id));
  }

  function move(id, by) {
    const at = chosen.indexOf(id);
    const to = Math.max(1, Math.min(chosen.length - 1, at + by)); // the name stays first
    const next = chosen.filter((each) => each !== id);
    next.splice(to, 0, id);
    apply(next);
    const label = by < 0 ? "Up" : "Down";
    order.querySelector(`li:nth-child(${to + 1}) button[data-move="${label}"]`)?.focus();
  }

  function choice(id, label, detail) {
    const box = h("input", {
      type: "checkbox",
      value: id,
      disabled: id === "name",
      onchange: () => toggle(id, box.checked),
    });
    return h(
      "label",
      { title: cut(label, 2000) },
      box,
      h("bdi", {}, cut(label, 120)),
      detail && h("span", { class: "dim" }, detail),
    );
  }

  function show() {
    const wanted = search.value.trim().toLowerCase();
    const matches = (text) => text.toLowerCase().includes(wanted);
    const parts = [["Run", FIELDS.filter((each) => matches(each.label)).map((each) => choice(each.id, each.label))]];
    for (const [part, title] of PARTS) {
      const found = (keys?.[part] ?? []).filter((each) => matches(each.key));
      const shown = found
        .slice(0, MAX_SHOWN)
        .map((each) =>
          choice(`${part}::${each.key}`, each.key, each.runs < keys.runs ? `${each.runs} of ${keys.runs} runs` : ""),
        );
      if (found.length > MAX_SHOWN)
        shown.push(h("p", { class: "dim" }, `${found.length - MAX_SHOWN} more: search for them.`));
      parts.push([title, shown]);
    }
    const sections = parts
      .filter(([, shown]) => shown.length)
      .map(([title, shown]) => h("section", {}, h("h3", {}, title), shown));
    fill(there, sections.length ? sections : h("p", { class: "dim" }, "No column has that name."));
    synchronize();
  }

  function row(id, at) {
    const shown = column(id);
    const label = cut(shown?.label ?? id, 60);
    const button = (word, sign, by) =>
      h(
        "button",
        {
          class: "plain",
          dataset: { move: word },
          onclick: () => move(id, by),
          disabled: at === 0 || at + by < 1 || at + by >= chosen.length,
          "aria-label": `${word}: ${label}`,
        },
        sign,
      );
    return h(
      "li",
      {},
      h(
        "span",
        { class: "label", title: cut(shown?.label ?? id, 2000) },
        h("bdi", {}, label),
        h("span", { class: "dim" }, shown?.part ? ` ${shown.group.toLowerCase()}` : ""),
      ),
      button("Up", "↑", -1),
      button("Down", "↓", 1),
      h(
        "button",
        { class: "plain", onclick: () => toggle(id, false), disabled: at === 0, "aria-label": `Remove: ${label}` },
        "×",
      ),
    );
  }

  show();
  const usual = h(
    "button",
    {
      onclick: () => {
        chosen = changed(null);
        synchronize();
      },
    },
    "Usual columns",
  );
  const left = h("div", { class: "side" }, search, there);
  const right = h("div", { class: "side" }, h("div", { class: "sidehead" }, h("h3", {}, "Shown"), usual), order);
  dialog("Columns", h("div", { class: "two" }, left, right), { className: "choose-columns" });
  search.focus();
}
