// Small live charts: one or two lines over the last minutes, drawn as SVG.

import { el, setText, svg } from "./dom.js";
import { NONE, clock } from "./format.js";

const WIDTH = 300;
const HEIGHT = 64;
const FEWEST_POINTS = 60; // one a second: the chart grows from one minute to five

/** How many points the width of a chart has room for. */
function span(points) {
  return Math.max(FEWEST_POINTS, points) - 1;
}

/** The next higher 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value * 0.999);
}

/** Path of a line; null values are gaps. */
function linePath(values, top) {
  let path = "";
  let isDown = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      isDown = false;
      return;
    }
    const x = WIDTH - ((values.length - 1 - index) * WIDTH) / span(values.length);
    const y = HEIGHT - 1 - (value / top) * (HEIGHT - 4);
    path += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  });
  return path;
}

function areaPath(values, top) {
  const first = values.findIndex((each) => each !== null && each !== undefined);
  if (first < 0 || values.slice(first).some((each) => each === null || each === undefined)) return "";
  const from = WIDTH - ((values.length - 1 - first) * WIDTH) / span(values.length);
  return `${linePath(values, top)}L${WIDTH} ${HEIGHT}L${from.toFixed(1)} ${HEIGHT}Z`;
}

/**
 * Make a chart.
 *
 * Each line is {label, format, value(point)}; the second is optional, and isWrong marks it red
 * where it is above 0.
 */
export function makeChart(title, lines) {
  const first = lines[0];
  const area = svg("path", { class: "area" });
  const paths = lines.map((line, index) =>
    svg("path", { class: index ? `second-line${line.isWrong ? " wrong-line" : ""}` : "first" }));
  const mark = svg("line", { class: "grid", y1: 0, y2: HEIGHT });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
    svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
    mark, area, ...paths.reverse(),
  );
  paths.reverse();
  const values = lines.map((line, index) => {
    const number = el("span");
    const node = el("span", { class: index ? "value second" : "value" }, number, el("small", {}, line.label));
    return { number, node };
  });
  const topText = el("span");
  const nowText = el("span");
  const heading = el("h3", {}, title);
  let shown = [];
  let at = null; // index of the point under the pointer; null for the last one

  function draw() {
    const series = lines.map((line) => shown.map(line.value));
    const known = series.flat().filter((each) => each !== null && each !== undefined);
    const top = ceiling(Math.max(0, ...known));
    paths.forEach((path, index) => path.setAttribute("d", linePath(series[index], top)));
    area.setAttribute("d", areaPath(series[0], top));
    const index = at === null || at >= shown.length ? shown.length - 1 : at;
    lines.forEach((line, number) => {
      const value = index < 0 ? null : series[number][index];
      setText(values[number].number, value === null || value === undefined ? NONE : line.format(value));
      values[number].node.classList.toggle("is-wrong", Boolean(line.isWrong && value > 0));
    });
    setText(topText, `top ${first.format(top)}`);
    setText(nowText, at === null || index < 0 ? `last ${Math.round((span(shown.length) + 1) / 60)} min` : clock(shown[index][0]));
    const x = WIDTH - ((shown.length - 1 - index) * WIDTH) / span(shown.length);
    mark.setAttribute("x1", x);
    mark.setAttribute("x2", x);
    mark.style.visibility = at === null ? "hidden" : "visible";
  }

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const back = Math.round(((box.right - event.clientX) / box.width) * span(shown.length));
    at = Math.max(0, shown.length - 1 - back);
    draw();
  });
  drawing.addEventListener("pointerleave", () => {
    at = null;
    draw();
  });

  return {
    node: el("div", { class: "card chart" }, heading,
      el("div", { class: "values" }, values.map((each) => each.node)),
      drawing,
      el("div", { class: "axis" }, topText, nowText)),
    rename(text) {
      setText(heading, text);
    },
    update(points) {
      shown = points;
      draw();
    },
  };
}
