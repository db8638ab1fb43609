// Parts that several views share.

import { linkOut, linkTo } from "./airflow.js";
import { h } from "./dom.js";
import { times } from "./format.js";
import { levelName } from "./marks.js";

const ADDRESS = /(https?:\/\/[^\s()"<>]*\/frazil\/(?:data-docs|ops)\/[^\s()"<>]*[\w/]|(?<![\w./-])\/frazil\/(?:data-docs|ops)\/[^\s()"<>]*[\w/])/;

/** Return a sentence as nodes: times in the page's format, text between backticks as code, and frazil's addresses as links. */
export function words(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part.split(ADDRESS).map((piece, j) => (j % 2 ? address(piece) : times(piece)))));
}

const MAX_CHARACTERS = 720;
const END = 360; // the end has the remedy

/** Return a long sentence without its middle. A command in backquotes stays whole, or is left out. */
export function brief(text) {
  if (text.length <= MAX_CHARACTERS) return text;
  const [begin, end] = [text.slice(0, MAX_CHARACTERS - END), text.slice(-END)];
  const whole = text.slice(0, -END).split("`").length % 2 ? end : end.slice(end.indexOf("`") + 1);
  return `${begin.split("`").length % 2 ? begin : begin.slice(0, begin.lastIndexOf("`"))} … ${whole}`;
}

/** A link to a page of this Airflow. Other addresses may come from records, and stay text. */
function address(text) {
  const at = URL.canParse(text, location.href) ? new URL(text, location.href) : null;
  if (at?.origin !== location.origin) return text;
  return h("a", { ...linkOut(at.href), class: "within", "data-key": at.pathname }, at.pathname.includes("/frazil/data-docs/") ? "Data Docs" : text);
}

export function breadcrumb(name) {
  return h("nav", { class: "way", "aria-label": "Breadcrumb" }, h("a", { href: "#/", "data-key": "back" }, "Streams"), " / ", name);
}

/** A section of a view with a heading. */
export function card(title, ...content) {
  return h("section", { class: "card" }, h("h2", {}, title), content);
}

/** A figure with its name above and a note below. */
export function number(name, value, note) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, note)));
}

const APART = "\u2002"; // an en space stays at the end of a line, so the next line is not indented

/** Return a list of problems, each {sentence, runbook, dag} or only a sentence, in the style of the level. */
export function needsList(needs, level, key = "needs") {
  return needs.length > 0 && h("ul", { class: `needs ${levelName(level)}`, "aria-label": "Needs attention" }, problemItems(needs, key));
}

/** The list items, each with a link to its DAG or runbook entry. Consecutive items with the same entry share one link. */
export function problemItems(needs, key) {
  const all = needs.map((need) => (typeof need === "string" ? { sentence: need } : need));
  return all.map(({ sentence, runbook, dag }, i) => h("li", {}, words(sentence), dag && [APART, dagLink(dag, `${key}-${i}`)], runbook && runbook !== all[i + 1]?.runbook && [APART, runbookLink(runbook, `${key}-${i}`)]));
}

function runbookLink(runbook, key) {
  const name = runbook.split("#").at(-1);
  if (runbook.startsWith("docs/runbook.md")) return h("small", { class: "runbook" }, h("a", { href: `runbook.html#${name}`, "data-key": key }, `Runbook: ${name}`));
  if (!/^https?:\/\//.test(runbook)) return h("small", { class: "runbook" }, "Runbook: ", h("code", {}, runbook));
  return h("small", { class: "runbook" }, h("a", { ...linkOut(runbook), "data-key": key }, `Runbook: ${name}`));
}

function dagLink(dag, key) {
  return h("small", { class: "runbook" }, h("a", { ...linkTo(`/dags/${encodeURIComponent(dag)}`), "data-key": key }, "DAG in Airflow"));
}

/** What holds completeness back: gates, else what the next window waits for (the time, topic-partitions, streams). */
export function heldBy(windows) {
  const gates = windows.holders.filter(({ kind }) => kind === "gate");
  const others = windows.holders.filter(({ kind }) => kind !== "gate");
  const time = others.find(({ kind }) => kind === "time");
  const shown = others.slice(0, 2).map(({ kind, name, reason }) => `${kind === "stream" ? "stream " : ""}${name}${reason ? `, which ${reason}` : ""}`);
  const more = others.length > 2 ? ` and ${others.length - 2} more` : "";
  const phrases = [
    windows.unsignalled && "no signal yet",
    gates.length && `${gates.length} held (${gates[0].name}${gates.length > 1 ? ` and ${gates.length - 1} more` : ""})`,
    time ? !gates.length && time.name : shown.length && `next window waits for ${shown.join(" and ")}${more}`,
  ].filter(Boolean);
  return times(phrases.join("; "));
}
