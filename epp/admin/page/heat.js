// The heat map of the fleet: a cell for each endpoint, small enough for a thousand.

import { el, setAttribute, setText } from "./dom.js";
import { cell, state } from "./feed.js";
import { amount, count, percent, seconds } from "./format.js";

export const MEASURES = [
  { key: "queue", text: "Queue", unit: "waiting", format: amount, top: (most) => Math.max(8, most) },
  { key: "kv_usage", text: "KV cache", unit: "used", format: percent, top: () => 1 },
  { key: "in_flight", text: "In flight", unit: "from here", format: count, top: (most) => Math.max(8, most) },
  { key: "seconds", text: "Duration", unit: "a request", format: seconds, top: (most) => Math.max(1, most) },
  { key: "picked_share", text: "Share", unit: "of requests", format: percent, top: (most) => Math.max(0.01, most) },
];

/** State as shown: draining is above health. */
export function shownState(row) {
  return cell(row, "draining") ? "draining" : cell(row, "state");
}

export function stateText(row) {
  const names = { unwatched: "not watched" };
  const shown = shownState(row);
  return names[shown] || shown;
}

function sizeOf(total) {
  if (total <= 24) return "large";
  return total <= 200 ? "middle" : "small";
}

/** Name without the namespace, if all endpoints are of the same. */
function shortName(row) {
  const name = cell(row, "name");
  return sharedNamespace && name.startsWith(sharedNamespace) ? name.slice(sharedNamespace.length) : name;
}

let sharedNamespace = "";

function findNamespace() {
  const first = state.rows.length ? cell(state.rows[0], "name") : "";
  const namespace = first.slice(0, first.lastIndexOf("/") + 1);
  sharedNamespace = state.rows.every((row) => cell(row, "name").startsWith(namespace)) ? namespace : "";
}

/** What a large cell says below its value. */
function remark(row) {
  const shown = shownState(row);
  if (shown === "draining") return `${cell(row, "draining")}, ${count(cell(row, "in_flight"))} in flight`;
  if (shown === "healthy" || shown === "unwatched") {
    return `KV ${percent(cell(row, "kv_usage"))}, ${count(cell(row, "running"))} running`;
  }
  return shown === "ejected" ? cell(row, "reason") : `${shown}: ${cell(row, "reason")}`;
}

/** Make the map; choose(index) is called for a cell that is clicked. */
export function makeHeat(choose) {
  const node = el("div", { class: "heat", role: "group", "aria-label": "Endpoints" });
  const topText = el("span");
  const measureText = el("span");
  let measure = MEASURES[0];
  let cells = [];
  let focused = 0;
  let chosen = null;

  function makeCell(index) {
    const label = el("span", { class: "label" });
    const value = el("span", { class: "value" });
    const why = el("span", { class: "why" });
    const button = el("button", {
      type: "button", class: "cell", tabindex: index === focused ? 0 : -1,
      click: () => choose(index),
      focus: () => moveTo(index, false),
    }, label, value, why);
    return { button, label, value, why };
  }

  function moveTo(index, takesFocus = true) {
    if (index < 0 || index >= cells.length) return;
    if (cells[focused]) cells[focused].button.tabIndex = -1;
    focused = index;
    cells[index].button.tabIndex = 0;
    if (takesFocus) cells[index].button.focus();
  }

  node.addEventListener("keydown", (event) => {
    const columns = getComputedStyle(node).gridTemplateColumns.split(" ").length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key in steps) moveTo(focused + steps[event.key]);
    else if (event.key === "Home") moveTo(0);
    else if (event.key === "End") moveTo(cells.length - 1);
    else return;
    event.preventDefault();
  });

  function draw(index, top) {
    const row = state.rows[index];
    const { button, label, value, why } = cells[index];
    const amountThere = cell(row, measure.key);
    const heat = amountThere === null ? 0 : Math.min(1, amountThere / top);
    const shown = shownState(row);
    const isPlain = shown !== "ejected" && shown !== "draining";
    setText(label, shortName(row));
    setText(value, isPlain ? measure.format(amountThere) : stateText(row));
    setText(why, remark(row));
    button.style.setProperty("--heat", heat.toFixed(3));
    button.classList.toggle("is-hot", isPlain && heat > 0.6);
    setAttribute(button, "data-state", shown);
    setAttribute(button, "aria-pressed", chosen === cell(row, "name"));
    const text = `${cell(row, "name")}, ${stateText(row)}: ${measure.text} ${measure.format(amountThere)}, ${remark(row)}`;
    setAttribute(button, "title", text);
    setAttribute(button, "aria-label", text);
  }

  function update() {
    if (cells.length !== state.rows.length) {
      focused = Math.min(focused, Math.max(0, state.rows.length - 1));
      cells = state.rows.map((_, index) => makeCell(index));
      findNamespace();
      node.replaceChildren(...cells.map((each) => each.button));
      setAttribute(node, "data-size", sizeOf(cells.length));
    }
    const most = state.rows.reduce((found, row) => Math.max(found, cell(row, measure.key) ?? 0), 0);
    const top = measure.top(most);
    cells.forEach((_, index) => draw(index, top));
    setText(topText, measure.format(top));
    setText(measureText, `${measure.text} (${measure.unit})`);
  }

  const buttons = MEASURES.map((each) =>
    el("button", {
      type: "button", "aria-pressed": String(each === measure),
      click: () => {
        measure = each;
        buttons.forEach((button, index) => setAttribute(button, "aria-pressed", MEASURES[index] === each));
        update();
      },
    }, each.text));

  return {
    node,
    choices: el("div", { class: "choices", role: "group", "aria-label": "Colour of the cells" }, buttons),
    legend: el("div", { class: "legend" },
      measureText,
      el("span", { class: "key" }, "0", el("span", { class: "scale" }), topText),
      el("span", { class: "key" }, el("span", { class: "swatch ejected" }), "ejected"),
      el("span", { class: "key" }, el("span", { class: "swatch" }), "suspect or returning"),
      el("span", { class: "key" }, el("span", { class: "swatch draining" }), "draining")),
    update,
    choose(name) {
      chosen = name;
    },
  };
}
