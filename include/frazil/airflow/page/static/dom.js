// Creates elements. Children are text, so the content of records never becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: h("a", {href: "#", class: "x"}, "text", child, [more]). Children that are null, undefined or false are left out. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element, with the same arguments as `h`. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replace the content of `place`. Focus and selection stay in the element with the same data-key. */
export function replace(place, ...tree) {
  const active = document.activeElement;
  const key = place.contains(active) ? active.dataset?.key : null;
  const caret = key && "selectionStart" in active ? active.selectionStart : null;
  place.replaceChildren(...tree.flat(Infinity).filter(Boolean));
  if (!key) return;
  const again = place.querySelector(`[data-key="${CSS.escape(key)}"]`);
  again?.focus({ preventScroll: true });
  if (again && caret !== null) again.setSelectionRange(caret, caret);
}
