// The area of a plot: where values lie in pixels. No DOM.

const NARROW = 1 + 1e-6; // highest by lowest, below which logarithms have no digits left to tell values apart

/** Return whether a range of a log axis is so narrow that it is a linear one. */
export function isNarrow([low, high]) {
  return high / low < NARROW;
}

/**
 * Return a frame: `box` is the area in pixels of the device `{left, top, width, height}`, `x` and `y` ranges of values,
 * `ratio` pixels of the device per CSS pixel. `toX`, `toY`: pixels of a value; on a log axis, what is at most 0 lies at
 * the lower edge.
 */
export function frame({ box, x, y, logX = false, logY = false, ratio = 1 }) {
  const toX = axis(x, logX, box.left, box.width);
  const down = axis(y, logY, 0, box.height);
  return { box, x, y, logX, logY, ratio, toX, toY: (value) => box.top + box.height - down(value) };
}

/** Return the value at a pixel, along x. */
export function atX(frame, pixel) {
  const share = (pixel - frame.box.left) / frame.box.width;
  const [low, high] = frame.x;
  return frame.logX ? low * (high / low) ** share : low + share * (high - low);
}

function axis([low, high], isLog, start, size) {
  if (isLog && !isNarrow([low, high])) {
    const first = Math.log(low);
    const scale = size / (Math.log(high) - first);
    return (value) => (value > 0 ? start + (Math.log(value) - first) * scale : start);
  }
  if (!Number.isFinite(high - low)) return (value) => start + ((value / 2 - low / 2) / (high / 2 - low / 2)) * size;
  const scale = size / (high - low);
  if (isLog) return (value) => (value > 0 ? start + (value - low) * scale : start);
  return (value) => start + (value - low) * scale;
}
