// The overview: one line per stream; streams that need attention come first.

import { gauge, spark } from "./charts.js";
import { h } from "./dom.js";
import { ago, count, duration, iso, mean, rate, short, times, UNKNOWN } from "./format.js";
import { badge, levelName, shape } from "./marks.js";
import { brief, heldBy, needsList, problemItems, words } from "./parts.js";

const FILTERS = [
  { key: "all", word: "All", level: null, of: () => true },
  { key: "needs", word: "Need attention", level: 1, of: (line) => line.level <= 1 },
  { key: "well", word: "Well", level: 4, of: (line) => line.level === 4 },
  { key: "quiet", word: "Quiet", level: 3, of: (line) => line.level === 3 },
  { key: "unknown", word: "Unknown", level: 2, of: (line) => line.level === 2 },
];

export const title = () => "Streams";
export const path = () => "overview";
export const begin = () => remembered;

const remembered = { filter: "all", words: "" };

export function draw(data, state, page) {
  const found = matching(data.lines, state);
  return [
    header(data),
    needsList(data.needs, 1, "all"),
    data.notes.map((note) => h("p", { class: "note" }, shape(2), h("span", {}, words(note)))),
    data.lines.length > 0 && controls(data.lines, state, page),
    data.lines.length === 0 ? noStreams() : found.length ? table(found, data.at_ms) : noMatches(state, page),
  ];
}

function header(data) {
  const needing = data.lines.filter((line) => line.level <= 1).length;
  const perSecond = data.lines.reduce((sum, line) => sum + (line.records_per_s || 0), 0);
  return h("header", { class: "top" },
    h("h1", {}, "Streams"),
    data.headline && h("p", { class: `headline ${needing ? levelName(worst(data.lines)) : ""}` }, data.headline),
    data.pending && h("p", { class: "soft" }, "Loading …"),
    data.lines.length > 0 && h("p", { class: "aside" }, `${rate(perSecond)} in total`),
  );
}

/** Return the most urgent level of some lines. */
function worst(lines, level = 4) {
  return Math.min(level, ...lines.map((line) => line.level));
}

function controls(lines, state, page) {
  const chips = FILTERS.map((filter) => ({ ...filter, n: lines.filter(filter.of).length, level: filter.level && worst(lines.filter(filter.of), filter.level) }));
  return h("div", { class: "controls" },
    h("div", { class: "chips", role: "group", "aria-label": "Show" },
      chips
        .filter(({ key, n }) => n || key === "all" || key === state.filter)
        .map(({ key, word, n, level }) =>
          h(
            "button",
            {
              class: "chip",
              "aria-pressed": String(state.filter === key),
              "data-key": `filter-${key}`,
              onclick: () => {
                state.filter = key;
                page.draw();
              },
            },
            level !== null && shape(level),
            word,
            h("b", {}, count(n)),
          ),
        ),
    ),
    h("input", {
      type: "search",
      placeholder: "Search streams, tables, sentences",
      "aria-label": "Search",
      "data-key": "search",
      value: state.words,
      oninput: (event) => {
        state.words = event.target.value;
        page.draw();
      },
    }),
  );
}

function matching(lines, state) {
  const filter = FILTERS.find(({ key }) => key === state.filter) || FILTERS[0];
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  return lines.filter((line) => {
    if (!filter.of(line)) return false;
    const text = [line.stream, line.table, line.word, line.application, line.health?.word, ...line.needs.map(({ sentence }) => sentence)].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

const OLD_MS = 120_000;
const COLUMNS = ["Stream", "State", "Freshness", "Lag", "Records", "Complete to", "Dead letters", "Table"];

function table(lines, now) {
  return h("table", { class: "lines" },
    h("thead", {}, h("tr", {}, COLUMNS.map((name, i) => h("th", { scope: "col", class: i === 3 || i === 6 ? "n" : "" }, name)))),
    h("tbody", {}, lines.map((line) => row(line, now))),
  );
}

function row(line, now) {
  return [
    h("tr", { class: line.at_ms === null ? "unread" : null },
      h("th", { scope: "row" }, h("a", { class: "name", href: `#/stream/${encodeURIComponent(line.stream)}`, "data-key": `to-${line.stream}` }, line.stream), line.table && h("small", {}, h("a", { href: `#/table/${encodeURIComponent(line.table)}`, "data-key": `table-${line.stream}` }, line.table))),
      h("td", { "data-name": "State" }, badge(line.level, line.word), stateNotes(line, now)),
      h("td", { "data-name": "Freshness" }, freshness(line)),
      h("td", { "data-name": "Lag", class: "n", title: "Records in Kafka that are not in the table yet" }, line.lag === null ? h("span", { class: "faint" }, UNKNOWN) : short(line.lag)),
      h("td", { "data-name": "Records" }, records(line)),
      h("td", { "data-name": "Complete to" }, complete(line)),
      h("td", { "data-name": "Dead letters", class: "n" }, deadLetters(line)),
      h("td", { "data-name": "Table" }, health(line)),
    ),
    (line.needs.length > 0 || line.notes.length > 0) &&
      h("tr", { class: "why" }, h("td", { colspan: COLUMNS.length }, h("ul", { class: levelName(line.level) }, problemItems((line.needs.length ? line.needs : line.notes).map(shortened), `need-${line.stream}`)))),
  ];
}

/** The stream's own view has the whole sentence. */
function shortened(need) {
  return typeof need === "string" ? brief(need) : { ...need, sentence: brief(need.sentence) };
}

function stateNotes(line, now) {
  return line.at_ms !== null && (line.last_known || now - line.at_ms > OLD_MS) && h("small", { class: "calm" }, `${line.last_known ? "last known state, " : ""}as of ${ago(line.at_ms, now)}`);
}

function freshness(line) {
  if (line.freshness_ms === null) return h("span", { class: "faint" }, UNKNOWN);
  const delay = line.freshness_ms === 0 && line.lag === 0 ? "up to date" : duration(line.freshness_ms);
  return h(
    "span",
    { class: "fresh", title: `Current age of the oldest record that waits in Kafka. Limit: ${duration(line.promise_ms)}` },
    h("span", {}, delay),
    gauge(line.freshness_ms, line.promise_ms, `${delay}, limit ${duration(line.promise_ms)}`),
  );
}

function records(line) {
  if (line.records_per_s === null) return h("span", { class: "faint" }, UNKNOWN);
  return h("span", { class: "flow" },
    spark(line.last_hour, `records in the last ${duration(line.last_hour.length * 120000)}: ${count(line.last_hour.reduce((a, b) => a + b, 0))}`),
    h("span", {}, rate(line.records_per_s), h("small", { class: "mean", title: mean(line) }, line.rate_ms ? duration(line.rate_ms) : ""), line.backpressure_ms > 0 && h("small", { class: "behind" }, `batches take ${duration(line.backpressure_ms).replaceAll(" ", "\u00a0")} too long`)),
  );
}

function complete(line) {
  if (!line.windows) return h("span", { class: "faint" }, UNKNOWN);
  return h("span", {}, iso(line.windows.complete_to), h("small", { class: "held-by", title: times(line.windows.unsignalled || line.windows.waits_for) }, heldBy(line.windows)));
}

/** The health of the stream's tables at the last measurement. */
function health(line) {
  if (!line.health) return h("span", { class: "faint" }, UNKNOWN);
  return [h("small", { class: "health" }, badge(line.health.level, line.health.word)), line.health.causes.length > 0 && h("small", { class: "held-by" }, line.health.causes.join(", "))];
}

function deadLetters(line) {
  if (line.rejected_last_day === null) return h("span", { class: "faint" }, UNKNOWN);
  const rejected = short(line.rejected_last_day);
  return line.rejected_last_day ? h("strong", { title: "In the last 24 hours" }, rejected) : h("span", { class: "faint" }, "0");
}

function noStreams() {
  return h("section", { class: "empty" },
    h("h2", {}, "No stream yet"),
    h("p", {}, "Declare one in a YAML file: its topics, its table and its columns. It appears here within seconds."),
    h("p", {}, h("code", {}, "frazil infer"), " creates a declaration from a sample of a topic."),
  );
}

function noMatches(state, page) {
  const clear = () => {
    Object.assign(state, { filter: "all", words: "" });
    page.draw();
  };
  return h("section", { class: "empty" }, h("p", {}, "No matching streams."), h("button", { class: "plain", onclick: clear, "data-key": "clear" }, "Show all"));
}
