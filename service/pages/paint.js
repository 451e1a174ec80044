/** Paint measurements, marks and alarms on the canvas of a chart, in addition to the lines and bands of uPlot. */

import { colour } from "./scheme.js";

/** @typedef {import("./picture.js").Picture} Picture */

/** Number of shades of measurements, which show their weight, and the opacity of the faintest one. */
const SHADES = 6;
const FAINTEST = 0.4;
/** Measurements are drawn as circles. If there are more than this, they are squares of two pixels. */
const MANY = 4000;
/** Radius of a circle, in pixels of the page. */
const RADIUS = 2.3;

/**
 * Paints measurements. Those with a smaller weight are fainter.
 * @param {any} u a chart of uPlot
 * @param {Picture} picture
 * @param {number} k component
 * @param {[number, number]} rows first and last
 */
export function paintMeasured(u, picture, k, [from, to]) {
  if (to - from > MANY) setPixels(u, picture, k, from, to);
  else fillCircles(u, picture, k, from, to);
}

/** @param {number | null} weight */
const shadeOf = weight => Math.min(SHADES - 1, Math.floor((weight ?? 1) * SHADES));
/** @param {number} shade */
const opacityOf = shade => FAINTEST + ((1 - FAINTEST) * shade) / (SHADES - 1);

/** @param {any} u @param {Picture} picture @param {number} k @param {number} from @param {number} to */
function fillCircles(u, { weight, times, components }, k, from, to) {
  const [x, y] = [toPixels(u, "x"), toPixels(u, "y")];
  const size = RADIUS * devicePixelRatio;
  const paths = Array.from({ length: SHADES }, () => new Path2D());
  for (let i = from; i <= to; i++) {
    const value = components[k].seen[i];
    if (value === null) continue;
    const path = paths[shadeOf(weight[i])];
    const [left, top] = [x(times[i]), y(value)];
    path.moveTo(left + size, top);
    path.arc(left, top, size, 0, 2 * Math.PI);
  }
  clipped(u, () => paths.forEach((path, shade) => fill(u, path, colour("measured", opacityOf(shade)))));
}

/**
 * Paints measurements as squares in an image, because filling shapes on a canvas takes ten times as long.
 * @param {any} u @param {Picture} picture @param {number} k @param {number} from @param {number} to
 */
function setPixels(u, { weight, times, components }, k, from, to) {
  const { ctx, bbox, scales } = u;
  const { seen } = components[k];
  const { image, pixels, sheet } = sheetOf(Math.round(bbox.width), Math.round(bbox.height));
  const [red, green, blue] = (colour("measured").match(/\d+/g) ?? []).map(Number);
  const ink = (/** @type {number} */ shade) =>
    (Math.round(255 * opacityOf(shade)) << 24) | (blue << 16) | (green << 8) | red;
  const inks = Uint32Array.from({ length: SHADES }, (_, shade) => ink(shade));
  const across = image.width / (scales.x.max - scales.x.min);
  const down = image.height / (scales.y.max - scales.y.min);
  for (let i = from; i <= to; i++) {
    const value = seen[i];
    if (value === null) continue;
    const left = Math.floor((times[i] - scales.x.min) * across);
    const top = Math.floor((scales.y.max - value) * down);
    if (left < 0 || top < 0 || left + 1 >= image.width || top + 1 >= image.height) continue;
    const place = top * image.width + left;
    pixels[place] =
      pixels[place + 1] =
      pixels[place + image.width] =
      pixels[place + image.width + 1] =
        inks[shadeOf(weight[i])];
  }
  sheet.getContext("2d")?.putImageData(image, 0, 0);
  ctx.drawImage(sheet, bbox.left, bbox.top);
}

/** @type {{image: ImageData, pixels: Uint32Array, sheet: OffscreenCanvas} | null} */
let kept = null;

/**
 * An empty image and its canvas, which charts of the same size share.
 * @param {number} width
 * @param {number} height
 */
function sheetOf(width, height) {
  if (kept?.image.width !== width || kept.image.height !== height) {
    const image = new ImageData(width, height);
    kept = { image, pixels: new Uint32Array(image.data.buffer), sheet: new OffscreenCanvas(width, height) };
  } else kept.pixels.fill(0);
  return kept;
}

/**
 * Paints a line at a row, and a ring around its measurement.
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
 * Paints alarms in the upper half and missing values in the lower half.
 * @param {any} u the chart of uPlot for alarms and missing values
 * @param {Picture} picture
 * @param {[number, number]} shown first and last row
 */
export function paintLane(u, { times, alarm, components, rows }, [from, to]) {
  const { bbox } = u;
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

/** Calls `draw`, and clips what it draws to the plot. @param {any} u @param {() => void} draw */
function clipped({ ctx, bbox }, draw) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw();
  ctx.restore();
}

/**
 * Converts values of a scale to pixels of the canvas.
 * @param {any} u
 * @param {"x" | "y"} name
 * @returns {(value: number) => number}
 */
function toPixels({ scales, bbox }, name) {
  const { min, max } = scales[name];
  if (name === "x") return value => bbox.left + ((value - min) / (max - min)) * bbox.width;
  return value => bbox.top + bbox.height - ((value - min) / (max - min)) * bbox.height;
}
