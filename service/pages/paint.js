/** What is painted on the canvas of a chart beside uPlot's lines and bands. */

import { colour } from "./scheme.js";

/** @typedef {import("./picture.js").Picture} Picture */

/** Shades of a measurement, by its weight. */
const SHADES = 6;
const FAINTEST = 0.3;
/** More points than this are squares, which cost less. */
const MANY = 4000;

/**
 * Measurements, fainter by weight.
 * @param {any} u a chart of uPlot
 * @param {Picture} picture
 * @param {number} k component
 */
export function paintMeasured(u, { weight, times, components }, k) {
  const { seen } = components[k];
  const [from, to] = u.series[0].idxs ?? [0, -1];
  const [x, y] = [toPixels(u, "x"), toPixels(u, "y")];
  const isMany = to - from > MANY;
  const size = (isMany ? 1.1 : 2.3) * devicePixelRatio;
  const paths = Array.from({ length: SHADES }, () => new Path2D());
  for (let i = from; i <= to; i++) {
    const value = seen[i];
    if (value === null) continue;
    const path = paths[Math.min(SHADES - 1, Math.floor((weight[i] ?? 1) * SHADES))];
    const [left, top] = [x(times[i]), y(value)];
    if (isMany) path.rect(left - size, top - size, 2 * size, 2 * size);
    else {
      path.moveTo(left + size, top);
      path.arc(left, top, size, 0, 2 * Math.PI);
    }
  }
  const opacity = (/** @type {number} */ shade) => FAINTEST + ((1 - FAINTEST) * shade) / (SHADES - 1);
  clipped(u, () => paths.forEach((path, shade) => fill(u, path, colour("measured", opacity(shade)))));
}

/**
 * A line at a row, and a ring around its measurement.
 * @param {any} u a chart of uPlot
 * @param {Picture} picture
 * @param {number} k component
 * @param {number} row
 */
export function paintPicked(u, { times, components }, k, row) {
  const { ctx, bbox } = u;
  const left = toPixels(u, "x")(times[row]);
  const value = components[k].seen[row];
  clipped(u, () => {
    ctx.strokeStyle = colour("ink");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    if (value === null) return;
    ctx.beginPath();
    ctx.lineWidth *= 2;
    ctx.arc(left, toPixels(u, "y")(value), 6 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.stroke();
  });
}

/**
 * Alarms above, missing values below.
 * @param {any} u the lane, a chart of uPlot
 * @param {Picture} picture
 */
export function paintLane(u, { times, alarm, components, rows }) {
  const { bbox } = u;
  const [from, to] = u.series[0].idxs ?? [0, -1];
  const x = toPixels(u, "x");
  const half = bbox.height / 2;
  const width = 2 * devicePixelRatio;
  const [alarms, missing] = [new Path2D(), new Path2D()];
  for (let i = from; i <= Math.min(to, rows - 1); i++) {
    const left = x(times[i]);
    if (alarm[i]) alarms.rect(left - width, bbox.top + 1, 2 * width, half - 3);
    const isMissing = components.some(({ seen }) => seen[i] === null);
    if (isMissing) missing.rect(left - width / 2, bbox.top + half + 2, width, half - 4);
  }
  clipped(u, () => {
    fill(u, alarms, colour("alarm"));
    fill(u, missing, colour("gap"));
  });
}

/** @param {any} u @param {Path2D} path @param {string} style */
function fill({ ctx }, path, style) {
  ctx.fillStyle = style;
  ctx.fill(path);
}

/** Whatever `draw` draws, inside of the plot. @param {any} u @param {() => void} draw */
function clipped({ ctx, bbox }, draw) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw();
  ctx.restore();
}

/**
 * From values of a scale to pixels of the canvas.
 * @param {any} u
 * @param {"x" | "y"} name
 * @returns {(value: number) => number}
 */
function toPixels({ scales, bbox }, name) {
  const { min, max } = scales[name];
  if (name === "x") return value => bbox.left + ((value - min) / (max - min)) * bbox.width;
  return value => bbox.top + bbox.height - ((value - min) / (max - min)) * bbox.height;
}
