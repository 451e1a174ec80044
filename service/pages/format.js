/** Format numbers and times. Times are shown in UTC, because the server reads times without a time zone as UTC. */

import { extremes } from "./lines.js";

/** Default number of significant digits, and the maximum, because float64 has no more. */
const DIGITS = 4;
const MOST_DIGITS = 15;
/** Smallest difference that is shown, relative to the range of a column. */
const FINEST = 1e-2;
/** Numbers below SMALL and from LARGE on are written as powers of ten. */
const SMALL = 1e-4;
const LARGE = 1e9;
const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const moment = new Intl.DateTimeFormat("en-GB", {
  timeZone: "UTC",
  weekday: "short",
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
});

/** @type {Map<string, Intl.NumberFormat>} */
const formats = new Map();

/** @param {Intl.NumberFormatOptions} options */
function formatOf(options) {
  const name = JSON.stringify(options);
  const format = formats.get(name) ?? new Intl.NumberFormat("en-GB", options);
  formats.set(name, format);
  return format;
}

/** @param {number} size */
const isPower = size => size >= LARGE || (size > 0 && size < SMALL);

/** @param {number | null | undefined} value @param {number} [digits] maximum number of significant digits */
export function number(value, digits = DIGITS) {
  if (value === null || value === undefined) return "–";
  const notation = isPower(Math.abs(value)) ? "scientific" : "standard";
  return formatOf({ maximumSignificantDigits: digits, notation }).format(value);
}

/**
 * The number of digits that distinguish numbers of a size that differ by a step, such as 1,000,000 and 1,000,001.
 * @param {number} size @param {number} step
 */
function digitsFor(size, step) {
  const parts = size / step; // NaN or infinity if the step is 0
  return Number.isFinite(parts) ? Math.max(DIGITS, Math.min(MOST_DIGITS, Math.ceil(Math.log10(parts)) + 1)) : DIGITS;
}

/**
 * A function that formats the numbers of a column with equal decimals, or as powers of ten.
 * @param {(number | null)[]} column
 * @returns {(value: number | null | undefined) => string}
 */
export function tellerOf(column) {
  const [low, high] = extremes(column, 0, column.length);
  if (low === null || high === null) return value => number(value);
  const size = Math.max(Math.abs(low), Math.abs(high));
  const digits = digitsFor(size, FINEST * (high - low));
  const notation = isPower(size) ? "scientific" : "standard";
  const decimals = notation === "standard" && size ? Math.max(0, digits - 1 - Math.floor(Math.log10(size))) : digits - 1;
  const fixed = { minimumFractionDigits: decimals, maximumFractionDigits: decimals, signDisplay: "negative", notation };
  const format = formatOf(/** @type {Intl.NumberFormatOptions} */ (fixed));
  // The first intervals can be very wide, and decimals of their bounds are not meaningful.
  const isBeyond = (/** @type {number} */ value) => notation === "standard" && Math.abs(value) >= LARGE;
  return value => (value === null || value === undefined || isBeyond(value) ? number(value) : format.format(value));
}

/** Formats the marks of an axis so that they differ. @param {number[]} marks in equal steps, ascending */
export function axisNumbers(marks) {
  const largest = Math.max(...marks.map(Math.abs), 0);
  const digits = digitsFor(largest, marks.length > 1 ? (marks[1] - marks[0]) / 10 : 0); // a step may be 2.5
  return marks.map(mark => number(mark, digits));
}
/** @param {number} value */
export const count = value => whole.format(value);
/** @param {number} share @param {number} [digits] */
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

/**
 * A time of a series.
 * @param {number} t time; seconds since 1970 if times are dates
 * @param {boolean} isDated
 */
export const time = (t, isDated) => (isDated ? moment.format(1000 * t) : number(t));

/** Largest rarity that is shown, because no series is long enough to estimate a larger one. */
const RAREST = 1e6;

/**
 * Rarity as text, such as "about one in 5,000".
 * @param {number} anomaly of a reply, 1 minus a probability
 */
export function rarity(anomaly) {
  const odds = 1 / (1 - anomaly);
  if (odds > RAREST) return `rarer than one in ${count(RAREST)}`;
  return odds < 2 ? "usual" : `about one in ${count(Number(odds.toPrecision(2)))}`;
}
