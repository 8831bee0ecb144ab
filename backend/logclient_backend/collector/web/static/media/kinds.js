// One media value as an element, by its kind. Nothing in it runs with the rights of the page: images, sound and films are elements
// that run no script, texts are text, HTML stands in a frame without rights, and everything else is a download.

import { fill, h } from "../core/dom.js";
import { bytes } from "../core/format.js";
import { bars } from "./histogram.js";
import { address, download, fileName, frame, text } from "./loader.js";
import { rendered } from "./markdown.js";
import { picture } from "./picture.js";
import { table } from "./table.js";

const MAX_FIGURE = 16 << 20; // bytes that the collector puts into a frame
const MAX_TEXT = 1 << 20; // bytes that are shown; all of it can be downloaded

/** Return the element of a value: a row of `GET run/media`. */
export function shown(run, value, ended) {
  if (value.lost) return h("p", { class: "error" }, `Not stored: ${value.lost}`);
  const caption = value.fields.caption && h("figcaption", {}, value.fields.caption);
  return h("figure", { class: `media ${value.kind}` }, content(run, value, ended), caption);
}

function content(run, value, ended) {
  const src = value.sha256 && address(run, value);
  const name = value.fields.caption || `${value.kind} ${value.key} at step ${value.step}`;
  if (value.kind === "histogram") return bars(value.fields);
  if (!src) return h("p", { class: "dim" }, "Nothing is stored of this value.");
  if (value.mime.startsWith("image/")) return picture(src, name);
  if (value.mime.startsWith("audio/")) return h("audio", { src, controls: true, preload: "none", "aria-label": name });
  if (value.mime.startsWith("video/")) return h("video", { src, controls: true, preload: "metadata", "aria-label": name });
  if (value.mime === "text/html") return h("iframe", { src: frame(run, value), sandbox: "allow-scripts", title: name, loading: "lazy" });
  if (value.kind === "figure" && value.mime === "application/json") return plotly(run, value, name);
  if (["table", "text", "markdown"].includes(value.kind)) return later(run, value, ended);
  return downloadLink(run, value);
}

function downloadLink(run, value) {
  const name = fileName(value);
  return h("a", { href: download(run, value), download: name }, `Download ${name} (${bytes(value.bytes)})`);
}

function plotly(run, value, name) {
  if (!value.has_plotly) return h("div", {}, h("p", { class: "dim" }, "This figure is shown where the collector has plotly: pip install plotly."), downloadLink(run, value));
  if (value.bytes > MAX_FIGURE) return downloadLink(run, value);
  return h("div", {}, h("iframe", { src: frame(run, value), sandbox: "allow-scripts", title: name, loading: "lazy" }), h("div", {}, downloadLink(run, value)));
}

function later(run, value, ended) {
  const box = h("div", {}, h("span", { class: "dim" }, "loading …"));
  if (value.bytes > MAX_TEXT && value.kind !== "table") return downloadLink(run, value);
  text(run, value, ended)
    .then((found) => fill(box, ofText(run, value, found)))
    .catch((error) => ended.signal.aborted || fill(box, h("p", { class: "error" }, error.message)));
  return box;
}

function ofText(run, value, found) {
  if (value.kind === "markdown") return rendered(found);
  if (value.kind === "table") return table(run, JSON.parse(found));
  return h("pre", {}, found);
}
