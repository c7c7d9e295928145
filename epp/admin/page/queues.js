// Flow control: bands, tenants with their shares, and requests that wait.

import { el, nothing, table } from "./dom.js";
import { NONE, amount, bytes, count, percent, plural, seconds } from "./format.js";
import { poll } from "./poll.js";

function shareTexts(shares, name) {
  const texts = shares.filter((each) => each[name] !== null && each[name] !== undefined)
    .map((each) => `${amount(each[name])} ${each.resource}`);
  return texts.length ? texts.join(", ") : NONE;
}

export function showQueues(panel) {
  const card = el("div", { class: "card" });
  panel.append(card);

  function draw(document) {
    const stages = Object.entries(document.saturation)
      .map(([stage, value]) => `${stage} ${value === null ? "unknown" : percent(value)}`);
    card.replaceChildren(
      el("div", { class: "head" }, el("h2", {}, "Queues"),
        el("span", { class: "fine" }, `${plural(document.waiting, "request waits", "requests wait")}, ${bytes(document.size_bytes)}`
          + (stages.length ? `; saturation ${stages.join(", ")}` : ""))),
      document.blocked ? el("p", { class: "warning" }, `Nothing can be dispatched: ${document.blocked}`) : "",
      ...document.faults.map((each) => el("p", { class: "error" }, each)),
      el("h3", {}, "Bands"),
      table("Bands", [{ text: "Priority", number: true }, { text: "Waiting", number: true }, { text: "Limit", number: true },
        { text: "Bytes", number: true }, { text: "Ceiling", number: true }, "Why it waits"],
      document.bands.map((band) => [count(band.priority), count(band.waiting), count(band.max_requests), bytes(band.size_bytes),
        band.ceiling === null ? NONE : percent(band.ceiling), band.blocked || NONE])),
      el("h3", {}, "Tenants"),
      tenants(document),
      el("h3", {}, "Waiting requests"),
      waiting(document),
    );
  }

  function tenants(document) {
    const flows = document.bands.flatMap((band) => band.flows.map((flow) => [band, flow]));
    if (!flows.length) return nothing("No tenant has requests now.");
    return table("Tenants", ["Tenant", { text: "Priority", number: true }, { text: "Waiting", number: true },
      { text: "Head waits", number: true }, { text: "Used", number: true }, { text: "Deserved", number: true },
      { text: "Share", number: true }, "Why its head waits"],
    flows.map(([band, flow]) => [flow.flow, count(band.priority), count(flow.waiting), seconds(flow.head_waited_seconds),
      shareTexts(flow.shares, "used"), shareTexts(flow.shares, "deserved"), shareTexts(flow.shares, "share"),
      flow.reasons.join("; ") || (flow.waiting ? band.blocked : "") || NONE]));
  }

  function waiting(document) {
    const lines = [...document.parked.map((each) => [each, "parked"]),
      ...document.bands.flatMap((band) => band.requests.map((each) => [each, String(each.place)]))];
    if (!lines.length) return nothing("No request waits.");
    return table("Waiting requests", ["Request", "Tenant", "Model", { text: "Place", number: true }, { text: "Waited", number: true },
      { text: "Left", number: true }, { text: "Tries", number: true }, "Why"],
    lines.slice(0, 100).map(([each, place]) => [each.request_id, each.flow, each.model, place, seconds(each.waited_seconds),
      each.remaining_seconds === null ? "no limit" : seconds(each.remaining_seconds), count(each.tries), each.reasons.join("; ") || NONE]));
  }

  const polling = poll("session", 2000, (document, error) => {
    if (!error) draw(document);
    else if (error.status === 404) {
      card.replaceChildren(el("h2", {}, "Queues"), nothing(
        "Flow control is off: requests are sent at once. The feature gate flowControl in the configuration turns it on."));
    } else card.replaceChildren(el("h2", {}, "Queues"), nothing(error.message));
  });
  return { stop: polling.stop };
}
