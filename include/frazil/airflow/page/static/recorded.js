// A stream's recorded history: a choice of periods, charts, and batch time by phase.

import { h, s } from "./dom.js";
import { bytes, duration, moment, rate } from "./format.js";
import { timelines } from "./timeline.js";

/** A time as addresses have it: 2013-12-30T15:00Z. */
const stamp = (ms) => `${new Date(ms).toISOString().slice(0, 16)}Z`;

/** The period that the address asks for, as of `#/stream/ticks?hours=24` or `?from=2013-12-30T15:00Z&to=…`. */
export function periodOf(hash) {
  const asked = new URLSearchParams(hash.split("?")[1]);
  return { hours: Number(asked.get("hours")) || undefined, begin: asked.get("from") || undefined, end: asked.get("to") || undefined };
}

function keepPeriod({ hours, begin, end }) {
  const asked = Object.entries({ hours, from: begin, to: end }).filter(([, value]) => value);
  history.replaceState(null, "", `${location.hash.split("?")[0]}?${asked.map(([name, value]) => `${name}=${value}`).join("&")}`);
  dispatchEvent(new Event("addresschange"));
}

export const PERIODS = { 6: "6 hours", 24: "24 hours", 168: "7 days", 336: "14 days" };

export function recorded(view, state, page) {
  const pictures = view.points.length > 1;
  if (!view.period) return null;
  if (!pictures && view.period.hours === 6) {
    const why = view.pending ? "Loading the table …" : view.has_commits ? "Charts appear here within two minutes." : "No commits yet.";
    return h("section", { class: "empty" }, h("p", {}, why));
  }
  return h("section", { class: "card recorded" },
    h("div", { class: "with-choice" }, h("h2", {}, "History"), choice(view, state, page)),
    pictures ? [h("div", { class: "charts" }, charts(view, state, page)), stages(view)] : h("p", { class: "soft" }, "No data in this period."),
  );
}

function choice(view, state, page) {
  const chosen = state.begin ? "" : String(state.hours || view.period.hours);
  return h("div", { class: "chips", role: "group", "aria-label": "Period" },
    state.begin && !view.period.hours && h("span", { class: "soft" }, `${moment(view.period.begin_ms)} to ${moment(view.period.end_ms)}`),
    Object.entries(PERIODS).map(([hours, word]) =>
      h(
        "button",
        {
          class: "chip",
          "aria-pressed": String(chosen === hours),
          "data-key": `range-${hours}`,
          onclick: () => show(state, page, { hours: Number(hours) }),
        },
        word,
      ),
    ),
  );
}

/** Show another period, and keep it in the address. */
function show(state, page, { hours, begin, end }) {
  Object.assign(state, { hours, begin, end });
  keepPeriod(state);
  page.draw();
  page.load();
}

/** The time axis of all charts: the span that was asked for, or the part of the last hours that was recorded. */
function shared({ period, points }) {
  const first = points[0].at_ms;
  return { from: period.hours ? first : Math.min(period.begin_ms, first), to: period.end_ms };
}

function charts(view, state, page) {
  const of = (value) => view.points.map((point) => ({ at: point.at_ms, value: value(point), span: point.span_ms }));
  const each = (name) => of((point) => (point.batches ? point[name] / point.batches : null));
  const some = (points) => points.filter(({ value }) => value !== null && value !== undefined).length > 1;
  const perSecond = view.rates.map((one, i) => ({ at: one.at_ms, span: view.points[i].span_ms, value: one.records_per_s, bad: one.rejected_per_s }));
  const arrived = view.rates.map((one, i) => ({ at: one.at_ms, span: view.points[i].span_ms, value: one.arrived_per_s }));
  const pictures = [
    { points: perSecond, title: "Records per second: written, and arrived (line)", bars: true, say: (value) => rate(value), against: { points: arrived, name: "arrived" } },
    { points: of((point) => point.lag), title: "Lag in records" },
    { points: of((point) => point.freshness_ms), title: "Freshness", say: duration, limit: view.line.promise_ms },
    { points: of((point) => (point.watermark_ms === null ? null : Math.max(point.at_ms + point.span_ms - point.watermark_ms, 0))), title: "Watermark delay", say: duration },
    { points: each("bytes"), title: `Average bytes per commit${view.routes ? ", in all its tables" : ""}`, bars: true, say: bytes },
    { points: of((point) => point.backpressure_ms), title: "Batch time beyond the commit interval", say: duration },
  ];
  const onspan = (from, to) => show(state, page, { begin: stamp(from), end: stamp(to) });
  return timelines(pictures.filter(({ points }) => some(points)), { now: view.at_ms, ...shared(view), onspan });
}

/* Batch time by phase */

const STAGES = { stage: "staging", commit: "committing", merge: "merging", wait: "waiting for records, or for the interval" };
const WIDTH = 1200;
const HEIGHT = 110;

function timeByPhase(point) {
  const merge = point.merge_ms;
  const commit = Math.max(point.commit_ms - merge, 0);
  return { stage: point.stage_ms, commit, merge, wait: Math.max(point.span_ms - point.stage_ms - commit - merge, 0) };
}

function stages(view) {
  const points = view.points;
  if (!points.some(({ batches }) => batches)) return null;
  const times = points.map(timeByPhase);
  const total = Object.fromEntries(Object.keys(STAGES).map((name) => [name, times.reduce((sum, one) => sum + one[name], 0)]));
  const all = Object.values(total).reduce((a, b) => a + b, 0) || 1;
  const shown = Object.keys(STAGES).filter((name) => total[name] > 0);
  const share = (name) => `${((total[name] / all) * 100).toFixed(total[name] / all < 0.1 ? 1 : 0)} %`;
  const shares = shown.map((name) => `${STAGES[name]} ${share(name)}`).join(", ");
  const { from, to } = shared(view);
  const x = (at) => ((at - from) / (to - from)) * WIDTH;
  const read = h("output", { class: "read" }, "");
  const column = (point, i) => {
    const one = times[i];
    const whole = Object.values(one).reduce((a, b) => a + b, 0) || 1;
    const words = `${moment(point.at_ms, view.at_ms)}, ${point.batches} batches: ${shown.map((name) => `${STAGES[name]} ${duration(one[name])}`).join(", ")}`;
    let y = HEIGHT;
    return s("g", { onpointerenter: () => (read.textContent = words) },
      shown.map((name) => {
        const height = (one[name] / whole) * HEIGHT;
        y -= height;
        return s("rect", { class: `part ${name}`, x: x(point.at_ms), y, width: Math.max(x(point.at_ms + point.span_ms * 0.9) - x(point.at_ms), 1), height });
      }),
    );
  };
  return h("figure", { class: "chart stages" },
    h("figcaption", {}, h("h3", {}, `Batch time by phase, per ${duration(Math.max(...points.map(({ span_ms }) => span_ms)))}`), read),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `Batch time by phase since ${moment(points[0].at_ms, view.at_ms)}: ${shares}` }, points.map(column)),
    h("div", { class: "axis", "aria-hidden": "true" }, [from, (from + to) / 2, to].map((at) => h("span", {}, moment(at, view.at_ms)))),
    h("div", { class: "legend" }, shown.map((name) => h("span", {}, h("i", { class: `part ${name}`, "aria-hidden": "true" }), `${STAGES[name]}, ${share(name)}`))),
  );
}
