/** The lines and bands of a chart, as uPlot takes them. */

import { colour } from "./scheme.js";

/** @typedef {import("./picture.js").Picture} Picture */
/** @typedef {import("./picture.js").Component} Component */

/** @param {Picture} picture @returns {any} */
export const laneOf = picture => [picture.times, new Array(picture.times.length).fill(1)];

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
  // Where a series begins nothing is known, and all of these are far off: the axis is made for what comes after.
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
    // Drawn by hand, and here for the axis to reach.
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
