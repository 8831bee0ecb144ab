// Shapes (see `curve_shapes.js`) painted on a canvas, or written as SVG: one picture in two forms.

const SVG = "http://www.w3.org/2000/svg";
const MARK = 4; // CSS pixels from the middle of a mark to its edge
const FONT = "11px system-ui, 'DejaVu Sans', sans-serif";

/** Paint shapes on the context of a canvas, clipped to the frame. */
export function paint(context, frame, shapes) {
  const { left, top, width, height } = frame.box;
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.lineJoin = "round";
  for (const shape of shapes) {
    context.globalAlpha = shape.alpha ?? 1;
    context.strokeStyle = context.fillStyle = shape.colour;
    PAINTERS[shape.kind](context, shape, frame.ratio);
  }
  context.restore();
}

const PAINTERS = {
  path(context, shape) {
    context.lineWidth = shape.width;
    context.setLineDash(shape.dash ?? []);
    context.beginPath();
    trace(context, shape.points);
    context.stroke();
  },
  area(context, shape) {
    context.beginPath();
    trace(context, shape.points);
    context.fill();
  },
  rect(context, { box: [left, top, width, height] }, ratio) {
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.lineWidth = ratio;
    context.setLineDash([]);
    context.beginPath();
    for (const [x0, y0, x1, y1] of hatching(left, top, width, height, ratio)) {
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
    }
    context.stroke();
    context.restore();
  },
  mark(context, shape, ratio) {
    context.lineWidth = 1.5 * ratio;
    context.setLineDash([]);
    context.beginPath();
    if (shape.shape === "dot") context.arc(shape.x, shape.y, 2.5 * ratio, 0, 2 * Math.PI);
    else {
      for (const stroke of outline(shape, ratio)) trace(context, stroke);
    }
    if (shape.shape === "cross" || shape.shape === "drop") context.stroke();
    else context.fill();
  },
  text(context, shape, ratio) {
    context.font = FONT.replace("11px", `${11 * ratio}px`);
    context.textAlign = shape.align;
    context.fillText(shape.text, shape.x, shape.y);
  },
};

function trace(context, points) {
  let isDown = false;
  for (let i = 0; i < points.length; i += 2) {
    if (Number.isNaN(points[i])) isDown = false;
    else if (isDown) context.lineTo(points[i], points[i + 1]);
    else {
      context.moveTo(points[i], points[i + 1]);
      isDown = true;
    }
  }
}

/** Return the strokes of a mark, each `[x, y, …]`. An arrow up has its tip at `y`, one down likewise. */
function outline({ shape, x, y }, ratio) {
  const size = MARK * ratio;
  if (shape === "cross") return [[x - size, y - size, x + size, y + size], [x - size, y + size, x + size, y - size]];
  if (shape === "up") return [[x, y, x - size, y + 2 * size, x + size, y + 2 * size]];
  if (shape === "down") return [[x, y, x - size, y - 2 * size, x + size, y - 2 * size]];
  if (shape === "drop") return [[x, y, x - size, y - 1.6 * size, x + size, y - 1.6 * size, x, y]];
  return [[x, y, x + 2 * size, y + size, x, y + 2 * size]]; // a flag
}

function hatching(left, top, width, height, ratio) {
  const made = [];
  for (let x = left - height; x < left + width; x += 6 * ratio) made.push([x, top + height, x + height, top]);
  return made;
}

/** Return shapes as an SVG element `<g>`, in CSS pixels, clipped by the element with the id `clip`. */
export function toSvg(frame, shapes, clip) {
  const { ratio } = frame;
  const group = element("g", { "clip-path": `url(#${clip})`, "stroke-linejoin": "round" });
  for (const shape of shapes) {
    const opacity = shape.alpha ?? 1;
    if (shape.kind === "path") {
      group.append(element("path", { ...stroke(shape, ratio), d: data(shape.points, ratio), "stroke-opacity": opacity }));
    } else if (shape.kind === "area") {
      group.append(element("path", { d: `${data(shape.points, ratio)}Z`, fill: shape.colour, "fill-opacity": opacity }));
    } else if (shape.kind === "rect") {
      group.append(hatched(shape, ratio, opacity));
    } else if (shape.kind === "text") {
      const at = { x: shape.x / ratio, y: shape.y / ratio, fill: shape.colour, "font-size": 11 };
      const text = element("text", { ...at, "text-anchor": { left: "start", right: "end" }[shape.align] ?? "middle" });
      text.textContent = shape.text;
      group.append(text);
    } else {
      group.append(svgMark(shape, ratio));
    }
  }
  return group;
}

/** Return a new SVG element. */
export function element(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function svgMark(shape, ratio) {
  if (shape.shape === "dot") {
    return element("circle", { cx: round(shape.x / ratio), cy: round(shape.y / ratio), r: 2.5, fill: shape.colour });
  }
  const d = outline(shape, ratio).map((points) => data(points, ratio)).join("");
  const isStroke = shape.shape === "cross" || shape.shape === "drop";
  return element("path", isStroke ? { d, fill: "none", stroke: shape.colour, "stroke-width": 1.5 } : { d, fill: shape.colour });
}

function hatched({ box: [left, top, width, height], colour }, ratio, opacity) {
  const [x, y, w, h] = [left, top, width, height].map((length) => length / ratio);
  const lines = hatching(x, y, w, h, 1).map(([x0, y0, x1, y1]) => {
    // cut to the area by hand: a clip path of its own for each gap would be more
    const from = Math.max(0, (x - x0) / (x1 - x0));
    const to = Math.min(1, (x + w - x0) / (x1 - x0));
    if (from >= to) return "";
    const at = (share) => `${round(x0 + share * (x1 - x0))} ${round(y0 + share * (y1 - y0))}`;
    return `M${at(from)}L${at(to)}`;
  });
  return element("path", { d: lines.join(""), stroke: colour, "stroke-opacity": opacity, fill: "none" });
}

function stroke(shape, ratio) {
  const made = { fill: "none", stroke: shape.colour, "stroke-width": round(shape.width / ratio) };
  if (shape.dash?.length) made["stroke-dasharray"] = shape.dash.map((length) => round(length / ratio)).join(" ");
  return made;
}

function data(points, ratio) {
  let made = "";
  let isDown = false;
  for (let i = 0; i < points.length; i += 2) {
    if (Number.isNaN(points[i])) isDown = false;
    else {
      made += `${isDown ? "L" : "M"}${round(points[i] / ratio)} ${round(points[i + 1] / ratio)}`;
      isDown = true;
    }
  }
  return made;
}

function round(number) {
  return Math.round(number * 100) / 100;
}
