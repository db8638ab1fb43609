// One table: files, windows, snapshots, and past and due maintenance.

import { actions } from "./actions.js";
import { linkTo } from "./airflow.js";
import { bar, gauge } from "./charts.js";
import { h, replace, s } from "./dom.js";
import { ago, bytes, count, counted, moment, short, times } from "./format.js";
import { badge, shape } from "./marks.js";
import { breadcrumb, card, needsList, number, words } from "./parts.js";

export const title = (name) => name;
export const path = (name) => `table/${encodeURIComponent(name)}`;
export const begin = () => ({});

export function draw(view, state, page) {
  return [
    breadcrumb(view.table),
    h("header", { class: "top" }, h("h1", {}, view.table), badge(view.level, view.pending && !view.shape ? "loading" : view.word), h("p", { class: "aside" }, "Written by ", view.streams.map((name, i) => [i ? ", " : "", h("a", { href: `#/stream/${encodeURIComponent(name)}`, "data-key": `to-${name}` }, name)]), "; times are UTC")),
    actions(offeredActions(view), view.table, view.may_act, page, { partition: times((state.release ?? held(view)[0])?.key ?? "") }),
    needsList([...view.route_problems, ...view.alerts, ...view.problems], view.level),
    view.shape ? [numbers(view.shape), heldWindows(view, state, page), windows(view, page), h("div", { class: "columns" }, files(view.shape), maintenance(view)), snapshots(view)] : noTable(view),
  ];
}

function held(view) {
  return (view.calendar?.cells ?? []).filter((cell) => cell.state === "held");
}

const MAX_HELD = 3;

/** The oldest held windows, each with its gate's finding, and the others on request. *Release* opens the action's form for a window. */
export function heldWindows(view, state, page) {
  const cells = held(view);
  if (!cells.length) return null;
  const release = (cell) => {
    state.release = cell;
    page.draw();
    document.querySelector('[data-key="action-release"]')?.click();
  };
  const list = (some) => h("ul", { class: "runs" }, some.map((cell) => h("li", {}, shape(1), h("div", {}, h("a", { href: addressOf(view, cell), "data-key": `held-${cell.key}` }, times(cell.key)), " ", h("button", { class: "plain", onclick: () => release(cell), "data-key": `release-${cell.key}` }, `Release ${times(cell.key)} …`), h("small", {}, words(cell.note || "Its gate gave no reason."))))));
  const others = cells.slice(MAX_HELD);
  const remember = (event) => { state.showsAllHeld = event.target.open; };
  return card("Held windows",
    list(cells.slice(0, MAX_HELD)),
    others.length > 0 && h("details", { class: "more", open: state.showsAllHeld, ontoggle: remember }, h("summary", { "data-key": "held-more" }, `and ${count(others.length)} more`), list(others)),
  );
}

/** The URL of the page with one window chosen. */
function addressOf(view, cell) {
  return `#/table/${encodeURIComponent(view.table)}?window=${encodeURIComponent(cell.key)}`;
}

function offeredActions(view) {
  return [view.kind !== "dead letters" && "maintain", held(view).length > 0 && "release", view.calendar?.waits_for && "send-again"].filter(Boolean);
}

function noTable(view) {
  if (view.problems.length || view.route_problems.length) return null;
  if (view.pending) return h("section", { class: "empty" }, h("p", {}, "Loading the table …"));
  return h("section", { class: "empty" }, h("h2", {}, "The table does not exist yet"), h("p", {}, "A stream's first batch creates it."));
}

function numbers(it) {
  const average = it.files ? it.bytes / it.files : 0;
  return h("dl", { class: "numbers" },
    number("Rows", short(it.rows), bytes(it.bytes)),
    number("Data files", count(it.files), it.files ? `${bytes(average)} on average` : "none"),
    number("Manifest list", `${bytes(it.list_bytes_per_file)} per file`, gaugeOf(it)),
    number("Snapshots", count(it.snapshots), `${counted(it.manifests, "manifest")}`),
    number("metadata.json", bytes(it.metadata_bytes), "read and written by each commit"),
    it.delete_files > 0 && number("Delete files", count(it.delete_files), "applied by each reader"),
  );
}

function gaugeOf(it) {
  const limit = `${bytes(it.limit)} at most`;
  return [gauge(it.list_bytes_per_file, it.limit, `${bytes(it.list_bytes_per_file)} of ${limit}`), limit];
}

/* Windows */

const STATES = {
  complete: "complete",
  reopened: "reopened by late rows",
  released: "released by a user",
  held: "held by its quality gate",
  open: "open",
  history: "never signalled",
  written: "has rows",
  empty: "no rows",
};
const SIGNS = { reopened: "↻", released: "✓", held: "!", open: "" };
const MARKS = { compacted: "compacted", backfilled: "being backfilled" };
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

export function windows(view, page) {
  const { calendar } = view;
  if (!calendar) return null;
  const hourly = calendar.grain === "hour";
  const next = calendar.waits_for ? `Next: ${times(calendar.waits_for)}` : "No window is signalled: these are the table's partitions.";
  const asked = new URLSearchParams(location.hash.split("?")[1]).get("window");
  const chosen = calendar.cells.find((cell) => cell.key === asked);
  const readout = h("output", { class: "soft read" }, chosen ? words(wordsOf(chosen)) : next);
  const used = Object.keys(STATES).filter((state) => calendar.cells.some((cell) => cell.state === state));
  const bare = Object.keys(STATES).find((state) => state !== "empty" && calendar.cells.some((cell) => cell.state === state && cell.rows === 0));
  const marks = Object.keys(MARKS).filter((mark) => calendar.cells.some((cell) => cell[mark]));
  const rows = new Map();
  for (const cell of calendar.cells) {
    const row = hourly ? cell.key.slice(0, 10) : weekOf(cell.key);
    rows.set(row, [...(rows.get(row) || []), cell]);
  }
  const hours = hourly ? calendar.cells.map((cell) => Number(cell.key.slice(11))) : [];
  const first = hourly ? Math.min(...hours) : 0;
  const columns = hourly ? Array.from({ length: Math.max(...hours) - first + 1 }, (_, i) => String(first + i).padStart(2, "0")) : DAYS;
  const place = (cell) => (hourly ? Number(cell.key.slice(11)) - first : (new Date(`${cell.key}T00:00Z`).getUTCDay() + 6) % 7);
  return card(
    hourly ? "Windows, by day and hour (UTC)" : "Windows, by week and day",
    h("div", { class: "legend" },
      used.map((state) => h("span", {}, h("i", { class: `cell ${state}`, "aria-hidden": "true" }, SIGNS[state] || ""), STATES[state])),
      bare && h("span", {}, h("i", { class: `cell ${bare} bare`, "aria-hidden": "true" }), "pale: no rows"),
      marks.map((mark) => h("span", {}, h("i", { class: `cell open ${mark}`, "aria-hidden": "true" }), MARKS[mark])),
    ),
    h("div", { class: "calendar-frame", role: "group", "aria-label": "Windows. Arrow keys move, Enter chooses", onkeydown: moveFocus },
      h("table", { class: `calendar ${calendar.grain}` },
        h("thead", {}, h("tr", {}, h("td", {}), columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, [...rows].map(([row, cells]) => h("tr", {}, h("th", { scope: "row" }, row), spread(cells, place, columns.length).map((cell, i) => h("td", { "data-column": columns[i] }, cell && calendarCell(cell, readout, addressOf(view, cell), { isChosen: cell === chosen, isReached: cell === (chosen || calendar.cells.at(-1)) }, page)))))),
      ),
    ),
    readout,
    chosen && startedRuns(view, chosen),
  );
}

const RUN_SHAPES = { success: 4, failed: 0 };

/** The runs of DAGs that the chosen window's events started, with their states. */
function startedRuns(view, cell) {
  if (!view.runs || cell.state === "open") return null;
  const runs = view.runs[cell.key] || [];
  if (!runs.length) return h("p", { class: "soft" }, cell.state === "held" ? "DAGs that wait for this window start once its gate passes or a user releases it." : `No DAG run was started by ${times(cell.key)}.`);
  const link = (run) => h("a", { ...linkTo(`/dags/${encodeURIComponent(run.dag)}/runs/${encodeURIComponent(run.run)}`), "data-key": `run-${run.dag}-${run.run}` }, run.dag);
  return [h("h3", { class: "spaced" }, `DAG runs that ${times(cell.key)} started`), h("ul", { class: "runs started" }, runs.map((run) => h("li", {}, shape(RUN_SHAPES[run.state] ?? 2), h("div", {}, link(run), ` ${run.state}`))))];
}

function spread(cells, place, width) {
  const row = Array(width).fill(null);
  for (const cell of cells) row[place(cell)] = cell;
  return row;
}

function marksOf(cell) {
  return Object.keys(MARKS).filter((mark) => cell[mark]);
}

function wordsOf(cell) {
  const facts = [
    STATES[cell.state],
    cell.rows !== null && counted(cell.rows, "row"),
    cell.late_rows > 0 && `${count(cell.late_rows)} of them late`,
    cell.files > 0 && `${counted(cell.files, "file")} in its partition`,
    ...marksOf(cell).map((mark) => MARKS[mark]),
  ].filter(Boolean);
  return `${times(cell.key)}: ${facts.join(", ")}${cell.note ? `; ${cell.note}` : ""}`;
}

/** A cell of the calendar. A click puts the window into the page's URL. The Tab key reaches one cell. */
function calendarCell(cell, readout, address, { isChosen, isReached }, page) {
  const text = wordsOf(cell);
  const show = () => replace(readout, document.createTextNode(text));
  const choose = () => {
    history.replaceState(null, "", address);
    dispatchEvent(new Event("addresschange"));
    page.draw();
  };
  return h("button", { type: "button", class: `cell ${cell.state}${cell.rows === 0 ? " bare" : ""}${isChosen ? " chosen" : ""} ${marksOf(cell).join(" ")}`, title: text, "aria-label": text, "aria-pressed": String(isChosen), "data-key": `window-${cell.key}`, tabindex: isReached ? 0 : -1, onpointerenter: show, onfocus: show, onclick: choose }, SIGNS[cell.state] || "");
}

/** Move the focus to the next cell in the direction of an arrow key. */
function moveFocus(event) {
  const cells = [...event.currentTarget.querySelectorAll("button.cell")];
  const at = cells.indexOf(event.target);
  const place = event.target.closest("td");
  const inColumn = cells.filter((cell) => cell.closest("td").cellIndex === place?.cellIndex);
  const row = inColumn.indexOf(event.target);
  const next = { ArrowLeft: cells[at - 1], ArrowRight: cells[at + 1], ArrowUp: inColumn[row - 1], ArrowDown: inColumn[row + 1], Home: cells[0], End: cells.at(-1) }[event.key];
  if (at < 0 || !next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function weekOf(key) {
  const day = new Date(`${key}T00:00Z`);
  day.setUTCDate(day.getUTCDate() - ((day.getUTCDay() + 6) % 7));
  return day.toISOString().slice(0, 10);
}

/* Files */

function files(it) {
  const most = Math.max(...it.histogram.map((bucket) => bucket.files), 1);
  const all = it.histogram.reduce((sum, bucket) => sum + bucket.files, 0); // in the snapshot of the histogram, which may be older than the current one
  const small = it.histogram.filter((bucket) => bucket.below <= it.target_bytes * 0.75).reduce((sum, bucket) => sum + bucket.files, 0);
  return card("Files by size",
    it.histogram.length
      ? [
          h("p", { class: "soft" }, `${count(small)} of ${counted(all, "file")} are below three quarters of the target, ${bytes(it.target_bytes)}.`),
          h("table", { class: "bars" }, h("thead", { class: "unseen" }, h("tr", {}, h("th", { scope: "col" }, "Size"), h("th", { scope: "col" }, "Files"))), h("tbody", {}, it.histogram.map((bucket) => h("tr", {}, h("th", { scope: "row" }, `${bucket.at_least ? bytes(bucket.at_least) : "0"} – ${bytes(bucket.below)}`), h("td", {}, bar(bucket.files / most), h("span", {}, count(bucket.files))))))),
        ]
      : h("p", { class: "soft" }, it.files ? "Too many files to read their manifests here. Run frazil health --deep to count them." : "No file yet."),
  );
}

/* Maintenance */

function maintenance(view) {
  const it = view.shape;
  const dag = Object.keys(view.dags || {}).find((id) => id === "frazil_maintenance");
  const paused = dag && view.dags[dag];
  return card("Maintenance",
    h("p", { class: "soft" }, `Checked every ${view.every}. `, dag && h("a", { ...linkTo(`/dags/${encodeURIComponent(dag)}`), "data-key": dag }, "Runs in Airflow"), paused && [". ", h("b", {}, "The DAG is paused: no table is maintained.")]),
    h("ul", { class: "runs" }, it.actions.map((action) => h("li", {}, shape(action.due ? (paused ? 1 : 2) : action.enabled ? 4 : 3), h("div", {}, h("b", {}, action.name), action.due ? " is due" : action.enabled ? " is not due" : " is off", h("small", {}, action.reason))))),
    h("h3", { class: "spaced" }, "Past maintenance"),
    it.past.length ? h("ul", { class: "runs" }, it.past.map((one) => past(one, view.at_ms))) : h("p", { class: "soft" }, "No maintenance so far."),
  );
}

const LEVELS = { done: 4, "gave up": 3, refused: 1, failed: 1 };

/** The result of one maintenance action, or why it did nothing. */
function past(one, now) {
  const [result, saved] = one.ending === "done" ? describeResult(one) : [`${one.action} ${one.ending === "gave up" ? "gave up" : one.ending === "failed" ? "failed" : "was refused"}`, one.sentence];
  return h("li", {}, shape(LEVELS[one.ending] ?? 2), h("div", {}, h("b", {}, moment(one.at_ms, now)), ` ${result}`, h("small", {}, [saved, ago(one.at_ms, now)].filter(Boolean).join(", "))));
}

function describeResult({ action, numbers, sentence }) {
  const n = (name) => numbers[name] || 0;
  if (action === "compaction" && n("files-removed")) return [`${counted(n("files-removed"), "file")} became ${count(n("files-added"))}`, `${bytes(n("bytes"))} became ${bytes(n("bytes-added"))}`];
  if (action === "manifests") return [`${counted(n("manifests-removed"), "manifest")} became ${count(n("manifests-added"))}`, ""];
  if (action === "expiry") {
    const files = n("data-files-removed") + n("delete-files-removed");
    return [`${counted(n("snapshots-expired"), "snapshot")} expired`, files ? `${counted(files, "file")} of about ${bytes(n("bytes-about"))} were deleted` : "no files were deleted"];
  }
  if (action === "orphans" && !n("files-removed")) return ["no orphan file deleted", sentence];
  if (action === "orphans") return [`${counted(n("files-removed"), "orphan file")} deleted`, `${bytes(n("bytes"))} freed`];
  return [action, sentence];
}

/* Snapshots */

const WIDEST = 1200;
const NARROW = 600;
const MARGINS = 32;

/** Drawn at its displayed width, so that text keeps its size. On narrow screens, labels are above the lines. */
export function snapshots(view) {
  const { marks } = view.shape;
  if (!marks.length) return null;
  const lanes = [...new Set(marks.map(lane))];
  const from = marks[0].at_ms;
  const to = Math.max(view.at_ms, marks.at(-1).at_ms, from + 1);
  const width = Math.min(WIDEST, document.documentElement.clientWidth - MARGINS);
  const [left, row, line] = width < NARROW ? [0, 40, 28] : [190, 24, 12]; // left of the lines, between them, and above each line
  const fits = left ? 26 : Math.floor(width / 8);
  const x = (at) => left + 6 + ((at - from) / (to - from)) * (width - left - 16);
  const height = lanes.length * row + 26;
  const shown = marks.filter((mark) => mark.kind !== "expiry").length;
  const counts = lanes.map((name) => `${marks.filter((mark) => lane(mark) === name).length} of ${name}`);
  return card("Snapshots",
    h("p", { class: "soft" }, `${shown < view.shape.snapshots ? `The newest ${count(shown)} of` : "All"} ${count(view.shape.snapshots)} snapshots by operation${marks.some((mark) => mark.kind === "expiry") ? ", with the times of expiries" : ""}.`),
    s(
      "svg",
      { class: "lanes", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Snapshots since ${moment(from, view.at_ms)}: ${counts.join(", ")}` },
      lanes.map((name, i) => [
        s("text", { x: 0, y: i * row + 16 }, name.length > fits ? `${name.slice(0, fits - 1)}…` : name),
        s("line", { class: "grid", x1: left, x2: width, y1: i * row + line, y2: i * row + line }),
      ]),
      marks.map((mark) => s("rect", { class: `mark ${mark.kind}`, x: x(mark.at_ms) - 1.5, y: lanes.indexOf(lane(mark)) * row + line - 8, width: 3, height: 16, rx: 1 }, s("title", {}, `${moment(mark.at_ms, view.at_ms)}: ${mark.label}, ${mark.message}`))),
      [from, (from + to) / 2, to].map((at, i) => s("text", { class: "axis", x: x(at), y: height - 4, "text-anchor": ["start", "middle", "end"][i] }, moment(at, view.at_ms))),
    ),
  );
}

function lane(mark) {
  return mark.stream ? `${mark.label}, ${mark.stream}` : mark.label;
}
