// Plugins, what their calls cost, and which of them fail.

import { el, nothing, table } from "./dom.js";
import { NONE, count, seconds } from "./format.js";
import { poll } from "./poll.js";

function stateOf(line) {
  if (line.disabled) return el("span", { class: "error" }, "disabled until the next reload");
  if (line.failures) return el("span", { class: "warning" }, "has failed");
  return line.calls ? "in use" : "not called yet";
}

export function showPlugins(panel) {
  const told = el("span", { class: "fine" }, "since the start of the process; p99 is interpolated within a bucket");
  const list = el("div");
  panel.append(el("div", { class: "card" }, el("div", { class: "head" }, el("h2", {}, "Plugins"), told), list));
  const polling = poll("plugins", 2000, (document, error) => {
    if (error) {
      list.replaceChildren(nothing(error.message));
      return;
    }
    list.replaceChildren(table("Plugins", ["Plugin", "Type", "Called as", { text: "Calls", number: true }, { text: "Mean", number: true },
      { text: "p99", number: true }, { text: "Time in all", number: true }, { text: "Too slow", number: true }, { text: "Failures", number: true }, "State"],
    document.plugins.map((line) => [line.name, line.type, line.extension_point, count(line.calls), seconds(line.mean_seconds),
      line.p99_seconds === null ? NONE : `${line.is_above_p99 ? "> " : ""}${seconds(line.p99_seconds)}`, seconds(line.seconds), count(line.overruns),
      el("span", { class: line.failures ? "error" : null }, count(line.failures)), stateOf(line)])));
  });
  return { stop: polling.stop };
}
