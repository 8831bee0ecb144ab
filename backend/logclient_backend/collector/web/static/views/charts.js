// Charts of one or several runs: `#/charts?run=A&run=B`, and inside a run's page.

import * as address from "../core/address.js";
import { perFrame, fill, h } from "../core/dom.js";
import { showError } from "../core/messages.js";
import { Board } from "../charts/board.js";
import { Controls } from "../charts/controls.js";
import { Expanded } from "../charts/expanded.js";
import { Sections } from "../charts/sections.js";
import { matcher, read } from "../charts/view_state.js";

const SECOND_MS = 1000;

/**
 * Show the charts in `root`. `runs`: ids of the runs; default: those of the address. `hasTitle`: false leaves the title out,
 * for a page that has its own. `side`: "system" for host and device metrics, instead of what was logged.
 */
export function open(root, now, { runs, hasTitle = !runs, side = "" } = {}) {
  let page = show(root, now, runs, hasTitle, side);
  return {
    update(next) {
      if (!runs && next.params.getAll("run").join("\n") !== page.board.ids.join("\n")) {
        page.close();
        page = show(root, next, runs, hasTitle, side);
      } else page.board.take(read(next.params, side));
    },
    close: () => page.close(),
  };
}

function show(root, now, runs, hasTitle, side) {
  const ids = [...new Set(runs ?? now.params.getAll("run"))];
  const board = new Board(ids, read(now.params, side), side);
  const controls = new Controls(board);
  const grid = h("div", { class: "chart-sections" });
  const sections = new Sections(board, grid);
  const expanded = new Expanded(board, root);
  const list = perFrame(() => {
    const { view } = board;
    const matches = matcher(view.find);
    controls.filterError(matches.error);
    grid.dataset.size = view.size;
    sections.show([...board.keys.keys()], matches);
    expanded.update();
  });
  board.onRuns = () => controls.offer();
  board.onKeys = () => {
    controls.offer();
    list();
  };
  board.onStatus = () => controls.status();
  board.onView = (before) => {
    controls.update();
    if (before.hidden !== board.view.hidden || before.group !== board.view.group) controls.listRuns();
    list();
  };
  const title = hasTitle && h("h1", { class: ids.length === 1 ? "" : "visually-hidden" }, ids.length === 1 ? ids[0] : "Charts");
  fill(root, title, controls.bar, controls.list, grid);
  controls.offer();
  const timer = setInterval(() => controls.status(), SECOND_MS);
  if (!ids.length) {
    fill(grid, h("p", {}, "No runs are chosen: ", h("a", { href: address.link(["runs"]) }, "choose some in the list of runs"), "."));
  } else {
    board
      .open()
      .then(() => {
        if (title && ids.length === 1) title.textContent = board.nameOf(ids[0]);
        controls.status();
      })
      .catch(showError);
  }
  return {
    board,
    close() {
      clearInterval(timer);
      expanded.close();
      sections.close();
      board.close();
    },
  };
}
