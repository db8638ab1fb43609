// The routed tables of a stream, with a search, because there may be thousands.

import { h } from "./dom.js";
import { count, counted } from "./format.js";
import { badge } from "./marks.js";

const SEARCH_DELAY_MS = 250;
let timer = null;

export function routed(view, state, page) {
  const found = view.routed;
  if (!found) return null;
  const search = (event) => {
    state.tables = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(page.load, SEARCH_DELAY_MS);
  };
  const more = found.found - found.tables.length;
  return h("section", { class: "card" },
    h("div", { class: "with-choice" },
      h("h2", {}, "Routed tables"),
      found.total > found.tables.length || state.tables
        ? h("input", { type: "search", placeholder: `Search ${counted(found.total, "table")}`, "aria-label": "Search the tables of the route", "data-key": "search-tables", value: state.tables || "", oninput: search })
        : h("span", { class: "soft" }, counted(found.total, "table")),
    ),
    found.tables.length
      ? h("ul", { class: "tables" }, found.tables.map(item))
      : h("p", { class: "soft" }, "No matching tables."),
    more > 0 && h("p", { class: "soft" }, `${count(more)} more: search for part of the name.`),
  );
}

function item({ name, problem, level }) {
  return h("li", {}, h("a", { href: `#/table/${encodeURIComponent(name)}`, "data-key": `routed-${name}` }, name), problem && [" ", badge(level, problem)]);
}
