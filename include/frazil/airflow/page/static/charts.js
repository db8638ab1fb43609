// Small charts as SVG, each with a text alternative.

import { s } from "./dom.js";

/** Bars of one colour, oldest first. */
export function spark(values, label) {
  const top = Math.max(...values, 1);
  const width = 4;
  return s(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${values.length * width} 24`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    values.map((value, i) => {
      const height = value ? Math.max(1.5, (value / top) * 22) : 0.75;
      return s("rect", { x: i * width + 0.5, y: 24 - height, width: width - 1, height, class: value ? "" : "none" });
    }),
  );
}

/** A bar with the used share of a limit. It is full at the limit, and has the colour of trouble above it. */
export function gauge(value, limit, label) {
  const share = limit ? value / limit : 0;
  const past = share > 1;
  return s(
    "svg",
    { class: `gauge${past ? " past" : ""}`, viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { width: 100, height: 6, rx: 3, class: "track" }),
    s("rect", { width: Math.max(2, Math.min(share, 1) * 100), height: 6, rx: 3, class: "bar" }),
  );
}

/** A bar whose length is a share of the longest bar. */
export function bar(share) {
  return s("svg", { class: "hbar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { width: Math.max(share * 100, share ? 0.8 : 0), height: 10, rx: 1 }));
}
