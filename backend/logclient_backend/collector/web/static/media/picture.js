// An image that a program logged: its bytes need not be one.

import { h } from "../core/dom.js";

/** Return an image; a sentence takes its place where the browser finds no picture in its bytes. */
export function picture(src, name, title = null) {
  const image = h("img", { src, alt: name, title, loading: "lazy" });
  const sentence = () => h("span", { class: "dim", title: name }, "cannot be shown as an image");
  image.addEventListener("error", () => image.replaceWith(sentence()), { once: true });
  return image;
}
