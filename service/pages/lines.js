/** The lines and bands of a chart, in the form that uPlot uses. */

import { colour } from "./scheme.js";

/** @typedef {import("./picture.js").Picture} Picture */
/** @typedef {import("./picture.js").Component} Component */

/** @typedef {import("./picture.js").Column} Column */

/** @param {Picture} picture @returns {any} */
export const laneOf = picture => [picture.times, new Array(picture.times.length).fill(1)];

/**
 * Thins out columns for a chart with fewer pixels than rows. Each pair of entries contains the minimum and the maximum
 * of several rows. For the bounds of an interval, both entries contain the outer value.
 * @param {any} columns result of `columnsOf` or `laneOf`
 * @param {number} limits number of columns after the times that are bounds of intervals, alternately upper and lower
 * @param {number} stride number of rows for each entry
 */
export function coarse([times, ...columns], limits, stride) {
  const last = times.length - 1;
  const pairs = Math.ceil(times.length / (2 * stride));
  const at = Array.from({ length: 2 * pairs }, (_, entry) => times[Math.min(entry * stride, last)]);
  at[at.length - 1] = times[last];
  return [
    at,
    ...columns.map((/** @type {Column} */ column, /** @type {number} */ place) => {
      const isLimit = place < limits;
      const isUpper = place % 2 === 0;
      /** @type {Column} */
      const thinned = new Array(2 * pairs);
      for (let pair = 0; pair < pairs; pair++) {
        const [low, high] = extremes(column, 2 * stride * pair, Math.min(2 * stride * (pair + 1), last + 1));
        thinned[2 * pair] = isLimit && isUpper ? high : low;
        thinned[2 * pair + 1] = isLimit && !isUpper ? low : high;
      }
      return thinned;
    }),
  ];
}

/** The minimum and maximum of the rows from `from` to before `to`.
 * @param {Column} column @param {number} from @param {number} to @returns {[number | null, number | null]} */
export function extremes(column, from, to) {
  let [low, high] = [Infinity, -Infinity];
  for (let row = from; row < to; row++) {
    const value = column[row];
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [null, null] : [low, high];
}

/** The number of columns of a component that are bounds of intervals. @param {Component} component */
export const limitsOf = ({ bands, fan }) => 2 * (bands.length + fan.length);

/**
 * The columns of a chart, in the order of `seriesOf`.
 * @param {Picture} picture
 * @param {number} k
 * @returns {any}
 */
export function columnsOf(picture, k) {
  const { bands, fan, smoothed, samples, mean, forecast, seen } = picture.components[k];
  const limits = [...bands, ...fan].flatMap(({ low, high }) => [high, low]);
  return [
    picture.times,
    ...limits,
    ...samples,
    ...(smoothed ? [smoothed] : []),
    mean,
    ...(fan.length ? [forecast] : []),
    seen,
  ];
}

/** @param {Component} component */
export function seriesOf({ bands, fan, smoothed, samples }) {
  const points = { show: false };
  const line = (/** @type {string} */ name, width = 1.5, opacity = 1) => ({
    stroke: () => colour(name, opacity),
    width,
    points,
  });
  // The range of the axis does not depend on these columns, because the first intervals can be very wide.
  const edge = { width: 0, points, auto: false };
  const edgeAhead = { width: 0, points };
  return [
    {},
    ...bands.flatMap(() => [edge, edge]),
    ...fan.flatMap(() => [edgeAhead, edgeAhead]),
    ...samples.map(() => ({ ...line("second", 0.8, 0.55), auto: false })),
    ...(smoothed ? [{ ...line("second", 1.8), auto: false }] : []),
    line("estimate", 1.8),
    ...(fan.length ? [line("forecast", 1.8)] : []),
    // `paintMeasured` draws this column. It is included for the range of the axis.
    { stroke: "transparent", points, paths: () => null },
  ];
}

/** @param {Component} component */
export function bandsOf({ bands, fan }) {
  return [...bands.map(() => "estimate"), ...fan.map(() => "forecast")].map((name, k) => ({
    series: /** @type {[number, number]} */ ([2 * k + 1, 2 * k + 2]),
    fill: () => colour(name, 0.17),
  }));
}
