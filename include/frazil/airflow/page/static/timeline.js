// Charts of values over time, as bars or a line, with a readable axis and the value at the pointer.

import { h, s } from "./dom.js";
import { bytes, count, duration, moment, short } from "./format.js";

const WIDTH = 560;
const HEIGHT = 150;
const LEFT = 70;
const RIGHT = 6;
const TOP = 10;
const BOTTOM = 22;
const BAR = 14;
const ARROW = 5;
const ARROW_HEIGHT = 16; // above the drawing, for arrows and their labels
const LABEL_WIDTH = 55; // the width of an arrow's label
const MARKED = 12; // a pointer that moved less has marked no span of time
let began = null; // where a span of time begins; the drawing may be replaced until it ends
const WHOLE_FORMATS = [bytes, count, short]; // formats without decimals

/**
 * Figures of several series, {points, ...options} each, over the same time. Those with nothing but zeros come last, where
 * they leave no gap. `onspan(from, to)` is called with a span of time that the pointer has marked.
 */
export function timelines(pictures, { now, from, to, onspan }) {
  const says = ({ points }) => points.some(({ value }) => value);
  const drawn = pictures.map((one) => [says(one), timeline(one.points, { ...one, now, from, to, onspan })]);
  return [true, false].map((full) => drawn.filter(([has]) => has === full).map(([, figure]) => figure));
}

/**
 * Return a figure of `points` [{at, value, bad, span}], oldest first. `bad` is the part of the value in the colour of
 * trouble, and a value with a `span` holds for so long after `at`. `options`: title, say(value) as text, now, bars (else a
 * line), limit (what should not be crossed: a line, unless the values would be flat below it, and words in any case),
 * against ({points, name}: a second series, as a line), from and to (the axis; else the points' own time), onspan.
 */
export function timeline(points, options) {
  const { title, say = short, now, bars = false, limit, onspan } = options;
  const known = (some) => some.filter(({ value }) => value !== null && value !== undefined);
  const shown = known(points);
  const against = known(options.against?.points || []);
  const last = shown.at(-1);
  const read = h("output", { class: "read" }, last ? say(last.value) : "");
  const head = h("figcaption", {}, h("h3", {}, title, limit > 0 && h("small", {}, `, limit ${say(limit)}`)), read);
  if (shown.length < 2) return h("figure", { class: "chart" }, head, h("p", { class: "faint" }, "Not enough commits yet."));
  const from = options.from ?? shown[0].at;
  const to = options.to ?? Math.max(now, last.at + (last.span || 0), from + 1);
  if (!shown.some(({ value }) => value)) return h("figure", { class: "chart" }, head, h("p", { class: "faint" }, `Always ${say(0)} since ${moment(from, now)}.`));
  const most = scaleMaximum([...shown, ...against]);
  const top = niceTop(limit && limit <= MAX_RATIO * most ? Math.max(most, limit) : most, say);
  const beyond = shown.filter(({ value }) => value > top);
  const roof = TOP + (beyond.length ? ARROW_HEIGHT : 0);
  const inset = bars && !last.span ? BAR / 2 : 0; // half a bar, because a bar is centered at its time
  const x = (at) => LEFT + inset + ((at - from) / (to - from)) * (WIDTH - LEFT - RIGHT - 2 * inset);
  const y = (value) => roof + (1 - Math.min(value, top) / top) * (HEIGHT - roof - BOTTOM);
  const cursor = s("line", { class: "cursor", y1: roof, y2: HEIGHT - BOTTOM, x1: -9, x2: -9 });
  const drawing = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": sentence(title, shown, beyond, options) },
    ticks(top, say).map(({ value, label }) => [
      s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label),
    ]),
    [from, (from + to) / 2, to].map((at, i) =>
      s("text", { x: x(at), y: HEIGHT - 5, "text-anchor": ["start", "middle", "end"][i] }, moment(at, now)),
    ),
    bars ? drawBars(shown, x, y) : drawLine(shown, x, y),
    against.length > 1 && s("g", { class: "against" }, drawLine(against, x, y)),
    limit && limit <= top && s("line", { class: "limit", x1: LEFT, x2: WIDTH - RIGHT, y1: y(limit), y2: y(limit) }),
    arrows(beyond, (point) => x(point.at) + (point.span ? (x(point.at + point.span) - x(point.at)) / 2 : 0), roof, say),
    cursor,
  );
  const place = (event) => {
    const box = drawing.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * WIDTH;
  };
  const time = (at) => from + Math.min(Math.max((at - LEFT - inset) / (WIDTH - LEFT - RIGHT - 2 * inset), 0), 1) * (to - from);
  drawing.addEventListener("pointerdown", (event) => (began = place(event)));
  drawing.addEventListener("pointerup", (event) => {
    const [a, b] = [began, place(event)].sort((one, other) => one - other);
    if (began !== null && b - a > MARKED) onspan?.(time(a), time(b));
    began = null;
  });
  drawing.addEventListener("pointermove", (event) => {
    const at = place(event);
    const near = shown.reduce((a, b) => (Math.abs(x(a.at) - at) < Math.abs(x(b.at) - at) ? a : b));
    cursor.setAttribute("x1", x(near.at));
    cursor.setAttribute("x2", x(near.at));
    const other = against.find(({ at: its }) => its === near.at);
    read.textContent = `${say(near.value)}${other ? `, ${say(other.value)} ${options.against.name},` : ""} at ${moment(near.at, now)}${near.value > top ? ", above the scale" : ""}`;
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    read.textContent = say(last.value);
  });
  return h("figure", { class: "chart" }, head, drawing);
}

/** The axis labels at the bottom, in the middle and at the top, without duplicates. */
function ticks(top, say) {
  const all = [0, 0.5, 1].map((share) => ({ value: top * share, label: share ? say(top * share) : "0" }));
  return all.filter(({ label }, i) => i !== 1 || (label !== all[0].label && label !== all[2].label));
}

function drawBars(points, x, y) {
  if (points[0].span) return drawSpans(points, x, y);
  const gaps = points.slice(1).map((point, i) => x(point.at) - x(points[i].at));
  const width = Math.max(1, Math.min(BAR, Math.min(...gaps.filter((gap) => gap > 0), 99) * 0.7));
  return points.map((point) => drawBar(point, x(point.at) - width / 2, width, y));
}

/** A bar for each span, in its middle. */
function drawSpans(points, x, y) {
  return points.map((point) => {
    const room = x(point.at + point.span) - x(point.at);
    const width = Math.max(1, Math.min(BAR, room * 0.7));
    return drawBar(point, x(point.at) + (room - width) / 2, width, y);
  });
}

function drawBar({ value, bad = 0 }, left, width, y) {
  return [
    s("rect", { class: "bar", x: left, y: Math.min(y(value), y(0) - (value ? 1 : 0)), width, height: Math.max(value ? 1 : 0, y(0) - y(value)) }),
    bad > 0 && s("rect", { class: "bad", x: left, y: y(bad), width, height: Math.max(1, y(0) - y(bad)) }),
  ];
}

/** Return a line for each stretch without a gap. In a long time without commits, the values are unknown. */
function drawLine(points, x, y) {
  if (points[0].span) return drawSteps(points, x, y);
  const usualGap = usualGapOf(points);
  const stretches = [[points[0]]];
  for (const [i, point] of points.slice(1).entries()) {
    if (points.length > 8 && point.at - points[i].at > 8 * usualGap) stretches.push([]);
    stretches.at(-1).push(point);
  }
  return stretches.map((some) => {
    const way = some.map(({ at, value }, i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const base = `L${x(some.at(-1).at).toFixed(1)} ${y(0)}L${x(some[0].at).toFixed(1)} ${y(0)}z`;
    return [s("path", { class: "area", d: way + base }), s("path", { class: "stroke", d: way })];
  });
}

function usualGapOf(points) {
  const gaps = points.slice(1).map((point, i) => point.at - points[i].at).sort((a, b) => a - b);
  return gaps[Math.floor(gaps.length / 2)];
}

/** Return a step for each span. In a long time without points, for example without a writer, the values are unknown. */
function drawSteps(points, x, y) {
  const stretches = [];
  const usualGap = usualGapOf(points);
  for (const [i, point] of points.entries()) {
    if (!i || point.at - points[i - 1].at > Math.max(1.5 * points[i - 1].span, 3 * usualGap)) stretches.push([]);
    stretches.at(-1).push(point);
  }
  return stretches.map((some) => {
    const end = some.at(-1).at + some.at(-1).span;
    const way = some.map(({ at, value }, i) => `${i ? "H" : "M"}${x(at).toFixed(1)} ${i ? `V${y(value).toFixed(1)}` : y(value).toFixed(1)}`).join("");
    const steps = `${way}H${x(end).toFixed(1)}`;
    return [s("path", { class: "area", d: `${steps}V${y(0)}H${x(some[0].at).toFixed(1)}z` }), s("path", { class: "stroke", d: steps })];
  });
}

const STEPS_MS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].map((days) => days * 86400)].map((n) => n * 2000);

const MIN_VALUES = 20; // with fewer values, no value counts as an outlier
const MAX_RATIO = 20; // next to a value this many times larger, the others would look like zero

/** The maximum of the scale: the largest value, unless the other values would then be flat. */
function scaleMaximum(points) {
  const values = points.map(({ value }) => value).sort((a, b) => a - b);
  const most = values.at(-1);
  const many = values[Math.floor((values.length - 1) * 0.95)];
  return values.length >= MIN_VALUES && most > MAX_RATIO * many && many > 0 ? many * 3 : most;
}

/** An arrow for each value above the scale, with the largest value of neighbouring arrows if there is room. */
function arrows(beyond, middle, roof, say) {
  const groups = [];
  for (const point of beyond) {
    const at = middle(point);
    const last = groups.at(-1);
    if (last && at - ARROW <= last.to) Object.assign(last, { to: at + ARROW, most: Math.max(last.most, point.value) });
    else groups.push({ from: at - ARROW, to: at + ARROW, most: point.value });
  }
  const taken = groups.map(({ from, to }) => [from, to]);
  const free = (from, to) => from >= LEFT && to <= WIDTH && taken.every(([a, b]) => b <= from || to <= a);
  const labels = [...groups].sort((a, b) => b.most - a.most).map(({ from, to, most }) => {
    const right = free(to, to + LABEL_WIDTH);
    if (!right && !free(from - LABEL_WIDTH, from)) return null;
    taken.push(right ? [to, to + LABEL_WIDTH] : [from - LABEL_WIDTH, from]);
    return s("text", { x: right ? to + 2 : from - 2, y: roof - 3, "text-anchor": right ? "start" : "end" }, say(most));
  });
  const paths = beyond.map((point) => s("path", { d: `M${middle(point).toFixed(1)} ${roof - 10}l${ARROW} 8h${-2 * ARROW}z` }));
  return s("g", { class: "beyond" }, paths, labels);
}

function niceTop(value, say) {
  const step = (say === duration ? STEPS_MS : WHOLE_FORMATS.includes(say) ? [2, 4, 10] : []).find((one) => one >= value);
  if (step) return step;
  const unit = say === bytes ? 1024 ** Math.floor(Math.log2(value) / 10) : 1;
  const power = unit * 10 ** Math.floor(Math.log10(value / unit));
  return [1, 2, 4, 5, 10].find((one) => one * power >= value) * power;
}

function sentence(title, points, beyond, { say = short, now }) {
  const values = points.map(({ value }) => value);
  const since = moment(points[0].at, now);
  const most = beyond.length && beyond.reduce((a, b) => (b.value > a.value ? b : a));
  const above = most ? `; ${beyond.length} above the scale, the largest at ${moment(most.at, now)}` : "";
  return `${title} since ${since}: ${say(Math.min(...values))} to ${say(Math.max(...values))}, ${say(values.at(-1))} last${above}`;
}
