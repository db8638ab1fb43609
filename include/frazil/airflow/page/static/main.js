// Shows the view for the URL's fragment, and refreshes it.

import { call, followTheme, keepAddress, Refused } from "./airflow.js";
import { h, replace } from "./dom.js";
import * as overview from "./overview.js";
import { needsList } from "./parts.js";
import * as stream from "./stream.js";
import * as table from "./table.js";

const REFRESH_INTERVAL_MS = 5000;
const PENDING_INTERVAL_MS = 250;

const VIEWS = [
  { at: /^$/, view: overview },
  { at: /^stream\/(.+)$/, view: stream },
  { at: /^table\/(.+)$/, view: table },
];

const page = document.getElementById("page");
let shown = null; // {view, arguments, state, data, problem}
let timer = null;
let lastRequest = 0;

function route() {
  const path = decodeURIComponent(location.hash.replace(/^#\/?/, "").split("?")[0]);
  for (const { at, view } of VIEWS) {
    const found = at.exec(path);
    if (found) return { view, arguments: found.slice(1) };
  }
  return { view: overview, arguments: [] };
}

function show() {
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close()); // it belongs to the previous view
  const next = route();
  shown = { ...next, state: next.view.begin(...next.arguments), data: null, problem: null };
  draw();
  scrollTo(0, 0);
  load();
}

async function load() {
  clearTimeout(timer);
  if (document.hidden) return;
  const mine = shown;
  const number = ++lastRequest;
  try {
    const data = await call(mine.view.path(...mine.arguments, mine.state));
    if (mine !== shown || number !== lastRequest) return;
    mine.data = data;
    mine.problem = null;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (mine !== shown || number !== lastRequest) return;
    mine.problem = error;
  }
  draw();
  if (mine.data && !mine.data.pending && !mine.problem) requestedButton()?.click();
  timer = setTimeout(load, mine.data?.pending && !mine.problem ? PENDING_INTERVAL_MS : REFRESH_INTERVAL_MS);
}

/** Return the button of the action in the URL, such as `#/table/demo.ticks?action=release`, but only once; null if the view does not offer it. */
function requestedButton() {
  const [at, query] = location.hash.split("?");
  const action = new URLSearchParams(query).get("action");
  if (!action) return null;
  history.replaceState(null, "", at);
  return document.querySelector(`[data-key="action-${CSS.escape(action)}"]`);
}

function draw() {
  const { view, data, problem, state } = shown;
  document.title = view.title(...shown.arguments);
  replace(page,
    problem && h("p", { class: "problem", role: "alert" }, problem.message),
    data && needsList(data.airflow, 0, "airflow"),
    data ? view.draw(data, state, { draw, load }) : problem ? null : skeleton(view.title(...shown.arguments)),
  );
}

function skeleton(title) {
  return [
    h("header", { class: "top" }, h("h1", {}, title)),
    h("div", { class: "skeleton", "aria-busy": "true" }, h("span", { class: "unseen" }, "Loading"), [1, 2, 3, 4].map(() => h("i"))),
  ];
}

followTheme();
keepAddress();
addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : load()));
show();
