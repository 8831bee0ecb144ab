// What is done to several runs at once: compared, tagged, put into a group, renamed, deleted. Each can be undone.

import { link } from "../core/address.js";
import { send } from "../core/api.js";
import { panel } from "../core/dialog.js";
import { fill, h } from "../core/dom.js";
import { show, showError } from "../core/messages.js";
import * as session from "../core/session.js";
import { cut } from "./cells.js";

const AT_ONCE = 1000; // runs of one request
const MAX_SHOWN = 200; // ids in one link, and runs of one question for curves
const MAX_TAGS = 40; // that a panel offers

/** The bar of the runs that are selected; it is hidden where none is. */
export class Actions {
  /** `runs`: the model; `clear()` ends the selection. */
  constructor(runs, clear) {
    this._runs = runs;
    this._clear = clear;
    this.element = h("div", { class: "bulk", role: "region", "aria-label": "Selected runs", hidden: true });
  }

  /** Show the bar for these ids; `listed` of them match the filter. */
  show(ids, listed) {
    this._ids = ids;
    this.element.hidden = !ids.length;
    if (!ids.length) return;
    const text = `${ids.length.toLocaleString("en")} selected${listed < ids.length ? ` (${ids.length - listed} not listed)` : ""}`;
    fill(
      this.element,
      h("span", { class: "count", role: "status" }, text),
      this._view("Charts", "charts", "main"),
      this._view("Compare", "compare"),
      this._button("Add tag…", "edit", (anchor) => this._addTag(anchor)),
      this._button("Remove tag…", "edit", (anchor) => this._removeTag(anchor)),
      this._button("Set group…", "edit", (anchor) => this._setGroup(anchor)),
      ids.length === 1 && this._button("Rename…", "edit", (anchor) => this._rename(anchor)),
      this._button("Delete", "admin", () => this.delete(), "bad"),
      h("button", { class: "plain", onclick: this._clear, "aria-label": "Clear the selection" }, "×"),
    );
  }

  /** Delete the runs that are selected; they can be taken back. */
  async delete() {
    const ids = this._ids ?? [];
    if (!ids.length || !session.may("admin")) return;
    const done = await each("runs/delete", ids, {});
    this._runs.apply([], done);
    this._clear();
    const undo = async () => {
      await each("runs/undelete", done, {});
      await this._runs.reload();
    };
    if (done.length)
      show(`${runs(done.length)} deleted. The collector keeps them for some days.`, {
        action: ["Undo", guarded(undo)],
      });
  }

  /** Return the link to a view of all that is selected. */
  _view(label, name, kind = "") {
    if (this._ids.length <= MAX_SHOWN)
      return h("a", { class: `button ${kind}`, href: link([name], { run: this._ids }) }, label);
    return h("button", { class: kind, disabled: true, title: `At most ${MAX_SHOWN} runs are shown together` }, label);
  }

  _button(label, role, work, kind = "") {
    const may = session.may(role);
    const made = h(
      "button",
      {
        class: kind,
        disabled: !may,
        title: may ? null : `Your token lacks the role ${role}.`,
        onclick: () => guarded(() => work(made))(),
      },
      label,
    );
    return made;
  }

  _addTag(anchor) {
    this._ask(anchor, "Tag", "", (tag) =>
      this._changeTags({ tags: [tag] }, { untag: [tag] }, (run) => !run.tags.includes(tag), `tagged ${tag}`, [
        (run) => [...run.tags, tag],
        (run) => run.tags.filter((one) => one !== tag),
      ]),
    );
  }

  _removeTag(anchor) {
    const there = new Map();
    for (const run of this._selected()) for (const tag of run.tags) there.set(tag, (there.get(tag) ?? 0) + 1);
    const remove = (tag) =>
      guarded(() =>
        this._changeTags({ untag: [tag] }, { tags: [tag] }, (run) => run.tags.includes(tag), `no longer tagged ${tag}`, [
          (run) => run.tags.filter((one) => one !== tag),
          (run) => [...run.tags, tag],
        ]),
      );
    const shown = [...there].slice(0, MAX_TAGS).map(([tag, count]) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            class: "plain label",
            onclick: () => {
              close();
              remove(tag)();
            },
          },
          h("bdi", {}, cut(tag, 60)),
          h("span", { class: "dim" }, ` ${count}`),
        ),
      ),
    );
    const close = panel(
      anchor,
      "Remove a tag",
      h("ul", { class: "views" }, shown.length ? shown : h("li", { class: "dim" }, "These runs have no tags.")),
    );
  }

  _setGroup(anchor) {
    this._ask(anchor, "Group", this._selected()[0]?.group ?? "", (group) =>
      this._setText("group", group, `put into the group ${group}`),
    );
  }

  _rename(anchor) {
    this._ask(anchor, "Name", this._selected()[0]?.name ?? "", (name) =>
      this._setText("name", name, `renamed to ${name}`),
    );
  }

  _ask(anchor, label, value, work) {
    const field = h("input", { value, "aria-label": label, required: true, maxlength: 200 });
    const submit = (event) => {
      event.preventDefault();
      const given = field.value.trim();
      if (!given) return;
      close();
      guarded(() => work(given))();
    };
    const close = panel(
      anchor,
      label,
      h(
        "form",
        { class: "row", onsubmit: submit },
        h("label", {}, label, " ", field),
        h("button", { class: "main" }, "Set"),
      ),
    );
    field.select();
  }

  /** Change those of the selected runs for which `concerns` holds; undoing changes the same ones back. */
  async _changeTags(changes, undoing, concerns, words, [next, back]) {
    const ids = this._selected()
      .filter(concerns)
      .map((run) => run.id);
    if (!ids.length) return show("Nothing to change: it is so already.");
    const done = await this._edit(ids, "tags", changes, next);
    const undo = () => this._edit(done, "tags", undoing, back);
    if (done.length) show(`${runs(done.length)} ${cut(words, 120)}.`, { action: ["Undo", guarded(undo)] });
  }

  async _setText(field, value, words) {
    const before = new Map();
    for (const run of this._selected()) before.set(run[field], [...(before.get(run[field]) ?? []), run.id]);
    const ids = this._selected().map((run) => run.id);
    const done = await this._edit(ids, field, { [field]: value }, () => value);
    const undo = async () => {
      for (const [old, those] of before) {
        const wanted = those.filter((id) => done.includes(id));
        await this._edit(wanted, field, { [field]: old }, () => old);
      }
    };
    if (done.length) show(`${runs(done.length)} ${cut(words, 120)}.`, { action: ["Undo", guarded(undo)] });
  }

  /** Edit a field of runs, and show `next(run)` as its value; returns the ids of those that were changed. */
  _edit(ids, field, changes, next) {
    return this._runs.edit(ids, field, () => each("runs/edit", ids, changes), next);
  }

  _selected() {
    return this._ids.map((id) => this._runs.byId.get(id)).filter(Boolean);
  }
}

/** Ask the collector for a change of each of these runs; returns the ids of those that were changed. */
async function each(path, ids, changes) {
  const done = [];
  const wrong = [];
  for (let at = 0; at < ids.length; at += AT_ONCE) {
    const answer = await send("POST", path, {}, { body: { runs: ids.slice(at, at + AT_ONCE), ...changes } });
    for (const run of answer.runs) (run.done ? done : wrong).push(run.done ? run.run : run.message);
  }
  if (wrong.length) showError(new Error(`${runs(wrong.length)} not changed: ${wrong[0]}`));
  return done;
}

function guarded(work) {
  return async () => {
    try {
      await work();
    } catch (error) {
      if (error.reason === "unreachable") show(`Not done. ${error.message}`, { isError: true });
      else showError(error);
    }
  };
}

function runs(count) {
  return count === 1 ? "1 run" : `${count.toLocaleString("en")} runs`;
}
