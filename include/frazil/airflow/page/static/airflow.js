// The theme of the surrounding Airflow, links to its pages, and calls to the page's API.

/** The path of Airflow's UI. This page is below it, at …/frazil/ops/. */
const ROOT = location.pathname.replace(/\/frazil\/ops\/.*$/, "");

function parentWindow() {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null; // framed by another origin
  }
}

/** Follow the theme of Airflow, light or dark, or that of the system if the page is not inside Airflow. */
export function followTheme() {
  const around = parentWindow()?.document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    const named = around && ["dark", "light"].find((name) => around.classList.contains(name));
    document.documentElement.dataset.theme = named || (system.matches ? "dark" : "light");
  };
  if (around) new MutationObserver(follow).observe(around, { attributes: true, attributeFilter: ["class"] });
  system.addEventListener("change", follow);
  follow();
}

/** Copy the page's URL fragment to the URL of the surrounding Airflow, so that it can be shared and survives a reload. */
export function keepAddress() {
  const around = parentWindow();
  if (!around) return;
  if (!location.hash && around.location.hash.startsWith("#/")) location.replace(around.location.hash);
  const keep = () => around.history.replaceState(around.history.state, "", around.location.pathname + around.location.search + location.hash);
  for (const name of ["hashchange", "addresschange"]) addEventListener(name, keep);
}

/** Open a page of Airflow, such as /dags/frazil_health. The frame may not navigate its parent, but a link in the parent may. */
export function goTo(path) {
  const around = parentWindow();
  if (!around) return location.assign(ROOT + path);
  clickIn(around, { href: ROOT + path });
}

/** Click a temporary link in another window. */
function clickIn(around, attributes) {
  const link = Object.assign(around.document.createElement("a"), attributes);
  around.document.body.append(link);
  link.click();
  link.remove();
}

/** Attributes of a link to a page of Airflow. */
export function linkTo(path) {
  return {
    href: ROOT + path,
    onclick: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      goTo(path);
    },
  };
}

/** Attributes of an external link that opens a new tab. The frame may not open tabs, but a link in its parent may. */
export function linkOut(address) {
  const attributes = { href: address, target: "_blank", rel: "noopener noreferrer" };
  const onclick = (event) => {
    const around = parentWindow();
    if (!around) return;
    event.preventDefault();
    clickIn(around, attributes);
  };
  return { ...attributes, onclick };
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Call the page's API. Throws Refused with the server's message. The header shows that no other site sent the request. */
export async function call(path, body) {
  let answer;
  try {
    answer = await fetch(`api/${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { "X-Frazil": "page", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "Cannot reach the API server; retrying.");
  }
  if (answer.ok) return answer.json();
  const refusal = await answer.json().catch(() => ({}));
  const detail = typeof refusal.detail === "string" ? refusal.detail : answer.statusText;
  if (answer.status === 401) throw new Refused(401, "You are signed out. Reload Airflow to sign in again.");
  throw new Refused(answer.status, detail);
}
