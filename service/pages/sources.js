/** Sources of live streams: simulations, and the replay of a recorded series. Each row depends only on its number. */

import { normal } from "./chance.js";
import { oscillation } from "./demos.js";
import { extremes } from "./lines.js";
import { shownSeries } from "./series.js";

/**
 * @typedef {object} Source
 * @property {string[]} names of the components
 * @property {number[]} scales amplitude of each component
 * @property {boolean} isDated
 * @property {(row: number) => {t: number, y: (number | null)[]} | null} row returns a row, or null at the end
 */

/** @param {number} row @param {number} k */
const noise = (row, k = 0) => normal(2 * row + k + 1)();
/** @param {number} value */
const rounded = value => Number(value.toFixed(3));

/** @returns {Source} */
const wave = () => ({
  names: ["value"],
  scales: [4],
  isDated: false,
  row: i => ({ t: i, y: [rounded(20 + 4 * Math.sin((2 * Math.PI * i) / 48) + 0.35 * noise(i))] }),
});

/** @returns {Source} */
const still = () => ({
  names: ["value"],
  scales: [4],
  isDated: false,
  row: i => ({ t: i, y: [rounded(20 + 0.5 * noise(i))] }),
});

/** @returns {Source} */
const oscillator = () => ({
  names: ["first", "second"],
  scales: [2, 1.4],
  isDated: false,
  row: i => ({ t: rounded(i / 5), y: oscillation(i / 5).map((value, k) => rounded(2 * value + 0.3 * noise(i, k))) }),
});

/** @param {(number | null)[]} column */
function swing(column) {
  const [low, high] = extremes(column, 0, column.length);
  return low === null || high === null ? 0 : high / 2 - low / 2;
}

/** @returns {Source} the series that the tab with recorded series shows */
function recorded() {
  const { times, values, is_dated } = shownSeries();
  const columns = Object.values(values);
  return {
    names: Object.keys(values),
    scales: columns.map(swing),
    isDated: is_dated,
    row: i => (i < times.length ? { t: times[i], y: columns.map(column => column[i]) } : null),
  };
}

/** @type {Record<string, {shown: string, make: () => Source}>} */
export const SOURCES = {
  wave: { shown: "a daily wave", make: wave },
  still: { shown: "a steady level", make: still },
  oscillator: { shown: "an oscillator, for the model linear", make: oscillator },
  recorded: { shown: "the series in the tab Series", make: recorded },
};
