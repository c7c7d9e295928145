// Follows the events of a pool: keeps its state, and connects again when the connection is lost.

import { HttpError, events } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const SILENT_MS = 6000; // an event comes every second

/** State of the pool, as last told. */
export const state = {
  isKnown: false,
  pool: "",
  writes: [],
  rows: [],
  points: [],
  problems: [],
  slow: [], // names of endpoints that are much slower than the others
  summary: {},
  column: {}, // index of a row's value by name
  pointColumn: {},
  stalled: "",
};

export function cell(row, name) {
  return row[state.column[name]];
}

export function pointValue(point, name) {
  return point[state.pointColumn[name]];
}

function indexes(names) {
  return Object.fromEntries(names.map((name, index) => [name, index]));
}

function takeSnapshot(data) {
  Object.assign(state, {
    isKnown: true,
    pool: data.pool,
    writes: data.writes,
    rows: data.rows,
    points: data.points,
    problems: data.problems,
    summary: data.summary,
    slow: data.summary.slow,
    column: indexes(data.columns),
    pointColumn: indexes(data.point_columns),
  });
  return null;
}

/** Apply the changes; return the indexes of the rows that changed. */
function takeChange(data) {
  for (const [index, cells] of Object.entries(data.rows)) {
    for (const [column, value] of Object.entries(cells)) state.rows[index][column] = value;
  }
  state.points.push(data.point);
  if (state.points.length > 300) state.points.shift();
  state.summary = data.summary;
  state.slow = data.summary.slow;
  if (data.problems) state.problems = data.problems;
  return Object.keys(data.rows).map(Number);
}

/**
 * Follow until the signal aborts.
 *
 * onState(changed) is called after each event, with the indexes of the changed rows, or null for
 * all; onConnection(kind, text) with "live", "stalled", "lost" or "refused".
 */
export async function follow(signal, onState, onConnection) {
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener("abort", stop);
    let timer = setTimeout(stop, SILENT_MS);
    let text = "The connection was lost";
    try {
      for await (const { kind, data } of events(attempt.signal)) {
        clearTimeout(timer);
        timer = setTimeout(stop, SILENT_MS);
        wait = FIRST_WAIT_MS;
        state.stalled = kind === "stalled" ? data.text : "";
        if (kind === "snapshot") onState(takeSnapshot(data));
        else if (kind === "change") onState(takeChange(data));
        if (kind === "stalled") onConnection("stalled", data.text);
        else onConnection("live", "");
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof HttpError) {
        if (error.status === 401 || error.status === 403) {
          onConnection("refused", error.message);
          return;
        }
        text = error.message.replace(/\.$/, "");
      }
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
    }
    if (signal.aborted) return;
    onConnection("lost", `${text}; connecting again in ${Math.ceil(wait / 1000)} s.`);
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
  }
}
