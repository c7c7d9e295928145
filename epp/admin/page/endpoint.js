// What is known about one endpoint, why requests avoid it, and the calls that drain it.

import { change, hasAdminToken, useAdminToken } from "./api.js";
import { el, setAttribute, setText } from "./dom.js";
import { cell, state } from "./feed.js";
import { amount, count, median, percent, plural, seconds } from "./format.js";
import { shownState, stateText } from "./heat.js";

const DRAIN = "endpoints/drain";

/** Return in words what keeps requests away from an endpoint; [] if nothing does. */
export function whyAvoided(row) {
  const shown = shownState(row);
  const reasons = [];
  if (shown === "draining") reasons.push(`it drains (${cell(row, "draining")})`);
  if (shown === "ejected") reasons.push(`it is ejected: ${cell(row, "reason")}`);
  if (shown === "probing") reasons.push(`it is returning and a candidate for ${percent(cell(row, "share"))} of the requests`);
  const others = state.rows.filter((each) => each !== row);
  const compare = (name, text, format, factor, least) => {
    const usual = median(others.map((each) => cell(each, name)).filter((each) => each !== null));
    const own = cell(row, name);
    if (usual !== null && own !== null && own >= usual * factor && own - usual >= least) {
      reasons.push(`${text} ${format(own)}, ${format(usual)} at the median endpoint`);
    }
  };
  compare("queue", "its queue is", amount, 2, 2);
  compare("running", "it runs", (value) => plural(value, "request"), 2, 4);
  compare("kv_usage", "its KV cache is used to", percent, 1.5, 0.2);
  return reasons;
}

/** Return a sentence about an endpoint's share of the requests, and its reasons. */
export function shareText(row) {
  const equal = 1 / Math.max(1, state.rows.length);
  const share = cell(row, "picked_share");
  const reasons = whyAvoided(row);
  const told = `It got ${percent(share)} of the requests of the last 10 s; an equal share is ${percent(equal)}.`;
  if (!reasons.length) return told;
  return `${told} Requests avoid it because ${reasons.join("; ")}.`;
}

function facts(row) {
  const age = cell(row, "metrics_age");
  return [
    ["Address", cell(row, "address")],
    ["Role", cell(row, "role") || "all stages"],
    ["Health", cell(row, "reason") ? `${stateText(row)}: ${cell(row, "reason")}` : stateText(row)],
    ["Queue", `${amount(cell(row, "queue"))} as scorers see it, ${count(cell(row, "waiting"))} as scraped`],
    ["Running", count(cell(row, "running"))],
    ["KV cache", percent(cell(row, "kv_usage"))],
    ["In flight from here", count(cell(row, "in_flight"))],
    ["Metrics", age === null ? "never read" : `${age.toFixed(1)} s old`],
    ["Duration", `${seconds(cell(row, "seconds"))} mean`],
    ["Response begins after", `${seconds(cell(row, "first_seconds"))} median, streamed`],
    ["Requests", `${amount(cell(row, "per_second"))} ended a second, ${amount(cell(row, "failed_per_second"))} failed`],
    ["Adapters", cell(row, "adapters").join(", ") || "none"],
  ];
}

export function makeDetail(options, close) {
  let name = null;
  const title = el("h3");
  const why = el("p");
  const names = [];
  const list = el("dl", { class: "facts" });
  const told = el("span", { class: "fine", role: "status" });
  const drain = el("button", { type: "button", click: () => act(false) }, "Drain");
  const undo = el("button", { type: "button", click: () => act(true) }, "End draining");
  const token = el("input", { type: "password", autocomplete: "off", placeholder: "Admin token", "aria-label": "Admin token" });
  const decisions = el("button", {
    type: "button", click: () => options.open("decisions", { endpoint: name }),
  }, "Its decisions");
  const actions = el("div", { class: "actions" }, drain, undo, token);
  const node = el("div", { class: "card detail", hidden: true, role: "region", "aria-label": "Chosen endpoint" },
    el("div", { class: "head" }, title, el("span", { class: "grow" }),
      decisions, el("button", { type: "button", click: close }, "Close")),
    why, list, actions, told);

  async function act(isUndo) {
    if (token.value) useAdminToken(token.value.trim());
    token.value = "";
    setText(told, isUndo ? "Ending the drain…" : "Draining…");
    try {
      const done = await change(DRAIN, { endpoint: name, undo: isUndo });
      setText(told, `${done.serving} endpoints take new requests.`);
    } catch (error) {
      setText(told, error.message);
    }
    update();
  }

  function update() {
    const row = state.rows.find((each) => cell(each, "name") === name);
    node.hidden = !row;
    if (!row) return;
    setText(title, name);
    setText(why, shareText(row));
    facts(row).forEach(([label, value], index) => {
      if (!names[index]) {
        names[index] = el("dd");
        list.append(el("dt", {}, label), names[index]);
      }
      setText(names[index], value);
    });
    const mayDrain = state.writes.includes(DRAIN);
    actions.hidden = !mayDrain;
    const drains = cell(row, "draining");
    drain.hidden = Boolean(drains);
    undo.hidden = !drains;
    token.hidden = hasAdminToken();
    setAttribute(node, "data-state", shownState(row));
  }

  return {
    node,
    update,
    choose(chosen) {
      name = chosen;
      setText(told, "");
    },
  };
}
