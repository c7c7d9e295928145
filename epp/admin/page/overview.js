// The first section: traffic in four charts, then the fleet.

import { makeChart } from "./charts.js";
import { el } from "./dom.js";
import { pointValue, state } from "./feed.js";
import { amount, count, seconds } from "./format.js";
import { showFleet } from "./fleet.js";

function value(name) {
  return (point) => pointValue(point, name);
}

export function showOverview(panel, options) {
  const traffic = makeChart("Requests", [
    { label: "per second", format: amount, value: value("requests_per_second") },
    { label: "errors per second", format: amount, value: value("errors_per_second"), isWrong: true },
  ]);
  const firstByte = makeChart("Time to first token", [
    { label: "p50", format: seconds, value: value("first_byte_p50") },
    { label: "p90", format: seconds, value: value("first_byte_p90") },
  ]);
  const decision = makeChart("Decision time", [
    { label: "p50", format: seconds, value: value("decision_p50") },
    { label: "p99", format: seconds, value: value("decision_p99") },
  ]);
  const load = makeChart("Requests at model servers", [
    { label: "in flight", format: count, value: value("in_flight") },
    { label: "queued here", format: count, value: value("waiting") },
  ]);
  const charts = [traffic, firstByte, decision, load];
  const fleet = showFleet(options);
  panel.append(
    el("h2", { class: "unseen" }, "Traffic"),
    el("div", { class: "charts" }, charts.map((each) => each.node)),
    fleet.node,
  );
  return {
    update(changed) {
      firstByte.rename(state.summary.sees_bodies ? "Time to first token" : "Time to response head");
      for (const chart of charts) chart.update(state.points);
      fleet.update(changed);
    },
  };
}
