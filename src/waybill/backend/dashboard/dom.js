// Elements and their updates. A page draws all of its elements again, and `morph` changes the shown ones to match, with
// as few changes as possible. Focus, scroll positions, open details and typed text stay.

const SVG = "http://www.w3.org/2000/svg";
const OWN = new Set(["open", "value", "checked"]);

// `h("div.card", {onclick}, child, ...)`: a tag with its classes, properties if there are any, children.
export function h(tag, ...content) {
  const [name, ...classes] = tag.split(".");
  return build(document.createElement(name), classes, content);
}

export function s(tag, ...content) {
  return build(document.createElementNS(SVG, tag), [], content);
}

function build(element, classes, children) {
  const isProps = children[0] && Object.getPrototypeOf(children[0]) === Object.prototype;
  const props = isProps ? children.shift() : {};
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) {
      (element.handlers ||= {})[name] = value;
      element[name] = value;
    } else if (name === "key") element.key = value;
    else if (name === "style") (element.styles = value, setStyles(element));
    else if (name === "value" && "value" in element && element.localName !== "option") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...parts(children));
  return element;
}

function parts(children) {
  return children.flat(9).filter(one => one !== null && one !== undefined && one !== false).map(one => (one.key === one && one.isConnected ? stand(one) : one));
}

// Marks an element that draws itself. It stays in place while others change, because moving it would lose its focus and
// its scroll position. When a page is drawn again, a placeholder stands for it.
export function keep(element) {
  element.key = element;
  return element;
}

// The placeholder of an element that stays.
export function stand(element) {
  return Object.assign(document.createElement("template"), { key: element.key, element });
}

function setStyles(element) {
  for (const [name, value] of Object.entries(element.styles)) element.style.setProperty(name, value);
}

export function show(place, content) {
  const box = document.createElement(place.localName);
  box.append(...parts([content]));
  morphChildren(place, box);
  for (const one of place.querySelectorAll("template")) one.replaceWith(one.element);
}

function morph(old, wanted) {
  if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName || old.key !== wanted.key) {
    if (old !== wanted) old.replaceWith(wanted);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !OWN.has(name) && name !== "style") old.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (name !== "style" && !(OWN.has(name) && old.hasAttribute(name)) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (wanted.styles) (old.styles = wanted.styles, setStyles(old));
  for (const name of Object.keys(old.handlers || {})) if (!wanted.handlers?.[name]) old[name] = null;
  for (const [name, value] of Object.entries(wanted.handlers || {})) old[name] = value;
  old.handlers = wanted.handlers;
  if (old.localName === "select" && old !== document.activeElement) {
    morphChildren(old, wanted);
    old.value = wanted.value;
    return;
  }
  if (old.localName === "input" && old !== document.activeElement) {
    if (old.type === "checkbox") old.checked = wanted.checked;
    else if (!old.hasAttribute("data-own")) old.value = wanted.value;
  }
  if (old.localName !== "textarea") morphChildren(old, wanted);
}

function morphChildren(old, wanted) {
  const children = [...wanted.childNodes], keyed = new Map();
  for (const child of children) if (child.key !== undefined) keyed.set(child.key, null);
  for (const child of [...old.childNodes]) {
    if (child.key === undefined) continue;
    if (keyed.has(child.key)) keyed.set(child.key, child);
    else child.remove();
  }
  let place = old.firstChild;
  for (const child of children) {
    const known = child.key === undefined ? place : keyed.get(child.key);
    if (!known || (child.key === undefined && known.key !== undefined)) {
      // A new element. The one at this place is matched later.
      old.insertBefore(child, place);
      continue;
    }
    if (known === place) place = place.nextSibling;
    else old.insertBefore(known, place);
    if (known !== child.element) morph(known, child);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

const PATHS = {
  overview: "M3 13h4v8H3zM10 8h4v13h-4zM17 3h4v18h-4z",
  jobs: "M4 6h16M4 12h16M4 18h10",
  failures: "M12 4l9 16H3zM12 10v4M12 17v.5",
  queues: "M4 7l8-4 8 4-8 4zM4 12l8 4 8-4M4 17l8 4 8-4",
  workers: "M5 5h14v14H5zM9 9h6v6H9zM9 2v3M15 2v3M9 19v3M15 19v3M2 9h3M2 15h3M19 9h3M19 15h3",
  cron: "M12 3a9 9 0 1 0 .01 0M12 7v5l3 3",
  workflows: "M4 4h6v6H4zM14 14h6v6h-6zM10 7h7v7",
  operations: "M4 6h10M4 12h16M4 18h7M17 4l3 2-3 2",
  audit: "M6 3h9l4 4v14H6zM9 11h7M9 15h7",
  pipeline: "M4 19V9M10 19V5M16 19v-7M22 19H2",
  broker: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5v.01M8 16.5v.01",
  menu: "M4 7h16M4 12h16M4 17h16",
  enqueue: "M12 5v14M5 12h14",
  theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
  key: "M15 9a4 4 0 1 0-3.9 5L13 12h2v-2h2",
  search: "M11 4a7 7 0 1 0 .01 0M16 16l5 5",
};

export function icon(name) {
  return s("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, s("path", { d: PATHS[name] }));
}
