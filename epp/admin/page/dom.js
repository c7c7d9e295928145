// Makes elements. Text becomes text nodes only: names of models and endpoints come from others.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "class") node.setAttribute("class", value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return node;
}

/** Return an element; a function among the attributes is a listener of the event of that name. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set the text of a node, if it differs. */
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Set an attribute, if it differs; null removes it. */
export function setAttribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

export function byId(id) {
  return document.getElementById(id);
}

/** Return a table with a header; a column is a text, or {text, number: true, kind, title}. */
export function table(caption, columns, rows) {
  const heads = columns.map((each) => (typeof each === "string" ? { text: each } : each));
  const kinds = heads.map((each) => (each.number ? "number" : each.kind || null));
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, heads.map((each, index) =>
        el("th", { scope: "col", class: kinds[index], title: each.title }, each.text)))),
      el("tbody", {}, rows.map((cells) =>
        el("tr", {}, cells.map((cell, index) => el("td", { class: kinds[index] }, cell))))),
    ),
  );
}

/** Return a paragraph for a section that has nothing to show. */
export function nothing(text) {
  return el("p", { class: "nothing" }, text);
}
