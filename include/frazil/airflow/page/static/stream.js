// One stream: commits, lag, writers and rejected records.

import { actions } from "./actions.js";
import { linkOut, linkTo } from "./airflow.js";
import { bar } from "./charts.js";
import { h, s } from "./dom.js";
import { ago, bytes, count, counted, duration, iso, mean, moment, rate, short, times, UNKNOWN } from "./format.js";
import { badge, shape } from "./marks.js";
import { breadcrumb, brief, card, heldBy, needsList, number, words } from "./parts.js";
import { periodOf, recorded } from "./recorded.js";
import { routed } from "./routed.js";

export const title = (name) => name;
export const path = (name, state) => `stream/${encodeURIComponent(name)}?${new URLSearchParams({ hours: state.hours || 6, tables: state.tables || "", ...(state.begin && { begin: state.begin }), ...(state.end && { end: state.end }) })}`;
export const begin = () => periodOf(location.hash);

export function draw(view, state, page) {
  const { line } = view;
  return [
    breadcrumb(line.stream),
    h("header", { class: "top" }, h("h1", {}, line.stream), badge(line.level, line.word), h("p", { class: "aside" }, `${line.last_known ? "Last known state, read" : "Read"} ${ago(line.at_ms ?? view.at_ms, view.at_ms)}; times are UTC`)),
    line.table && actions(view.actions, line.stream, view.may_act, page),
    needsList([...line.needs, ...view.problems.filter((problem) => !line.needs.some(({ sentence }) => sentence === problem))], line.level),
    line.notes.map((note) => h("p", { class: "note" }, shape(3), h("span", {}, words(note)))),
    view.backfill && openBackfill(view.backfill),
    numbers(view),
    line.windows && h("p", { class: "soft next" }, h("b", {}, "Next window"), ": ", words(line.windows.waits_for), "."),
    line.windows?.unsignalled && h("p", { class: "soft next" }, h("b", {}, "Signals"), ": ", words(line.windows.unsignalled), "."),
    recorded(view, state, page),
    partitions(view),
    routed(view, state, page),
    h("div", { class: "columns" }, runs(view), rejected(view), changes(view)),
    h("div", { class: "columns" }, events(view), days(view), facts(view), airflowLinks(view)),
  ];
}

function openBackfill(it) {
  const what = it.replays ? "A replay of dead letters" : "A backfill";
  const progress = it.state === "staged" ? "is staged and waits to be published" : `has staged ${count(it.chunks)} of about ${counted(it.planned, "chunk")}`;
  return h("p", { class: "note" }, shape(3), h("span", {}, `${what} (${it.id}) ${progress}: ${counted(it.rows, "row")}.`));
}

function numbers(view) {
  const { line } = view;
  const windows = line.windows;
  const fresh = line.freshness_ms === null ? UNKNOWN : line.lag === 0 ? "up to date" : duration(line.freshness_ms);
  return h("dl", { class: "numbers" },
    number("Freshness", fresh, `now; limit ${duration(line.promise_ms)}`),
    number("Lag", count(line.lag), line.lag === null ? "unknown" : `records, now${catchesUp(view)}`),
    number(["Records", mean(line)].filter(Boolean).join(", "), rate(line.records_per_s), line.backpressure_ms > 0 ? `batches take ${duration(line.backpressure_ms)} too long` : `${short(line.rows)} rows in ${view.routes ? "its default table" : "the table"}`),
    line.has_windows && number("Complete to", windows ? h("time", {}, iso(windows.complete_to)) : UNKNOWN, windows ? heldBy(windows) || `by ${windows.grain}, UTC` : "not known yet"),
    number("Dead letters", count(line.rejected_last_day), deadLetterNote(view)),
    line.health && number(view.routes ? "Its tables" : "Table", [shape(line.health.level), line.health.word], line.health.causes.join(", ") || "at the last measurement"),
  );
}

const USUAL_S = 60; // a lag of fewer seconds of arrivals is usual

/** When the lag will be 0, or how fast it grows, at the rates of the last minutes. */
function catchesUp({ line, trend }) {
  if (!trend || !line.lag || line.lag < USUAL_S * trend.arrived_per_s) return "";
  if (trend.caught_up_in_ms !== null) return `; caught up in ${duration(trend.caught_up_in_ms)}: ${rate(trend.records_per_s)} written, ${rate(trend.arrived_per_s)} arrive`;
  return trend.arrived_per_s > 1.05 * trend.records_per_s ? `; grows: ${rate(trend.arrived_per_s)} arrive, ${rate(trend.records_per_s)} written` : "";
}

/** The start of the count, and how many dead letters are left after replays and discards, if this is known for all. */
function deadLetterNote(view) {
  const { rejected_last_day: rejected, rejected_since_ms: since } = view.line;
  const when = since === null ? "in the last day" : `since ${moment(since, view.at_ms)}: ${view.line.rejected_since_reset ? "it was reset then" : "older snapshots expired"}`;
  const remaining = view.rejected.reduce((sum, one) => sum + one.remaining, 0);
  const all = view.rejected.reduce((sum, one) => sum + one.count, 0);
  return remaining < all && all === rejected ? `${when}, ${count(remaining)} are left` : when;
}

function events(view) {
  if (!view.events.length) return null;
  return card("Events",
    h("ol", { class: "runs" }, view.events.map((one) => h("li", {}, h("div", {}, h("b", {}, moment(one.at_ms, view.at_ms)), " ", words(brief(one.sentence)), h("small", {}, one.kind))))),
  );
}

const HEAT = 5;
const DARKEST = 1000; // at least: a few waiting records are no reason for alarm

function partitions(view) {
  if (!view.partitions.length) return null;
  const most = Math.max(...view.partitions.map(({ lag }) => lag || 0), 1);
  const holder = view.partitions.find(({ holds }) => holds);
  const more = view.partitions_in_all - view.partitions.length;
  return card("Topic-partitions",
    h("p", { class: "soft" },
      waiting(view.partitions, most),
      holder && [`The watermark waits for `, h("b", {}, `${holder.topic}-${holder.partition}`), holder.newest_ms === null ? ", which has no event time yet." : `, whose newest event time is ${moment(holder.newest_ms)}.`],
      !holder && view.partitions.every(({ idle }) => idle) && "All are idle: new records move the watermark.",
      more > 0 && ` ${counted(more, "partition")} with the smallest lag are not shown.`,
    ),
    h("ul", { class: "heat" }, view.partitions.map((one) => cell(one, most))),
  );
}

function waiting(partitions, most) {
  if (partitions.some(({ lag }) => lag)) return `Darker means a larger lag, up to ${counted(most, "record")}. `;
  return partitions.some(({ lag }) => lag !== null) ? "No lag. " : "The lag is unknown. ";
}

function cell(one, most) {
  const heat = one.lag === null ? "none" : Math.ceil(Math.sqrt(one.lag / Math.max(most, DARKEST)) * HEAT) || 0;
  const label = `${one.topic}-${one.partition}: ${one.lag === null ? "lag unknown" : "lag " + counted(one.lag, "record")}, next offset ${count(one.offset)}, newest event time ${moment(one.newest_ms)}${one.idle ? ", idle" : ""}${one.holds ? ", delays the watermark" : ""}`;
  return h("li", { class: `heat-${heat}${one.holds ? " holds" : ""}`, title: label, "aria-label": label }, h("span", {}, one.partition), h("small", {}, short(one.lag)));
}

function runs(view) {
  return card("Writers",
    view.runs.length
      ? h("ol", { class: "runs" }, view.runs.map((run) => h("li", {},
          shape(run.ended_at_ms === null ? 4 : run.is_ok ? 3 : 0),
          h("div", {}, h("b", {}, [run.started_at_ms, run.ended_at_ms].filter((at) => at !== null).map((at) => moment(at, view.at_ms)).join(" – ")), ` ${run.outcome}`, h("small", {}, run.ended_at_ms === null ? `for ${duration(view.at_ms - run.started_at_ms)} so far` : `after ${duration(run.ended_at_ms - run.started_at_ms)}`), run.error && h("code", { class: "error" }, brief(run.error))),
        )))
      : h("p", { class: "soft" }, "No writer has run on this host. A writer on another host is visible through its commits."),
  );
}

function rejected(view) {
  const name = view.line.stream;
  return card("Rejected in the last day",
    view.rejected.length
      ? h("ul", { class: "runs letters" },
          view.rejected.map((one) => h("li", {}, h("div", {}, h("b", {}, one.reason), ` ${counted(one.count, "record")}`, one.remaining !== one.count && `, ${one.remaining ? counted(one.remaining, "dead letter") : "no dead letter"} now`, one.coordinates.length > 0 && h("small", {}, "such as ", one.coordinates.map((at, i) => [i ? ", " : "", h("code", {}, at)])), one.remaining > 0 && h("small", {}, h("code", {}, `frazil dlq show ${name} --reason ${one.reason} --limit 3`))))),
        )
      : h("p", { class: "soft" }, view.line.rejected_last_day ? "The table's snapshots do not record the reasons." : view.line.rejected_since_ms === null ? "Every record could be decoded." : `No snapshot since ${moment(view.line.rejected_since_ms, view.at_ms)} has rejected records.`),
    view.rejected.length > 0 && h("p", { class: "soft" }, "Their content is not shown here, because fields may be sensitive. The command shows it to users who may read the table."),
  );
}

const RESULTS = {
  inserted: "inserted",
  updated: "updated",
  deleted: "deleted",
  unchanged: "changed nothing",
  stale: "older than the row",
  superseded: "replaced by a newer change in the same batch",
  repeated: "dropped as repeats",
  dropped: "dropped by the transform",
  "other-events": "not a row change, such as a heartbeat",
};

/** The results of an upsert stream's changes, or the number of dropped repeats. */
function changes(view) {
  const found = Object.keys(RESULTS).filter((name) => name in view.changes || name in view.last_changes);
  if (!found.length) return null;
  const most = Math.max(...found.map((name) => view.changes[name] || 0), 1);
  return card(
    view.facts.Mode === "upsert" ? "Changes by result" : "Repeats",
    h("table", { class: "small became" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Records"), h("th", { scope: "col", class: "n" }, "Last batch"), h("th", { scope: "col", class: "n" }, "Last day"), h("td", {}))),
      h("tbody", {}, found.map((name) => h("tr", {}, h("th", { scope: "row" }, RESULTS[name]), h("td", { class: "n" }, count(view.last_changes[name])), h("td", { class: "n" }, count(view.changes[name] || 0)), h("td", {}, bar((view.changes[name] || 0) / most))))),
    ),
  );
}

const SHOWN_DAYS = 7;

/** What the stream wrote on each day, and what it cost. */
function days(view) {
  if (!view.days.length) return null;
  const today = new Date(view.at_ms).toISOString().slice(0, 10);
  const row = ({ day, cost, files, price }) => [day === today ? `${day} so far` : day, ...(cost.cpu_s ? [price, `${cost.cpu_s.toFixed(cost.cpu_s < 10 ? 1 : 0)} s`, short(cost.writes + cost.reads)] : [UNKNOWN, UNKNOWN, UNKNOWN]), count(cost.commits), count(files), bytes(cost.written_bytes)];
  const names = ["Price", "CPU", "Requests", "Commits", "Files", "Written"];
  return h("section", { class: "card days" },
    h("h2", {}, "Cost by day (UTC)"),
    h("div", { class: "calendar-frame", tabindex: 0, role: "group", "aria-label": "Cost by day", "data-key": "days" }, h("table", { class: "small" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Day"), names.map((name) => h("th", { scope: "col", class: "n" }, name)))), h("tbody", {}, view.days.slice(0, SHOWN_DAYS).map(row).map(([day, ...cells]) => h("tr", {}, h("th", { scope: "row" }, day), cells.map((cell) => h("td", { class: "n" }, cell))))))),
    h("p", { class: "soft" }, "The writer's CPU, its requests to object storage, and their price. Storage itself, Kafka, Airflow and maintenance are not included. In a terminal: ", h("code", {}, `frazil cost ${view.line.stream}`), "."),
  );
}

function facts(view) {
  const formatters = {
    Topics: () => view.topics.map(({ name, address }, i) => [i ? ", " : "", address ? h("a", { ...linkOut(address), "data-key": `topic-${name}` }, name) : name]),
    Table: toTable,
    "Default table": toTable,
    "Dead letters": toTable,
  };
  const topics = view.topics.length > 0;
  return card("Declaration", h("dl", { class: "facts" }, Object.entries(view.facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, formatters[name] && (name !== "Topics" || topics) ? formatters[name](value) : value)])));
}

function toTable(name) {
  return h("a", { href: `#/table/${encodeURIComponent(name)}`, "data-key": `table-${name}` }, name);
}

const NAMES = [
  [/^frazil_writer_/, "Writer"],
  [/^frazil_audits$/, "Audits"],
  [/^frazil_partitions_/, "Complete windows of the table"],
  [/^frazil_maintenance$/, "Maintenance of the tables"],
];

function airflowLinks(view) {
  const dags = Object.entries(view.dags || {});
  return card("In Airflow",
    dags.length
      ? h("ul", { class: "links" }, dags.map(([id, paused]) => h("li", {}, h("a", { ...linkTo(`/dags/${encodeURIComponent(id)}`), "data-key": id }, (NAMES.find(([at]) => at.test(id)) || [0, id])[1]), paused && h("span", { class: "tag" }, s("svg", { viewBox: "0 0 16 16", class: "shape", "aria-hidden": "true" }, s("path", { d: "M3.5 3h3v10h-3zM9.5 3h3v10h-3z" })), "paused"))), view.log && h("li", {}, h("a", { ...linkTo(view.log), "data-key": "log" }, "Log of the writer's task")))
      : h("p", { class: "soft" }, view.dags ? "Airflow has none of the stream's DAGs. If they do not appear soon, check its import errors." : "Loading …"),
    view.audited && h("p", { class: "soft" }, `Last audit: ${times(view.audited)}.`),
  );
}
