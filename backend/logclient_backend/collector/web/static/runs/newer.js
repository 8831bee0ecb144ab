// What has come of runs while questions are under way. An answer has the runs as they were when it was asked for, or soon
// after: it must not take back what came meanwhile by the stream, by an edit, or by a question asked later.
//
// Nothing is kept while no question is under way.

export class Newer {
  constructor() {
    this._now = 0; // counts questions and what comes
    this._asked = new Set(); // questions under way
    this._fields = new Map(); // id -> field -> {when, value}
    this._gone = new Map(); // id -> when
  }

  /** A question begins: returns its moment. Call `end` with it, whatever becomes of the question. */
  begin() {
    this._asked.add((this._now += 1));
    return this._now;
  }

  end(asked) {
    this._asked.delete(asked);
    if (this._asked.size) return;
    this._fields.clear();
    this._gone.clear();
  }

  /** Note fields of a run, which has gone where they are null; as of the moment of a question, or of now. */
  note(id, fields, when = (this._now += 1)) {
    if (!this._asked.size) return;
    if (!fields) return this._gone.set(id, when);
    let known = this._fields.get(id);
    if (!known) this._fields.set(id, (known = new Map()));
    for (const [field, value] of Object.entries(fields))
      if (when >= (known.get(field)?.when ?? 0)) known.set(field, { when, value });
  }

  /** Return the fields that an answer has of a run, each with what is known of it as of a later moment, if anything is. */
  over(id, fields, asked) {
    this.note(id, fields, asked);
    const known = this._fields.get(id);
    return Object.fromEntries(Object.keys(fields).map((field) => [field, known.get(field).value]));
  }

  /** Return whether this field of a run is known as of a later moment. */
  has(id, field, asked) {
    return (this._fields.get(id)?.get(field)?.when ?? 0) > asked;
  }

  /** Return whether a run has gone since. */
  isGone(id, asked) {
    return (this._gone.get(id) ?? 0) > asked;
  }
}
