// A chart as a picture with its title and legend: PNG from the canvas, SVG from the same shapes.

import { h } from "../core/dom.js";
import { element, toSvg } from "./pen.js";

const HEAD = 30; // CSS pixels above the plot
const ROW = 18; // of the legend
const FONT = "system-ui, 'DejaVu Sans', sans-serif";

/** Save a Blob or a text in the user's downloads. */
export async function saveFile(name, content) {
  const blob = content instanceof Blob ? content : new Blob([content], { type: "image/svg+xml" });
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Return the picture as PNG, in the pixels of this screen. */
export function toPng(board, chart) {
  const source = chart.plot.canvas;
  const ratio = chart.plot.frame().ratio;
  const rows = legend(board, chart);
  const made = h("canvas", {});
  made.width = source.width;
  made.height = source.height + (HEAD + ROW * rows.length) * ratio;
  const context = made.getContext("2d");
  context.fillStyle = board.palette.paper;
  context.fillRect(0, 0, made.width, made.height);
  context.scale(ratio, ratio);
  context.fillStyle = board.palette.ink;
  context.font = `600 14px ${FONT}`;
  context.fillText(chart.key, 12, 20);
  context.drawImage(source, 0, HEAD, source.width / ratio, source.height / ratio);
  context.font = `12px ${FONT}`;
  rows.forEach((row, i) => {
    const y = HEAD + source.height / ratio + ROW * i + 9;
    context.strokeStyle = row.line.colour;
    context.lineWidth = 2.5;
    context.setLineDash(row.line.dash);
    context.beginPath();
    context.moveTo(12, y);
    context.lineTo(38, y);
    context.stroke();
    context.fillStyle = board.palette.ink;
    context.fillText(row.text, 46, y + 4);
  });
  return new Promise((resolve) => made.toBlob(resolve, "image/png"));
}

/** Return the picture as SVG. */
export function toSvgText(board, chart) {
  const { plot } = chart;
  const frame = plot.frame();
  const { ratio, box } = frame;
  const rows = legend(board, chart);
  const [width, height] = [plot.canvas.width / ratio, plot.canvas.height / ratio];
  const [left, top, w, hgt] = [box.left, box.top, box.width, box.height].map((length) => length / ratio);
  const whole = HEAD + height + ROW * rows.length;
  const svg = element("svg", { width, height: whole, viewBox: `0 0 ${width} ${whole}`, "font-family": FONT });
  const label = (x, y, content, more = {}) => {
    const made = element("text", { x, y, "font-size": 11, fill: board.palette.dim, ...more });
    made.textContent = content;
    return made;
  };
  const clip = element("clipPath", { id: "plot" });
  clip.append(element("rect", { x: left, y: top, width: w, height: hgt }));
  const area = element("g", { transform: `translate(0 ${HEAD})` });
  const ticks = plot.ticks();
  for (const { at, text } of ticks.x) {
    area.append(element("path", { d: `M${at} ${top}v${hgt + 4}`, stroke: board.palette.grid }));
    area.append(label(at, top + hgt + 17, text, { "text-anchor": "middle" }));
  }
  for (const { at, text } of ticks.y) {
    area.append(element("path", { d: `M${left - 4} ${at}h${w + 4}`, stroke: board.palette.grid }));
    area.append(label(left - 8, at + 4, text, { "text-anchor": "end" }));
  }
  area.append(toSvg(frame, chart.shapesOf(frame), "plot"));
  const ink = { fill: board.palette.ink };
  svg.append(element("rect", { width, height: whole, fill: board.palette.paper }), clip);
  svg.append(label(12, 20, chart.key, { ...ink, "font-size": 14, "font-weight": 600 }), area);
  rows.forEach((row, i) => {
    const y = HEAD + height + ROW * i + 9;
    const dash = row.line.dash.length ? { "stroke-dasharray": row.line.dash.join(" ") } : {};
    svg.append(element("path", { d: `M12 ${y}H38`, stroke: row.line.colour, "stroke-width": 2.5, ...dash }));
    svg.append(label(46, y + 4, row.text, { ...ink, "font-size": 12 }));
  });
  return new XMLSerializer().serializeToString(svg);
}

/** Return `{line, text}` of each curve and band. */
function legend(board, chart) {
  const lineOf = board.lineOf();
  const { shown } = chart;
  return [
    ...shown.bands.map(({ name, value, band }) => ({ line: lineOf(name), text: `${value}: mean of ${band.members.length} runs` })),
    ...shown.curves.map(({ run }) => ({ line: lineOf(run), text: board.nameOf(run) })),
  ];
}
