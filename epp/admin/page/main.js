// The frame of the page: sections, pool, tokens, theme, connection, and what is wrong.

import { HttpError, processPage, useAdminToken, usePageToken, usePool } from "./api.js";
import { showConfig } from "./config.js";
import { showDecisions } from "./decisions.js";
import { byId, el, nothing, setAttribute, setText } from "./dom.js";
import { follow, state } from "./feed.js";
import { showOverview } from "./overview.js";
import { showPlugins } from "./plugins.js";
import { showQueues } from "./queues.js";
import { showWhatIf } from "./whatif.js";

const SECTIONS = [
  { id: "overview", title: "Overview", show: showOverview },
  { id: "decisions", title: "Decisions", show: showDecisions },
  { id: "queues", title: "Queues", show: showQueues },
  { id: "plugins", title: "Plugins", show: showPlugins },
  { id: "config", title: "Configuration", show: showConfig },
  { id: "whatif", title: "What if", show: showWhatIf },
];

const LEVELS = { error: "Problem", warning: "Warning", note: "Note" };

let shown = null; // {id, update, stop} of the section in view
let following = null;
let connection = { kind: "", text: "" };

// --- where we are: #section?name=value -----------------------------------------------------------

function place() {
  const [id, query = ""] = location.hash.slice(1).split("?");
  const section = SECTIONS.find((each) => each.id === id) || SECTIONS[0];
  return { section, parameters: new URLSearchParams(query) };
}

function address(id, parameters = {}) {
  const given = { ...parameters };
  const pool = place().parameters.get("pool");
  if (pool) given.pool = pool;
  const query = new URLSearchParams(given).toString();
  return `#${id}${query ? `?${query}` : ""}`;
}

function open(id, parameters) {
  location.hash = address(id, parameters);
}

// --- sections ------------------------------------------------------------------------------------

const tabs = SECTIONS.map((section) =>
  el("button", {
    type: "button", role: "tab", id: `tab-${section.id}`, "aria-controls": "panel",
    click: () => open(section.id),
  }, section.title));

byId("tabs").append(...tabs);
byId("tabs").addEventListener("keydown", (event) => {
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  if (!(event.key in steps)) return;
  const at = tabs.indexOf(document.activeElement);
  const next = tabs[(at + steps[event.key] + tabs.length) % tabs.length];
  next.focus();
  next.click();
  event.preventDefault();
});

function showSection() {
  const { section, parameters } = place();
  const panel = byId("panel");
  shown?.stop?.();
  shown = null;
  panel.replaceChildren();
  setAttribute(panel, "aria-labelledby", `tab-${section.id}`);
  tabs.forEach((tab, index) => {
    const isChosen = SECTIONS[index] === section;
    setAttribute(tab, "aria-selected", isChosen ? "true" : "false");
    tab.tabIndex = isChosen ? 0 : -1;
  });
  if (!state.isKnown) {
    panel.append(nothing(byId("token-form").hidden ? "Waiting for the first state of the pool…" : ""));
    return;
  }
  shown = { id: section.id, ...section.show(panel, { open, parameters }) };
  shown.update?.(null);
}

// --- what is wrong -------------------------------------------------------------------------------

let shownProblems = "";

function showProblems() {
  const all = [];
  if (connection.kind === "lost" || connection.kind === "stalled") all.push(["error", connection.text]);
  if (state.isKnown) all.push(...state.problems);
  const key = JSON.stringify(all);
  if (key === shownProblems) return;
  shownProblems = key;
  byId("problems").replaceChildren(...all.map(([level, text]) =>
    el("li", { class: level }, el("span", { class: "level" }, LEVELS[level] || level), text)));
}

function onState(changed) {
  const wasShown = shown !== null;
  if (byId("pool-choice").hidden) setText(byId("pool-name"), state.pool);
  document.title = `${state.problems.some(([level]) => level === "error") ? "● " : ""}${state.pool} – endpoint picker`;
  showProblems();
  if (!wasShown) showSection();
  else if (!document.hidden) shown.update?.(changed);
}

function onConnection(kind, text) {
  connection = { kind, text };
  const words = { live: "live", stalled: "event loop does not answer", lost: "connection lost", refused: "token needed" };
  setText(byId("connection-text"), words[kind]);
  setAttribute(byId("connection"), "data-kind", kind);
  if (kind === "refused") askForToken(text);
  showProblems();
}

// --- tokens --------------------------------------------------------------------------------------

function askForToken(text) {
  setText(byId("token-text"), text);
  byId("token-form").hidden = false;
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  usePageToken(byId("token").value.trim());
  byId("token").value = "";
  byId("token-form").hidden = true;
  byId("token-button").hidden = false;
  begin();
});
byId("token-button").addEventListener("click", () => {
  usePageToken("");
  useAdminToken("");
  byId("token-button").hidden = true;
  state.isKnown = false;
  begin();
});

// --- theme ---------------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem("theme");
} catch {
  // Storage may be forbidden; the choice then lasts as long as the page.
}

function showTheme() {
  const theme = chosenTheme || (prefersDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  setText(byId("theme"), theme === "dark" ? "Light" : "Dark");
  setAttribute(byId("theme"), "aria-label", `Use ${theme === "dark" ? "light" : "dark"} colours`);
}

byId("theme").addEventListener("click", () => {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("theme", chosenTheme);
  } catch {
    // As above.
  }
  showTheme();
});
prefersDark.addEventListener("change", showTheme);

// --- pools ---------------------------------------------------------------------------------------

function showPools(pools, name) {
  const choice = byId("pool");
  byId("pool-choice").hidden = false;
  setText(byId("pool-name"), "");
  choice.replaceChildren(...pools.map((each) =>
    el("option", { value: each.name, selected: each.name === name },
      each.fault ? `${each.name} (not served)` : each.name)));
}

byId("pool").addEventListener("change", () => {
  location.hash = `#${place().section.id}?${new URLSearchParams({ pool: byId("pool").value })}`;
});

/** Return the name of the pool to follow; "" for the only one. */
async function choosePool() {
  const { version, pools } = await processPage("live");
  setText(byId("version"), `Endpoint picker ${version}`);
  if (!pools) return "";
  const asked = place().parameters.get("pool");
  const name = (pools.find((each) => each.name === asked) || pools.find((each) => !each.fault) || pools[0])?.name;
  if (!name) throw new HttpError(0, "No pool is served yet.");
  showPools(pools, name);
  return name;
}

let followedPool = null;

async function begin() {
  following?.abort();
  following = new AbortController();
  const { signal } = following;
  for (;;) {
    try {
      followedPool = await choosePool();
      break;
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 403) {
        onConnection("refused", error.message);
        return;
      }
      onConnection("lost", `${error.message} Trying again every 3 s.`);
      await new Promise((resolve) => setTimeout(resolve, 3000));
      if (signal.aborted) return;
    }
  }
  usePool(followedPool);
  state.isKnown = false;
  shown?.stop?.();
  shown = null;
  showSection();
  await follow(signal, onState, onConnection);
}

addEventListener("hashchange", () => {
  const pool = place().parameters.get("pool");
  if (pool && followedPool && pool !== followedPool) begin();
  else showSection();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) shown?.update?.(null);
});

showTheme();
begin();
