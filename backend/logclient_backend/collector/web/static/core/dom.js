// Elements. Text is set as text: no function here parses markup, so a name or a value can never become an element.

/**
 * Return a new element. `props`: `class`, `on<event>` handlers, `dataset`, properties of the element (`value`, `checked`),
 * and attributes for everything else; a value of null, undefined or false leaves the attribute out. Children are nodes,
 * arrays of children, texts and numbers; null, undefined and false are left out.
 */
export function h(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (PROPERTIES.has(name)) made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...flat(children));
  return made;
}

/** Replace the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

/** Call `work` once per frame, however often the returned function is called before it. */
export function perFrame(work) {
  let asked = 0;
  return () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      work();
    });
  };
}

const PROPERTIES = new Set(["value", "checked", "indeterminate", "selected", "disabled", "tabIndex", "open"]);

function* flat(children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) yield* flat(child);
    else yield child instanceof Node ? child : String(child);
  }
}
