// Which rows of the table are selected, and which one is active. Runs that a filter hides stay selected.

export class Selection {
  /** `changed()` is called after every change. */
  constructor(changed) {
    this.ids = new Set();
    this.items = [];
    this.active = -1;
    this._activeKey = "";
    this._from = ""; // key of the row from which a range goes
    this._runs = [];
    this._changed = changed;
  }

  /** Take over the rows as they are now, and the runs among them. */
  setItems(items, runs) {
    this.items = items;
    this._runs = runs;
    this.active = this._activeKey ? items.findIndex((item) => item.key === this._activeKey) : -1;
  }

  /** Return how many of the selected runs are in the table. */
  get listed() {
    return this._runs.reduce((count, run) => count + this.ids.has(run.id), 0);
  }

  get isAll() {
    return this._runs.length > 0 && this._runs.every((run) => this.ids.has(run.id));
  }

  clear() {
    this.ids.clear();
    this._from = "";
    this._changed();
  }

  all() {
    for (const run of this._runs) this.ids.add(run.id);
    this._changed();
  }

  activate(index) {
    this.active = index;
    this._activeKey = this.items[index]?.key ?? "";
    this._changed();
  }

  /** Make another row the active one; with `isRange` all rows up to it are selected. */
  move(to, isRange) {
    const before = this.active;
    const index = Math.max(0, Math.min(this.items.length - 1, to));
    if (!this.items.length) return;
    if (isRange) {
      this._from ||= this.items[Math.max(0, before)].key;
      this._selectRange(index);
    } else this._from = "";
    this.activate(index);
  }

  /** A row was clicked: with Shift all up to it are selected, else this one is, or is no longer. */
  click(index, { shiftKey }) {
    if (shiftKey && (this._from || this.active >= 0)) {
      this._from ||= this.items[this.active].key;
      this._selectRange(index);
      this._activeKey = this.items[index].key;
      this.active = index;
      this._changed();
    } else this.toggle(index);
  }

  toggle(index) {
    const item = this.items[index];
    if (!item) return;
    const ids = item.run ? [item.run.id] : item.group.runs.map((run) => run.id);
    const isOn = !ids.every((id) => this.ids.has(id));
    for (const id of ids) {
      if (isOn) this.ids.add(id);
      else this.ids.delete(id);
    }
    this._from = item.key;
    this.activate(index);
  }

  _selectRange(index) {
    const from = Math.max(
      0,
      this.items.findIndex((item) => item.key === this._from),
    );
    for (const item of this.items.slice(Math.min(from, index), Math.max(from, index) + 1))
      if (item.run) this.ids.add(item.run.id);
  }
}
