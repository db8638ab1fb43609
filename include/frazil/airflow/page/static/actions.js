// Actions: a button opens a dialog that describes the effects. The dialog's button carries out the action.

import { call, linkTo, Refused } from "./airflow.js";
import { h, replace } from "./dom.js";
import { badge } from "./marks.js";
import { words } from "./parts.js";

const REASON = { name: "reason", label: "Reason (visible to others)", kind: "text", free: true };
const TYPING_PAUSE_MS = 250; // The form is checked once the user pauses.
const RUN_INTERVAL_MS = 2000;
const RUN_LEVELS = { success: 4, failed: 0 };
const DRY = { name: "dry-run", label: "Dry run: only log what would change", kind: "toggle", value: true };

const ACTIONS = {
  pause: { label: "Pause", verb: "Pause", fields: [REASON] },
  resume: { label: "Resume", verb: "Resume", fields: [REASON] },
  restart: { label: "Restart", verb: "Restart", fields: [REASON] },
  reset: {
    label: "Reset …",
    verb: "Reset",
    fields: [
      {
        name: "to",
        label: "Continue",
        kind: "choice",
        value: "marker",
        choices: {
          marker: "at its position, or Kafka's first record",
          table: "at the table's position, after a rollback",
          earliest: "at the beginning of Kafka",
          latest: "at the end of Kafka",
          timestamp: "at a Kafka timestamp",
        },
      },
      { name: "at", label: "Timestamp", kind: "text", hint: "2013-12-30 00:00Z", only: (form) => form.to === "timestamp" },
    ],
  },
  backfill: {
    label: "Backfill …",
    verb: "Backfill",
    fields: [
      { name: "from-time", label: "From (Kafka's timestamp)", kind: "text", hint: "2013-12-30 00:00Z" },
      { name: "to-time", label: "To (exclusive)", kind: "text", hint: "2013-12-31 00:00Z" },
      DRY,
    ],
  },
  abandon: { label: "Abandon the backfill …", verb: "Abandon", title: "Abandon the backfill of", fields: [] },
  replay: { label: "Replay dead letters …", verb: "Replay", fields: [DRY] },
  maintain: { label: "Maintain now …", verb: "Maintain", fields: [DRY] },
  release: {
    label: "Release a window …",
    verb: "Release",
    fields: [{ name: "partition", label: "Window", kind: "text", hint: "2013-12-30 15:00" }, { ...REASON, free: false, label: "Reason (stored with the window)" }],
  },
  "send-again": {
    label: "Send signals again …",
    verb: "Send again",
    fields: [{ name: "day", label: "Day", kind: "text", hint: "2013-12-30" }],
  },
};

/** Return the action buttons of a stream or table, or a sentence if the user may not act. */
export function actions(names, subject, may, page, given = {}) {
  if (!may) return h("p", { class: "actions soft" }, "Read-only: Airflow does not permit you to act here.");
  return h("div", { class: "actions", role: "group", "aria-label": "Actions" },
    names.map((name) => h("button", { class: "plain", "data-key": `action-${name}`, onclick: () => open(name, subject, page, given) }, ACTIONS[name].label)),
  );
}

function open(name, subject, page, given) {
  const action = ACTIONS[name];
  const at = `${name}/${encodeURIComponent(subject)}`;
  const form = Object.fromEntries(action.fields.map((field) => [field.name, given[field.name] ?? field.value ?? ""]));
  const state = { plan: null, problem: null, failed: null, asking: true, busy: false, typed: "", done: null, run: null, changed: false };
  const before = document.activeElement?.dataset.key;
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" });
  const place = h("div", {});
  let asked = 0;
  let soon = null;
  dialog.append(place);
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    clearTimeout(soon);
    dialog.remove();
    document.querySelector(`[data-key="${CSS.escape(before || "")}"]`)?.focus();
  });

  const fetched = async (path, body) => {
    try {
      return { answer: await call(path, body) };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { problem: error.message };
    }
  };
  const send = (what, body) => fetched(`${what}/${at}`, body);

  // The last plan stays visible until the next one arrives. Only the response to the last request counts.
  const plan = async () => {
    const mine = ++asked;
    state.asking = true;
    draw();
    const { answer = null, problem = null } = await send("plan", form);
    if (mine !== asked) return;
    Object.assign(state, { plan: answer, problem, asking: false });
    draw();
  };

  const confirm = async (event) => {
    event.preventDefault();
    if (!ready()) return;
    Object.assign(state, { busy: true, failed: null });
    draw();
    const { answer = null, problem = null } = await send("action", { ...form, version_token: state.plan.version_token });
    Object.assign(state, { busy: false, done: answer, failed: problem });
    if (!answer) {
      plan();
      return;
    }
    draw();
    document.getElementById("spoken").textContent = answer.message;
    dialog.querySelector("button")?.focus();
    page.load();
    if (answer.run) follow(answer.run);
  };

  // Until the run has ended, or the dialog is closed.
  const follow = async (run) => {
    const { answer = null } = await fetched(`run/${at}?run=${encodeURIComponent(run)}`);
    if (!dialog.isConnected) return;
    if (answer && answer.message !== state.run?.message) {
      state.run = answer;
      draw();
      if (answer.finished) document.getElementById("spoken").textContent = answer.message;
    }
    if (answer?.finished) page.load();
    else soon = setTimeout(() => follow(run), RUN_INTERVAL_MS);
  };

  const possible = () => state.plan && !state.plan.refused && !state.plan.missing && !state.asking && !state.busy;
  const ready = () => possible() && (!state.plan.retype || state.typed === subject);

  const change = (field, value) => {
    form[field.name] = value;
    Object.assign(state, { failed: null, changed: true });
    clearTimeout(soon);
    if (!field.free) {
      asked += 1;
      state.asking = true;
      soon = setTimeout(plan, field.kind === "text" ? TYPING_PAUSE_MS : 0);
    }
    draw();
  };

  function draw() {
    const close = h("button", { type: "button", class: "plain", "data-key": "close", onclick: () => dialog.close() }, state.done ? "Close" : "Cancel");
    const title = h("h2", { id: "dialog-title" }, `${action.title || action.verb} ${subject}`);
    if (state.done) {
      replace(place, title, h("p", { role: "status" }, words(state.done.message)), state.done.run && result(), h("footer", {}, close));
      return;
    }
    const go = h("button", { type: "submit", class: "go", "data-key": "go", disabled: !ready() }, state.busy ? "Working …" : action.verb);
    replace(place,
      h("form", { onsubmit: confirm, "aria-busy": String(state.asking) },
        title,
        action.fields.filter((field) => !field.only || field.only(form)).map((field) => input(field, form, change)),
        state.plan?.unpause && input({ name: "unpause", label: `Unpause the DAG ${state.plan.unpause}`, kind: "toggle" }, form, change),
        h("h3", {}, "What will happen"),
        state.plan
          ? h("ul", { class: "says" }, state.plan.effects.map((effect) => h("li", {}, words(effect))))
          : !state.problem && h("p", { class: "soft" }, "Loading …"),
        (state.plan?.refused || state.plan?.missing) && h("p", { class: state.plan.refused || state.changed ? "problem" : "note" }, words(state.plan.refused || state.plan.missing)),
        // A refusal has the same text as the new plan.
        [state.problem, state.failed].filter((problem) => problem && problem !== (state.plan?.refused || state.plan?.missing)).map((problem) => h("p", { class: "problem", role: "alert" }, words(problem))),
        state.plan?.retype && !state.plan.refused && retype(),
        h("footer", {}, close, go),
      ),
    );
  }

  /** The state of the run that the action started, and a link to the log of the task that explains it. */
  const result = () => {
    const { run } = state;
    return [
      run && h("p", { class: "result" }, badge(RUN_LEVELS[run.state] ?? 2, run.state), " ", words(run.message)),
      h("p", {}, h("a", { ...linkTo(run?.log || state.done.log), "data-key": "run" }, run?.log.includes("/tasks/") ? "Its log in Airflow" : "The run in Airflow")),
    ];
  };

  const retype = () =>
    input({ name: "typed", label: `Type ${subject} to confirm`, kind: "text" }, { typed: state.typed }, (_, value) => {
      state.typed = value;
      draw();
    });

  draw();
  dialog.showModal();
  plan();
}

function input(field, form, change) {
  const common = { name: field.name, "data-key": `field-${field.name}` };
  if (field.kind === "toggle") {
    const box = h("input", { ...common, type: "checkbox", checked: Boolean(form[field.name]), onchange: (event) => change(field, event.target.checked) });
    return h("label", { class: "toggle" }, box, field.label);
  }
  if (field.kind === "choice") {
    const options = Object.entries(field.choices).map(([value, label]) => h("option", { value, selected: form[field.name] === value }, label));
    return h("label", {}, field.label, h("select", { ...common, onchange: (event) => change(field, event.target.value) }, options));
  }
  return h("label", {}, field.label, h("input", { ...common, type: "text", autocomplete: "off", placeholder: field.hint, value: form[field.name], oninput: (event) => change(field, event.target.value) }));
}
