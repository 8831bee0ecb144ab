// Elements of SVG, for small drawings; large ones are canvases.

const NAMESPACE = "http://www.w3.org/2000/svg";

/** Return a new SVG element with these attributes; `on<event>` are handlers. Children are nodes and texts. */
export function svg(tag, attributes, ...children) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.flat());
  return made;
}
