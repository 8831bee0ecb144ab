// One chart: the curves of one key over the chosen runs. It loads when it is mounted, paints when the board has time for
// it (`Board.paintSoon`), and gives its memory back when it is unmounted.

import { perFrame } from "../core/dom.js";
import { showError } from "../core/messages.js";
import { bandShapes, eventShapes, gapShapes } from "./band_shapes.js";
import { curveShapes } from "./curve_shapes.js";
import { ChartText } from "./chart_text.js";
import { counts, kindOf, layers } from "./layers.js";
import { mostFor } from "./loader.js";
import { gapsInX, placeOf } from "./marks.js";
import { paint } from "./pen.js";
import { Plot } from "./plot.js";
import { stepsOfTimes, xOf } from "./transform.js";
import { stepsIn, xKey } from "./view_state.js";

const MARGIN = 0.02; // of the visible range, loaded on each side
const MARK_REACH = 6; // CSS pixels from the cursor to an event whose text it shows
const AGAIN_MS = 2_000; // between two loads of all of a chart that new points do not fit into
const MANY_RUNS = 12; // from here on lines are thin
const ZOOM = 2; // of a key or a turn of the wheel

export class Chart {
  /** `body`: an empty element with a size of its own. `isLarge`: it fills the window, with all there is. */
  constructor(board, key, body, { isLarge = false } = {}) {
    this.board = board;
    this.key = key;
    this.isLarge = isLarge;
    this.whole = new Map(); // run -> curve over all steps
    this.zoomed = new Map(); // run -> curve of the visible range
    this.bands = []; // {name, value, band}
    this.shown = null;
    this.shapes = [];
    this.marks = { events: [], gaps: [] };
    this._zoomedFor = this._bandsFor = "";
    this._most = 0; // buckets that were asked for
    this._loading = null;
    this._cursorX = null;
    this._readout = perFrame(() => this._showReadout());
    this.text = new ChartText(this, body);
    this._setUp();
    this._resizer = new ResizeObserver(() => this._resized());
    this._resizer.observe(this.text.plotBox);
    this._keys = (event) => this._key(event);
    this.text.plotBox.addEventListener("keydown", this._keys);
    this.text.plotBox.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
    this.load();
  }

  /** Draw the view of now with what is loaded, and load what is missing. `isOther`: x or the data have another meaning. */
  changed({ isOther = false } = {}) {
    const made = this._made;
    const { view } = this.board;
    if (isOther || made.x !== view.x || made.logX !== view.logX || made.logY !== view.logY) {
      if (isOther || made.x !== view.x) this._forget();
      this.plot.destroy();
      this._setUp();
    }
    this.board.paintSoon(this);
    this.load();
  }

  close() {
    clearTimeout(this._again);
    this._loading?.abort();
    this._resizer.disconnect();
    this.plot.destroy();
    this.text.close();
    this.isClosed = true;
  }

  /** Return run -> the curve that is best for the visible range. */
  best() {
    const isZoomed = this._zoomedFor === this._zoomName();
    const found = new Map();
    for (const run of this.board.singles(this.key)) {
      const curve = (isZoomed && this.zoomed.get(run)) || this.whole.get(run);
      if (curve) found.set(run, curve);
    }
    return found;
  }

  /** Return whether curves are shown that new points can be added to; x of another key is asked for anew. */
  takesPoints(run) {
    return this.whole.has(run) && !xKey(this.board.view);
  }

  /** Add points of a run; false: they do not fit, load anew. */
  append(run, { at, attempt, rank, steps, values, times }) {
    const curves = [this.whole.get(run), this.zoomed.get(run)].filter(Boolean);
    const { view } = this.board;
    if (attempt !== null && attempt !== this.board.attemptOf(run)) return false;
    for (const curve of curves) {
      if (at <= curve.at || (!view.allRanks && rank !== null && curve.rank !== null && rank !== curve.rank)) continue;
      const isZoomed = curve === this.zoomed.get(run);
      if (isZoomed && !this._isFollowed(curve, steps[0])) continue;
      for (let i = 0; i < steps.length; i++) if (!curve.append(steps[i], values[i], times[i])) return false;
      curve.at = at;
      curve.coarsen(2 * this.most);
    }
    this.board.paintSoon(this);
    return true;
  }

  /** Load all of it anew, not more often than every few seconds: bands, x by another key, steps that are logged again. */
  loadSoon() {
    this._again ||= setTimeout(() => {
      this._again = 0;
      if (!this.isClosed) this.load({ isAnew: true });
    }, AGAIN_MS);
  }

  /** Load what is not there, or all of it. */
  async load({ isAnew = false } = {}) {
    this._loading?.abort();
    const ender = (this._loading = new AbortController());
    isAnew ||= this.most > this._most; // it has become wider: more buckets are needed
    this._most = Math.max(this._most, this.most);
    if (isAnew) this._zoomedFor = this._bandsFor = "";
    this.text.busy(true);
    try {
      await Promise.all([this._loadCurves(isAnew, ender.signal), this._loadBands(ender.signal)]);
      if (!ender.signal.aborted) this.board.live.settle();
    } catch (error) {
      if (error.name !== "AbortError") showError(error);
    } finally {
      if (this._loading === ender) {
        this.text.busy(false);
        this.board.paintSoon(this);
      }
    }
  }

  /** Paint: called by the board. */
  draw() {
    if (this.isClosed) return;
    const { view } = this.board;
    this.shown = layers(view, this.board.runs, this.best(), this.bands);
    this._place();
    this.plot.show(this.shown.x, this.shown.y);
    this.counts = counts(this.shown, view);
    this.text.update(this.shown, this.counts);
    if (this._cursorX !== null) this._readout();
  }

  /** Show the cursor of another chart. */
  follow(x) {
    if (this.shown) this.plot.cursor(x !== null && x >= this.shown.x[0] && x <= this.shown.x[1] ? x : null);
  }

  get most() {
    return mostFor((this.text.plotBox.clientWidth || 400) * devicePixelRatio);
  }

  _setUp() {
    const { view } = this.board;
    this._made = { x: view.x, logX: view.logX, logY: view.logY };
    this.plot = new Plot(this.text.plotBox, {
      kind: kindOf(view),
      logX: view.logX,
      logY: view.logY,
      palette: () => this.board.palette,
      size: this._size(),
      handlers: {
        paint: (frame, context) => this._paint(frame, context),
        cursor: (left) => this._moved(left),
        select: (low, high) => this.board.zoom([low, high]),
        reset: () => this.board.zoom(null),
      },
    });
    this.text.canvas(this.plot.canvas);
  }

  _size() {
    return { width: Math.max(120, this.text.plotBox.clientWidth), height: Math.max(90, this.text.plotBox.clientHeight) };
  }

  _resized() {
    if (this.isClosed || !this.text.plotBox.clientWidth) return;
    this.plot.resize(this._size());
    if (this.most > this._most) this.load();
  }

  _forget() {
    this.whole.clear();
    this.zoomed.clear();
    this.bands = [];
    this._zoomedFor = this._bandsFor = "";
  }

  async _loadCurves(isAnew, signal) {
    const { view, loader } = this.board;
    const wanted = this.board.singles(this.key);
    const missing = isAnew ? wanted : wanted.filter((run) => !this.whole.has(run));
    const asked = { key: this.key, most: this.most, allAttempts: view.allAttempts, allRanks: view.allRanks, signal };
    const zoom = view.zoom && padded(view.zoom);
    const zoomName = this._zoomName();
    const isMissing = zoom && this._zoomedFor !== zoomName;
    const take = (into, curves) => {
      if (signal.aborted) return;
      for (const [run, curve] of curves) into.set(run, curve);
      this.board.paintSoon(this);
    };
    const whole = async () => {
      if (!missing.length) return;
      const x = xKey(view);
      take(this.whole, await (x ? loader.xy({ ...asked, runs: missing, x }) : loader.curves({ ...asked, runs: missing })));
    };
    const zoomed = async () => {
      if (!isMissing) return;
      const found = new Map();
      const add = async (question) => {
        for (const [run, curve] of await question) found.set(run, curve);
      };
      if (xKey(view)) await add(loader.xy({ ...asked, runs: wanted, x: xKey(view), zoom }));
      else if (view.x === "step") {
        const steps = stepsIn(zoom);
        await add(loader.curves({ ...asked, runs: wanted, steps }));
      } else {
        const ranges = wanted.map((run) => this._stepsOf(run, zoom)).filter(({ steps }) => steps);
        await Promise.all(ranges.map(({ run, steps }) => add(loader.curves({ ...asked, runs: [run], steps }))));
      }
      if (signal.aborted) return;
      this.zoomed = found;
      this._zoomedFor = zoomName;
      this.board.paintSoon(this);
    };
    if (view.x === "relative" || view.x === "time") {
      await whole(); // steps of a time are found in it
      await zoomed();
    } else await Promise.all([whole(), zoomed()]);
  }

  _stepsOf(run, zoom) {
    const curve = this.whole.get(run);
    if (!curve) return { run, steps: null };
    const x = xOf(curve, this.board.view.x, this.board.runs.get(run)?.startS ?? 0);
    return { run, steps: stepsOfTimes(curve, x, zoom[0], zoom[1]) };
  }

  async _loadBands(signal) {
    const { view } = this.board;
    const groups = this.board.groups(this.key);
    const name = JSON.stringify([groups.map((each) => [each.name, each.runs]), view.zoom, view.band]);
    if (this._bandsFor === name) return;
    const zoom = view.zoom && padded(view.zoom);
    const steps = zoom && stepsIn(zoom);
    const asked = { key: this.key, most: this.most, steps, kind: view.band, signal };
    const found = await Promise.all(
      groups.map(async (group) => ({ ...group, band: await this.board.loader.band({ ...asked, runs: group.runs }) })),
    );
    if (signal.aborted) return;
    this.bands = found.filter((each) => each.band?.length);
    this._bandsFor = name;
  }

  _zoomName() {
    const { view } = this.board;
    return view.zoom ? JSON.stringify([view.zoom, this.board.singles(this.key)]) : "none";
  }

  /** Return whether a curve of the visible range ends where the run does: then it grows with it. */
  _isFollowed(curve, step) {
    const zoom = this.board.view.zoom;
    return this.board.view.x === "step" ? step <= zoom[1] : step > curve.lastStep;
  }

  /** Work out where events and gaps lie. */
  _place() {
    const { kind, curves } = this.shown;
    const { board } = this;
    this.marks = { events: [], gaps: [] };
    const runs = new Set([...curves.map((each) => each.run), ...board.membersOfBands(this.key)]);
    for (const run of runs) {
      const found = board.marks.get(run);
      if (!found) continue;
      const startS = board.runs.get(run)?.startS ?? 0;
      const laid = curves.find((each) => each.run === run);
      this.marks.gaps.push(...gapsInX(found.gaps, kind, startS).map((gap) => ({ run, ...gap })));
      if (!board.view.events) continue;
      for (const event of found.events) {
        const x = placeOf(event, kind, startS, laid);
        if (Number.isFinite(x)) this.marks.events.push({ ...event, x });
      }
    }
    this.marks.events.sort((a, b) => a.x - b.x);
  }

  /** Make the shapes for a frame, and paint them. */
  _paint(frame, context) {
    if (!this.shown) return;
    this.shapes = this.shapesOf(frame);
    paint(context, frame, this.shapes);
  }

  /** Return all shapes of the chart for a frame. */
  shapesOf(frame) {
    const { board, shown } = this;
    const { palette } = board;
    const lineOf = board.lineOf();
    const made = gapShapes(frame, this.marks.gaps, palette.warn);
    const colourOf = (event) => ({ error: palette.bad, warning: palette.warn }[event.kind] ?? palette.dim);
    made.push(...eventShapes(frame, this.marks.events, colourOf));
    for (const { name, band } of shown.bands) made.push(...bandShapes(frame, band, lineOf(name)));
    const marks = []; // above all lines
    const isThin = shown.curves.length > MANY_RUNS || shown.bands.length > 0;
    for (const { run, curve, x, from, to, smoothed } of shown.curves) {
      const options = { smoothed, isThin, isSpread: board.view.allRanks };
      for (const shape of curveShapes(frame, curve, x, [from, to], lineOf(run), options)) {
        (shape.kind === "mark" ? marks : made).push(shape);
      }
    }
    made.push(...marks);
    return made;
  }

  _moved(left) {
    if (!this.shown) return;
    this._cursorX = left >= 0 ? this.plot.at(left) : null;
    this._readout();
    this.board.followers(this, this._cursorX);
  }

  _showReadout() {
    const x = this._cursorX;
    if (this.isClosed || x === null || !this.shown) return this.text.hideReadout();
    const left = this.plot.leftOf(x);
    const events = this.marks.events.filter((event) => Math.abs(this.plot.leftOf(event.x) - left) <= MARK_REACH);
    const gaps = this.marks.gaps.filter(
      (gap) => this.plot.leftOf(gap.from) - MARK_REACH <= left && left <= this.plot.leftOf(gap.to) + MARK_REACH,
    );
    const named = (mark) => (this.board.runs.size > 1 ? `${this.board.nameOf(mark.run)}: ${mark.text}` : mark.text);
    this.text.showReadout(x, left, [...events, ...gaps].map(named));
  }

  _key(event) {
    const { key, shiftKey } = event;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.shown) return;
    if (key in moves) this._step(moves[key] * (shiftKey ? 10 : 1));
    else if (key === "+" || key === "=") this._scale(1 / ZOOM);
    else if (key === "-") this._scale(ZOOM);
    else if (key === "Enter") this.board.expand(this.key);
    else if (key === "Escape" && this._cursorX !== null) this._leave();
    else if (key === "Escape" && this.board.view.zoom) this.board.zoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Move the cursor by so many points of the curve that has the most of them. */
  _step(by) {
    const { curves, bands, x } = this.shown;
    const longest = [...curves.map((each) => each.x.subarray(each.from, each.to)), ...bands.map((each) => each.band.x)]
      .map((array) => Array.from(array).filter((value) => value >= x[0] && value <= x[1]))
      .reduce((a, b) => (b.length > a.length ? b : a), []);
    if (!longest.length) return;
    let at = this._cursorX === null ? (by < 0 ? longest.length : -1) : longest.findLastIndex((value) => value <= this._cursorX + 1e-9);
    at = Math.min(longest.length - 1, Math.max(0, at + by));
    this._cursorX = longest[at];
    this.plot.cursor(this._cursorX);
    this._readout();
    this.board.followers(this, this._cursorX);
  }

  _leave() {
    this._cursorX = null;
    this.plot.cursor(null);
    this._readout();
    this.board.followers(this, null);
  }

  /** Zoom around the cursor, or the middle; never beyond all there is. */
  _scale(by) {
    const { x } = this.shown;
    const { logX } = this.board.view;
    const [low, high] = logX ? x.map(Math.log) : x;
    const middle = this._cursorX === null ? (low + high) / 2 : logX ? Math.log(this._cursorX) : this._cursorX;
    const made = [middle - (middle - low) * by, middle + (high - middle) * by];
    if (by > 1 && !this.board.view.zoom) return;
    this.board.zoom(logX ? made.map(Math.exp) : made);
  }

  /** Pinch, or the wheel with Ctrl held: the page scrolls otherwise. */
  _wheel(event) {
    if (!event.ctrlKey || !this.shown) return;
    event.preventDefault();
    this._scale(event.deltaY < 0 ? 1 / ZOOM : ZOOM);
  }
}

function padded([low, high]) {
  const room = high * MARGIN - low * MARGIN;
  return [Math.max(low - room, -Number.MAX_VALUE), Math.min(high + room, Number.MAX_VALUE)];
}
