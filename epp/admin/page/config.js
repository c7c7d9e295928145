// The configuration in use, its last reload, and what that changed.

import { change, hasAdminToken, useAdminToken } from "./api.js";
import { el, nothing, setText } from "./dom.js";
import { state } from "./feed.js";
import { clock } from "./format.js";
import { poll } from "./poll.js";

const RELOAD = "config/reload";
const RESULTS = {
  success: "it is in use",
  failure: "refused; the one before stays in use",
  rollback: "taken back, because requests failed with it",
  unchanged: "nothing had changed",
};

function diffView(lines) {
  return el("pre", { tabindex: 0, "aria-label": "Changes" }, lines.map((line) => {
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : null;
    return el("span", { class: kind }, `${line}\n`);
  }));
}

export function showConfig(panel) {
  const body = el("div", { class: "card" });
  const told = el("span", { class: "fine", role: "status" });
  const token = el("input", { type: "password", autocomplete: "off", placeholder: "Admin token", "aria-label": "Admin token" });
  const actions = el("form", { class: "actions", submit: reload },
    el("button", { type: "submit" }, "Reload now"), token, told);
  panel.append(body);

  async function reload(event) {
    event.preventDefault();
    if (token.value) useAdminToken(token.value.trim());
    token.value = "";
    try {
      await change(RELOAD, {});
      setText(told, "The file is read again.");
      polling.now();
    } catch (error) {
      setText(told, error.message);
    }
    token.hidden = hasAdminToken();
  }

  let shownText = "";
  const polling = poll("config", 2000, (document, error) => {
    const key = JSON.stringify(document || error?.message);
    if (key === shownText) return;
    shownText = key;
    if (error) {
      body.replaceChildren(el("h2", {}, "Configuration"), nothing(error.message));
      return;
    }
    const last = document.last_reload;
    actions.hidden = !state.writes.includes(RELOAD);
    token.hidden = hasAdminToken();
    body.replaceChildren(
      el("div", { class: "head" }, el("h2", {}, "Configuration"), el("span", { class: "fine" }, document.source)),
      el("dl", { class: "facts" },
        el("dt", {}, "Digest"), el("dd", {}, el("code", {}, document.digest.slice(0, 12))),
        el("dt", {}, "Last reload"),
        el("dd", { class: last && (last.result === "failure" || last.result === "rollback") ? "error" : null },
          last ? `${clock(last.at)}: ${RESULTS[last.result] || last.result}` : "none since the start"),
        last?.problem ? [el("dt", {}, "Problem"), el("dd", { class: "error" }, last.problem)] : []),
      actions,
      document.diff.length ? el("h3", {}, "What the last change of the configuration did") : "",
      document.diff.length ? diffView(document.diff) : "",
      el("h3", {}, "In use"),
      el("pre", { tabindex: 0, "aria-label": "Configuration in use" }, document.text));
  });
  return { stop: polling.stop };
}
