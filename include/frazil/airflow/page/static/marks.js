// Shows a level with a shape and a word, so that colour is never the only sign.

import { h, s } from "./dom.js";

const NAMES = ["broken", "trouble", "unknown", "quiet", "well"];

const SHAPES = {
  broken: () => s("path", { d: "M5.2 1h5.6L15 5.2v5.6L10.8 15H5.2L1 10.8V5.2z" }),
  trouble: () => s("path", { d: "M8 1.4 15.4 14.4H.6z" }),
  unknown: () => s("circle", { cx: 8, cy: 8, r: 5.5, class: "hollow dashed" }),
  quiet: () => s("path", { d: "M3.5 3h3v10h-3zM9.5 3h3v10h-3z" }),
  well: () => s("circle", { cx: 8, cy: 8, r: 5.5 }),
};

export function levelName(level) {
  return NAMES[level] || "unknown";
}

export function shape(level) {
  const name = levelName(level);
  return s("svg", { viewBox: "0 0 16 16", class: `shape ${name}`, "aria-hidden": "true" }, SHAPES[name]());
}

export function badge(level, word) {
  return h("span", { class: `badge ${levelName(level)}` }, shape(level), h("span", {}, word));
}
