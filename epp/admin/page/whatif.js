// What if: other weights for the scorers, tried on decisions that were made.

import { page } from "./api.js";
import { OFF } from "./decisions.js";
import { el, nothing, setText, table } from "./dom.js";
import { amount, percent, plural } from "./format.js";

const AT_ONCE = 4;
const CHOICES = [50, 100, 200, 500];

/** Return the scored choice of a decision; null if there was none. */
export function choiceOf(record) {
  const profile = record.profiles.find((each) => each.is_primary && !each.is_shadow);
  if (!profile || !profile.picked.length || profile.endpoints.length < 2) return null;
  return { profile: profile.name, endpoints: profile.endpoints, scorers: profile.scorers, picked: profile.picked[0], picker: profile.picker };
}

/** Return the totals of a choice with other weights, by name of the scorer. */
export function totals(choice, weights) {
  return choice.endpoints.map((_, index) =>
    choice.scorers.reduce((sum, scorer) => sum + (weights[scorer.name] ?? scorer.weight) * scorer.values[index], 0));
}

/**
 * Return what other weights would do: {changed, kept, before, after}, the latter by endpoint.
 *
 * A choice changes if its endpoint no longer has the highest total; one that a tie or a random
 * picker made stays as long as it is among the highest, or its place is the same as before.
 */
export function replay(choices, weights) {
  const result = { changed: 0, kept: 0, before: new Map(), after: new Map() };
  const add = (map, name) => map.set(name, (map.get(name) || 0) + 1);
  for (const choice of choices) {
    const was = totals(choice, {});
    const now = totals(choice, weights);
    const at = choice.endpoints.indexOf(choice.picked);
    const wasBest = was[at] >= Math.max(...was) - 1e-9;
    const best = Math.max(...now);
    const isSame = was.every((each, index) => Math.abs(each - now[index]) < 1e-9);
    const stays = isSame || (wasBest && now[at] >= best - 1e-9);
    const picked = stays ? choice.picked : choice.endpoints[now.findIndex((each) => each >= best - 1e-9)];
    add(result.before, choice.picked);
    add(result.after, picked);
    if (picked === choice.picked) result.kept += 1;
    else result.changed += 1;
  }
  return result;
}

async function load(limit, told) {
  const { decisions } = await page(`decisions?limit=${limit}`);
  const wanted = decisions.filter((each) => each.endpoint);
  const choices = [];
  let done = 0;
  async function work() {
    while (wanted.length) {
      const { request_id: id } = wanted.shift();
      try {
        const choice = choiceOf(await page(`decisions/${encodeURIComponent(id)}`));
        if (choice) choices.push(choice);
      } catch (error) {
        if (error.status !== 404) throw error; // 404: it has just left the memory
      }
      done += 1;
      told(done);
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return choices;
}

export function showWhatIf(panel) {
  const told = el("span", { class: "fine", role: "status" });
  const limit = el("select", { "aria-label": "Decisions" }, CHOICES.map((each) =>
    el("option", { value: each, selected: each === 100 }, `last ${each} decisions`)));
  const sliders = el("div", { class: "sliders" });
  const result = el("div", { role: "status" });
  const reset = el("button", { type: "button", click: () => begin(choices) }, "Weights of the configuration");
  let choices = [];
  let weights = {};
  let isStopped = false;
  panel.append(el("div", { class: "card" },
    el("div", { class: "head" }, el("h2", {}, "What if"), told, limit,
      el("button", { type: "button", class: "primary", click: fetchAll }, "Load"), reset),
    el("p", { class: "fine" }, "Moves the weights of the scorers and adds up the recorded scores anew. It changes nothing in the endpoint"
      + " picker. It ignores that other choices would have changed queues and caches, and so the following scores; filters, flow control and"
      + " other stages stay as they were; where the picker draws at random or breaks a tie, the choice stays if it could have been made."),
    sliders, result));

  async function fetchAll() {
    try {
      choices = await load(limit.value, (done) => setText(told, `${done} read…`));
      if (isStopped) return;
      setText(told, `${plural(choices.length, "decision")} between two or more endpoints`);
      begin(choices);
    } catch (error) {
      setText(told, "");
      result.replaceChildren(nothing(error.status === 404 ? OFF : error.message));
    }
  }

  function begin(all) {
    weights = {};
    sliders.replaceChildren();
    if (!all.length) {
      result.replaceChildren(nothing("There is no decision between two or more endpoints in memory; send requests, or turn on --explain-decisions."));
      return;
    }
    for (const choice of all) {
      for (const each of choice.scorers) weights[each.name] ??= each.weight;
    }
    for (const [name, weight] of Object.entries(weights)) {
      const number = el("output", {}, amount(weight));
      const slider = el("input", {
        type: "range", min: 0, max: Math.max(10, 3 * weight), step: 0.1, value: weight, "aria-label": `Weight of ${name}`,
        input: () => {
          weights[name] = Number(slider.value);
          setText(number, amount(weights[name]));
          show();
        },
      });
      sliders.append(el("label", { class: "slider" }, el("span", {}, name), slider, number));
    }
    show();
  }

  function show() {
    const { changed, kept, before, after } = replay(choices, weights);
    const total = changed + kept;
    const names = [...new Set([...before.keys(), ...after.keys()])]
      .sort((a, b) => (after.get(b) || 0) - (after.get(a) || 0) || (a < b ? -1 : 1));
    result.replaceChildren(
      el("p", { class: "verdict" }, `${changed} of ${plural(total, "choice")} would change (${percent(changed / total)}).`),
      table("Choices by endpoint", ["Endpoint", { text: "Was chosen", number: true }, { text: "Would be", number: true }, { text: "Share", number: true }, { text: "Change", number: true }],
        names.slice(0, 60).map((name) => {
          const was = before.get(name) || 0;
          const now = after.get(name) || 0;
          return [name, String(was), String(now), `${percent(was / total)} → ${percent(now / total)}`, now === was ? "0" : `${now > was ? "+" : "−"}${Math.abs(now - was)}`];
        })));
  }

  fetchAll();
  return {
    stop() {
      isStopped = true;
    },
  };
}
