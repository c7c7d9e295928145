// Numbers in words that people read.

export const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en");
}

/** A number with at most one digit behind the point. */
export function amount(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) >= 100 ? count(value) : String(Math.round(value * 10) / 10);
}

/** A score or a weight. */
export function score(value) {
  return value === null || value === undefined ? NONE : value.toFixed(3);
}

export function percent(value) {
  if (value === null || value === undefined) return NONE;
  const shown = value * 100;
  return `${shown > 0 && shown < 9.95 ? shown.toFixed(1) : Math.round(shown)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 3600) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  if (value >= 100) return `${Math.round(value)} s`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  const ms = value * 1000;
  if (ms >= 10) return `${Math.round(ms)} ms`;
  if (ms >= 1) return `${ms.toFixed(1)} ms`;
  if (ms === 0) return "0 ms";
  return ms >= 0.01 ? `${Math.round(ms * 1000)} µs` : `${(ms * 1000).toFixed(1)} µs`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB"];
  let shown = value;
  let unit = 0;
  while (shown >= 1000 && unit < units.length - 1) {
    shown /= 1000;
    unit += 1;
  }
  return `${unit && shown < 100 ? shown.toFixed(1) : Math.round(shown)} ${units[unit]}`;
}

export function clock(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  return at.toLocaleTimeString("en-GB");
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}
