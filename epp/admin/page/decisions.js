// The stream of decisions, and the explanation of the one that is chosen.

import { page } from "./api.js";
import { el, nothing, setText, table } from "./dom.js";
import { NONE, amount, clock, count, percent, plural, score, seconds } from "./format.js";
import { poll } from "./poll.js";

const MOST = 50;
export const OFF = "Explanations are off: start the endpoint picker with --explain-decisions N.";

function outcome(line) {
  if (line.outcome === null) return "in flight";
  return line.status === null ? line.outcome : String(line.status);
}

export function showDecisions(panel, { open, parameters }) {
  const endpoint = parameters.get("endpoint") || "";
  const chosenId = parameters.get("request") || "";
  const isSlowest = parameters.get("slowest") === "true";
  const place = (more) => {
    const given = { endpoint, request: chosenId, slowest: isSlowest ? "true" : "", ...more };
    open("decisions", Object.fromEntries(Object.entries(given).filter(([, value]) => value)));
  };
  const told = el("span", { class: "fine" });
  const list = el("div");
  const detail = el("div", { class: "card detail", hidden: !chosenId, role: "region", "aria-label": "Explanation" });
  let isPaused = false;
  let shownNewest = null;
  const pause = el("button", { type: "button", "aria-pressed": "false", click: () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    setText(pause, isPaused ? "Go on" : "Pause");
  } }, "Pause");
  panel.append(el("div", { class: "card" },
    el("div", { class: "head" }, el("h2", {}, "Decisions"), told,
      endpoint ? el("button", { type: "button", click: () => place({ endpoint: "" }) }, "All endpoints") : null,
      el("button", { type: "button", click: () => place({ slowest: isSlowest ? "" : "true" }) }, isSlowest ? "Newest first" : "Slowest first"),
      pause),
    detail, list));

  function take(document, error) {
    if (error) {
      setText(told, "");
      list.replaceChildren(nothing(error.status === 404 ? OFF : error.message));
      return;
    }
    if (!document.kept && !document.newest) {
      setText(told, "");
      list.replaceChildren(nothing("No decision yet, or explanations are off: --explain-decisions."));
      return;
    }
    const sample = document.sampled < 0.995 ? `, a sample of ${percent(document.sampled)}` : "";
    setText(told, `${isSlowest ? "slowest" : "newest"} ${document.decisions.length} of ${count(document.kept)} in memory${sample}`
      + (endpoint ? `, at ${endpoint}` : ""));
    if (isPaused || list.contains(globalThis.document.activeElement)) return;
    const key = JSON.stringify(document.decisions.map((line) => [line.sequence, line.outcome]));
    if (key === shownNewest) return;
    shownNewest = key;
    list.replaceChildren(table("Decisions", [
      { text: "Time", kind: "short" }, { text: "Request", kind: "short" }, "Model", { text: "Endpoint", kind: "short" }, { text: "Score", number: true },
      { text: "Margin", number: true, title: "To the best other endpoint" },
      { text: "Queued", number: true }, { text: "Decision", number: true },
      { text: "First byte", number: true }, { text: "Duration", number: true }, { text: "Result", kind: "short" }, { text: "Why", kind: "wide" },
    ], document.decisions.map((line) => [
      clock(line.decided_at),
      el("button", { type: "button", class: "link", click: () => place({ request: line.request_id }) }, line.request_id.slice(0, 8)),
      line.target_model && line.target_model !== line.model ? `${line.model} → ${line.target_model}` : line.model,
      line.endpoint || "refused",
      score(line.score), score(line.margin), line.queued_seconds === null ? NONE : seconds(line.queued_seconds),
      seconds(line.decision_seconds), seconds(line.first_byte_seconds), seconds(line.duration_seconds),
      el("span", { class: line.status >= 500 || !line.endpoint ? "error" : null }, outcome(line)),
      el("span", { class: "fine" }, line.why),
    ])));
  }

  async function explain() {
    detail.replaceChildren(nothing("Loading…"));
    try {
      const record = await page(`decisions/${encodeURIComponent(chosenId)}`);
      detail.replaceChildren(...explanation(record, () => place({ request: "" })));
    } catch (error) {
      detail.replaceChildren(el("div", { class: "head" }, nothing(error.message),
        el("button", { type: "button", click: () => place({ request: "" }) }, "Close")));
    }
  }
  if (chosenId) explain();
  const query = new URLSearchParams({ limit: MOST });
  if (endpoint) query.set("endpoint", endpoint);
  if (isSlowest) query.set("slowest", "true");
  const polling = poll(`decisions?${query}`, 1500, take);
  return { stop: polling.stop };
}

// --- one decision --------------------------------------------------------------------------------

function facts(record) {
  const all = [
    ["Request", record.request_id],
    ["Decided", `${clock(record.decided_at)}, ${seconds(record.decision_seconds)} after its headers`],
    ["Priority, tenant", `${record.priority}, ${record.fairness_id || "none"}`],
    ["Queued", record.queued_seconds === null || record.queued_seconds === undefined ? "no" : seconds(record.queued_seconds)],
    ["Result", outcome(record)],
    ["First byte, duration", `${seconds(record.first_byte_seconds)}, ${seconds(record.duration_seconds)}`],
    ["Tokens", `${count(record.prompt_tokens)} prompt, ${count(record.completion_tokens)} completion`],
    ["Cached tokens", `${count(record.cached_tokens)}, predicted ${count(record.predicted_cached_tokens)}`],
    ["Served by", record.served_by || null],
    ["Error", record.error || null],
  ];
  return el("dl", { class: "facts" }, all.filter(([, value]) => value !== null)
    .flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));
}

function profileView(profile, record) {
  const inputs = new Map(record.inputs.map((each) => [each.endpoint, each]));
  const order = profile.endpoints.map((name, index) => [name, index])
    .sort(([, a], [, b]) => profile.totals[b] - profile.totals[a]);
  const removed = profile.filters.filter((each) => each.removed.length);
  const kind = profile.is_shadow ? " (shadow: decides nothing)" : profile.is_primary ? "" : " (another stage)";
  return el("div", {},
    el("h3", {}, `Profile ${profile.name}${kind}`),
    profile.error ? el("p", { class: "error" }, profile.error) : null,
    removed.map((each) => el("p", { class: "fine" },
      `${each.name} removed ${plural(each.removed.length, "endpoint")}: ${each.removed.slice(0, 8).join(", ")}${each.removed.length > 8 ? " …" : ""}`)),
    table(`Scores of ${profile.name}`, [
      "Endpoint", { text: "Total", number: true },
      ...profile.scorers.map((each) => ({ text: `${each.name} × ${amount(each.weight)}`, number: true })),
      { text: "Queue", number: true }, { text: "KV cache", number: true }, { text: "In flight", number: true }, "Health",
    ], order.slice(0, 50).map(([name, index]) => {
      const input = inputs.get(name) || {};
      const isPicked = profile.picked.includes(name);
      return [
        isPicked ? el("strong", { class: "good" }, `${name} ✓`) : name,
        score(profile.totals[index]),
        ...profile.scorers.map((each) => score(each.values[index])),
        amount(input.waiting_requests), percent(input.kv_cache_usage), count(input.in_flight), input.state || NONE,
      ];
    })),
    order.length > 50 ? el("p", { class: "fine" }, `and ${order.length - 50} endpoints with lower totals`) : null,
    el("p", { class: "fine" }, `${profile.picker} picked ${profile.picked.join(", ") || "none"}`
      + (profile.ties > 1 ? `, one of ${profile.ties} with the same total` : "")
      + (profile.margin === null ? "" : `; margin ${score(profile.margin)}`)));
}

function explanation(record, close) {
  return [
    el("div", { class: "head" }, el("h3", {}, record.endpoint || "Refused"), el("span", { class: "grow" }),
      el("button", { type: "button", click: close }, "Close")),
    el("p", {}, record.why),
    facts(record),
    ...record.profiles.map((each) => profileView(each, record)),
  ];
}
