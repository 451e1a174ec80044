/** Numbers and times as people read them; times in UTC, as the server reads clocks that name no zone. */

import { extremes } from "./lines.js";

/** Digits that a number has at least, where it has so many; and at most, as float64 has no more. */
const DIGITS = 4;
const MOST_DIGITS = 15;
/** Of what a column spans, so small a part is told. */
const FINEST = 1e-2;
/** Below and from here on, numbers are written as powers of ten. */
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

/** @param {number | null | undefined} value @param {number} [digits] that count, at most */
export function number(value, digits = DIGITS) {
  if (value === null || value === undefined) return "–";
  const notation = isPower(Math.abs(value)) ? "scientific" : "standard";
  return formatOf({ maximumSignificantDigits: digits, notation }).format(value);
}

/**
 * Digits that distinguish numbers of this size with such differences: a meter at a million changes by ones.
 * @param {number} size @param {number} step
 */
function digitsFor(size, step) {
  const parts = size / step; // not a number, or no end of them, where nothing differs
  return Number.isFinite(parts) ? Math.max(DIGITS, Math.min(MOST_DIGITS, Math.ceil(Math.log10(parts)) + 1)) : DIGITS;
}

/**
 * A formatter for the numbers of a column: equal decimals, or powers of ten.
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
  // Early intervals are very wide: decimals of such numbers mean nothing.
  const isBeyond = (/** @type {number} */ value) => notation === "standard" && Math.abs(value) >= LARGE;
  return value => (value === null || value === undefined || isBeyond(value) ? number(value) : format.format(value));
}

/** Marks of an axis, as numbers that differ. @param {number[]} marks at even steps, upwards */
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
 * @param {number} t seconds since 1970 where there are dates
 * @param {boolean} isDated
 */
export const time = (t, isDated) => (isDated ? moment.format(1000 * t) : number(t));

/** Rarer than this is not told: no series is long enough to know. */
const RAREST = 1e6;

/**
 * Rarity as text: "about one in 5,000".
 * @param {number} anomaly of a reply, 1 minus a probability
 */
export function rarity(anomaly) {
  const odds = 1 / (1 - anomaly);
  if (odds > RAREST) return `rarer than one in ${count(RAREST)}`;
  return odds < 2 ? "usual" : `about one in ${count(Number(odds.toPrecision(2)))}`;
}
