// What the processes of a run printed, folded to lines, newest last. Lines come page by page as one scrolls up; new ones come by
// themselves while the run lasts. A line that is open (a progress bar) is replaced by its newest state.

import * as address from "../core/address.js";
import { get } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { time } from "../core/format.js";
import { showError } from "../core/messages.js";

const PAGE = 400;
const MAX_LINES = 4_000; // on the page; the oldest go when new ones come
const EVERY_MS = 1_500;
const TYPING_MS = 200;
const EDGE_PX = 40; // from an end, where the next page is asked for

/** Show the tab in `root`. Its parameters: `rank` (id of a process), `stream`, `find`. */
export function open(root, { id, run }) {
  const ended = new AbortController();
  const text = h("div", { class: "console", role: "log", tabIndex: 0, "aria-label": "Output" });
  const bar = h("div", { class: "tool-bar" });
  const status = h("p", { class: "dim", role: "status" });
  let found = null; // the newest page
  let previous = 0; // cursor of the page before the oldest line; 0: there is none
  let isLive = false;
  let isAsking = false;
  let timer = 0;
  let round = 0; // answers of an earlier question are dropped
  fill(root, bar, text, status);

  const asked = () => {
    const { params } = address.current();
    return { run: id, process: params.get("process"), stream: params.get("stream"), search: params.get("find"), limit: PAGE };
  };

  async function load() {
    const mine = ++round;
    const page = await get("run/console", asked(), ended);
    if (mine !== round) return;
    found = page;
    previous = page.previous;
    fill(text, page.lines.map(row));
    text.scrollTop = text.scrollHeight;
    controls();
    say();
  }

  async function earlier() {
    if (isAsking || !previous) return;
    isAsking = true;
    const mine = round;
    try {
      const page = await get("run/console", { ...asked(), before: previous }, ended);
      if (mine !== round) return;
      previous = page.previous;
      const height = text.scrollHeight;
      text.prepend(...page.lines.map(row));
      text.scrollTop += text.scrollHeight - height; // what was read stays in place
      say();
    } finally {
      isAsking = false;
    }
  }

  async function later() {
    clearTimeout(timer);
    if (ended.signal.aborted) return;
    if (isLive && found?.process && !document.hidden) {
      const mine = round;
      try {
        const page = await get("run/console", { ...asked(), after: found.next }, ended);
        if (mine === round) add(page);
      } catch (error) {
        if (error.status === 404) showError(error);
      }
    } else if (isLive && !document.hidden && !found?.process) await load();
    timer = setTimeout(() => later().catch(showError), EVERY_MS);
  }

  function add(page) {
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < EDGE_PX;
    for (const open of text.querySelectorAll(".open")) open.remove(); // this page has them again
    text.append(...page.lines.map(row));
    for (let over = text.childElementCount - MAX_LINES; over > 0 && isAtEnd; over--) text.firstElementChild.remove();
    found = page;
    if (isAtEnd) text.scrollTop = text.scrollHeight;
    say();
  }

  function say() {
    const shown = found.processes.find((each) => each.process === found.process);
    const lost = shown?.lost ? `${shown.lost.toLocaleString("en")} pieces were lost.` : "";
    if (!found.process) status.textContent = "No output is stored. A program asks for it by init(console=\"tee\") or LOGCLIENT_CONSOLE=tee.";
    else if (!text.childElementCount) status.textContent = previous ? "No line here matches; scroll up to look further back." : "No line matches.";
    else status.textContent = [previous ? "Scroll up for earlier lines." : "", lost].filter(Boolean).join(" ");
  }

  function controls() {
    const { params } = address.current();
    const find = h("input", { type: "search", placeholder: "Find in lines", "aria-label": "Find in lines", value: params.get("find") ?? "" });
    let typing = 0;
    find.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => address.change({ find: find.value || null }), TYPING_MS);
    });
    const processes = found.processes.map((each, at) => [each.process, each.rank === null ? `process ${at + 1}` : `rank ${each.rank}`]);
    if (bar.contains(document.activeElement)) return; // somebody types there
    fill(
      bar,
      find,
      processes.length > 1 && choice("Process", "process", processes, found.process),
      choice("Stream", "stream", [["", "stdout and stderr"], ["stdout", "stdout"], ["stderr", "stderr"]], params.get("stream") ?? ""),
    );
  }

  text.addEventListener("scroll", () => text.scrollTop < EDGE_PX && earlier().catch(showError));
  const show = (now) => (isLive = ["running", "late"].includes(now.state));
  show(run);
  load().then(later).catch(showError);
  return {
    show,
    update: () => load().catch(showError),
    close() {
      ended.abort();
      clearTimeout(timer);
    },
  };
}

function choice(label, parameter, options, now) {
  const made = options.map(([name, text]) => h("option", { value: name, selected: name === now }, text));
  const onchange = (event) => address.change({ [parameter]: event.target.value || null });
  return h("select", { onchange, "aria-label": label }, made);
}

function row(line) {
  const kind = ["line", line.stream, line.is_open ? "open" : ""].filter(Boolean).join(" ");
  const lost = line.lost > 0 && h("div", { class: "lost" }, `${line.lost.toLocaleString("en")} pieces are missing here`);
  const cut = line.cut > 0 && h("span", { class: "lost" }, ` … ${line.cut.toLocaleString("en")} characters cut`);
  return h("div", { class: kind, title: time(line.time_ns) }, lost, line.text, cut);
}
