// Markdown of users as elements. markdown-it makes markup with all of the text's own markup escaped; DOMPurify then keeps a list of
// harmless elements and returns a value that the page's Trusted Types policy accepts. Images are left out: they could only come from
// elsewhere, and the policy of the page loads nothing from there.

import "../vendor/markdown-it-14.3.3.min.js";
import DOMPurify from "../vendor/purify-3.5.0.es.js";

const parser = globalThis.markdownit({ html: false, linkify: false });
const OPTIONS = {
  ALLOWED_TAGS: "p br hr h1 h2 h3 h4 h5 h6 em strong s code pre blockquote ul ol li table thead tbody tr th td a".split(" "),
  ALLOWED_ATTR: ["href", "start"],
  ALLOWED_URI_REGEXP: /^https?:/i,
  RETURN_TRUSTED_TYPE: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (element) => {
  if (element.tagName !== "A") return;
  element.setAttribute("target", "_blank");
  element.setAttribute("rel", "noopener noreferrer");
});

/** Return an element with the text, rendered. */
export function rendered(text) {
  const made = document.createElement("div");
  made.className = "markdown";
  made.innerHTML = DOMPurify.sanitize(parser.render(text), OPTIONS);
  return made;
}
