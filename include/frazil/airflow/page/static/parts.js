// What several views have in common.

import { h } from "./dom.js";

/** A sentence; what stands between backticks is code. */
export function words(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

export function way(name) {
  return h("nav", { class: "way", "aria-label": "Where you are" }, h("a", { href: "#/", "data-key": "back" }, "Streams"), " / ", name);
}

/** What needs a person, a sentence each. */
export function needsList(said) {
  return said.length > 0 && h("ul", { class: "needs", "aria-label": "What needs a person" }, said.map((one) => h("li", {}, words(one))));
}
