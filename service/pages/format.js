/** Numbers and times as people read them; times in UTC, as the server reads clocks that name no zone. */

const plain = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 4 });
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

const power = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 4, notation: "scientific" });
/** Outside of these a number is a row of zeros, and told by its power of ten. */
const [SMALLEST, LARGEST] = [1e-5, 1e15];

/** @param {number | null | undefined} value */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size && (size < SMALLEST || size >= LARGEST) ? power.format(value) : plain.format(value);
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
 * How rare something is: "about one in 5,000".
 * @param {number} anomaly of a reply, 1 minus a probability
 */
export function rarity(anomaly) {
  const odds = 1 / (1 - anomaly);
  if (odds > RAREST) return `rarer than one in ${count(RAREST)}`;
  return odds < 2 ? "usual" : `about one in ${count(Number(odds.toPrecision(2)))}`;
}
