// The fleet: heat map, the endpoint that is chosen, and the table of all.

import { el, setAttribute, setText } from "./dom.js";
import { makeDetail } from "./endpoint.js";
import { cell, state } from "./feed.js";
import { amount, count, median, percent, plural, seconds } from "./format.js";
import { makeHeat, shownState, stateText } from "./heat.js";

const MOST_ROWS = 50;
const RANK = { ejected: 0, suspect: 1, probing: 2, draining: 4 };
const SLOW = 3;
const SOUND = 9;

/** Troubled endpoints come first; a slow one is among them. */
function rank(row) {
  const known = RANK[shownState(row)];
  if (known !== undefined) return known;
  return state.slow.includes(cell(row, "name")) ? SLOW : SOUND;
}

function number(name, format) {
  return { get: (row) => cell(row, name), show: (td, value) => setText(td, format(value)) };
}

/** A number with a bar; top(rows) is the value of a full bar. */
function meter(name, format, top) {
  return {
    get: (row) => cell(row, name),
    show: (td, value) => {
      if (!td.firstElementChild) {
        td.append(el("span", { class: "meter" },
          el("span", { class: "track" }, el("span")), el("span", { class: "text" })));
      }
      const [track, text] = td.firstElementChild.children;
      track.firstElementChild.style.setProperty("--part", Math.min(1, (value ?? 0) / top()).toFixed(3));
      setText(text, format(value));
    },
  };
}

let mostQueued = 8;

const COLUMNS = [
  { text: "Endpoint", kind: "name", get: (row) => cell(row, "name") },
  { text: "Health", get: rank, show: showState },
  { text: "Queue", isNumber: true, title: "Requests that wait in the server, as scorers see it", ...meter("queue", amount, () => mostQueued) },
  { text: "Running", isNumber: true, title: "Requests in the server's batch, as scraped", ...number("running", count) },
  { text: "KV cache", isNumber: true, ...meter("kv_usage", percent, () => 1) },
  { text: "In flight", isNumber: true, title: "Requests from this endpoint picker", ...number("in_flight", count) },
  { text: "Share", isNumber: true, title: "Of the requests of the last 10 s", ...number("picked_share", percent) },
  { text: "Ended/s", isNumber: true, title: "Requests that ended per second, last 10 s", ...number("per_second", amount) },
  { text: "Failed/s", isNumber: true, ...number("failed_per_second", (value) => (value ? amount(value) : "0")) },
  { text: "Duration", isNumber: true, title: "Mean time of a request, last 10 s", ...number("seconds", seconds) },
  { text: "Metrics age", isNumber: true, ...number("metrics_age", (value) => (value === null ? "never" : `${value.toFixed(value < 10 ? 1 : 0)} s`)) },
  { text: "Role", get: (row) => cell(row, "role"), show: (td, value) => setText(td, value || "all") },
  { text: "Adapters", get: (row) => cell(row, "adapters").length, show: showAdapters },
];

function showState(td, _, row) {
  if (!td.firstElementChild) td.append(el("span", { class: "state" }));
  const node = td.firstElementChild;
  const isSlow = rank(row) === SLOW;
  setText(node, isSlow ? "slow" : stateText(row));
  setAttribute(node, "data-state", isSlow ? "suspect" : shownState(row));
  setAttribute(node, "title", cell(row, "draining") || cell(row, "reason") || null);
}

function showAdapters(td, _, row) {
  const more = cell(row, "more_adapters");
  const names = cell(row, "adapters");
  const most = cell(row, "max_adapters");
  const text = names.length ? `${names.join(", ")}${more ? ` and ${more} more` : ""}` : most ? "none loaded" : "";
  setText(td, text);
}

export function showFleet(options) {
  let sortBy = null; // troubled endpoints first, then by name
  let isDescending = false;
  let wanted = "";
  let showsAll = false;
  let chosen = null;
  const made = new Map(); // row of the table by endpoint

  const heat = makeHeat((index) => choose(cell(state.rows[index], "name")));
  const detail = makeDetail(options, () => choose(null));
  const summary = el("span", { class: "fine" });
  const heads = COLUMNS.map((column) =>
    el("th", { scope: "col", class: column.isNumber ? "number" : null, title: column.title },
      el("button", { type: "button", click: () => sort(column) }, column.text)));
  const body = el("tbody");
  const moreText = el("span");
  const moreButton = el("button", { type: "button", click: () => { showsAll = !showsAll; update(); } });
  const search = el("input", {
    type: "search", placeholder: "Name, address, state or role", "aria-label": "Filter endpoints",
    input: () => { wanted = search.value.trim().toLowerCase(); update(); },
  });

  function choose(name) {
    chosen = chosen === name ? null : name;
    heat.choose(chosen);
    detail.choose(chosen);
    update();
    if (chosen) detail.node.scrollIntoView({ block: "nearest" });
  }

  function sort(column) {
    isDescending = sortBy === column ? !isDescending : Boolean(column.isNumber);
    sortBy = column;
    heads.forEach((head, index) => setAttribute(head, "aria-sort",
      COLUMNS[index] === column ? (isDescending ? "descending" : "ascending") : null));
    update();
  }

  function matches(row) {
    if (!wanted) return true;
    const text = [cell(row, "name"), cell(row, "address"), stateText(row), cell(row, "role"), ...cell(row, "adapters")];
    return text.some((each) => each.toLowerCase().includes(wanted));
  }

  function ordered() {
    const rows = state.rows.filter(matches);
    const key = sortBy ? sortBy.get : rank;
    const sign = sortBy && isDescending ? -1 : 1;
    const compare = (a, b) => {
      if (a === b) return 0;
      if (a === null) return 1;
      if (b === null) return -1;
      return (a < b ? -1 : 1) * sign;
    };
    return rows.map((row, index) => [row, index])
      .sort(([a, i], [b, j]) => compare(key(a), key(b)) || i - j)
      .map(([row]) => row);
  }

  function rowOf(row) {
    const name = cell(row, "name");
    let found = made.get(name);
    if (!found) {
      const cells = COLUMNS.map((column) => el("td", { class: column.isNumber ? "number" : column.kind }));
      cells[0].append(el("button", { type: "button", class: "link", click: () => choose(name) }, name));
      found = { node: el("tr", {}, cells), cells };
      made.set(name, found);
    }
    COLUMNS.forEach((column, index) => {
      if (column.show) column.show(found.cells[index], column.get(row), row);
    });
    setAttribute(found.node, "aria-selected", name === chosen ? "true" : null);
    return found.node;
  }

  function update() {
    mostQueued = state.rows.reduce((most, row) => Math.max(most, cell(row, "queue")), 8);
    heat.update();
    const rows = ordered();
    const shown = showsAll ? rows : rows.slice(0, MOST_ROWS);
    const nodes = shown.map(rowOf);
    if (nodes.length !== body.children.length || nodes.some((node, index) => body.children[index] !== node)) {
      const focus = document.activeElement;
      body.replaceChildren(...nodes);
      if (focus && body.contains(focus)) focus.focus();
    }
    if (made.size > 2 * state.rows.length + MOST_ROWS) made.clear();
    setText(moreText, rows.length > shown.length ? `${shown.length} of ${plural(rows.length, "endpoint")} are shown.`
      : rows.length ? "" : wanted ? "No endpoint matches." : "The pool has no endpoints.");
    setText(moreButton, showsAll ? `Show ${MOST_ROWS}` : `Show all ${count(rows.length)}`);
    moreButton.hidden = rows.length <= MOST_ROWS;
    const trouble = state.rows.filter((row) => rank(row) !== SOUND).length;
    const queues = state.rows.map((row) => cell(row, "queue"));
    setText(summary, `${plural(state.rows.length, "endpoint")}, ${trouble ? `${trouble} with a problem` : "none with a problem"}`
      + (queues.length ? `; median queue ${amount(median(queues))}` : ""));
    detail.update();
  }

  return {
    node: el("div", { class: "card" },
      el("div", { class: "head" }, el("h2", {}, "Fleet"), summary, heat.choices),
      heat.node,
      heat.legend,
      detail.node,
      el("div", { class: "actions" }, search),
      el("div", { class: "scroll" }, el("table", {}, el("caption", { class: "unseen" }, "Endpoints"),
        el("thead", {}, el("tr", {}, heads)), body)),
      el("div", { class: "more" }, moreText, moreButton)),
    update,
  };
}
