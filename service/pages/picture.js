/** Data for the charts of a filtered series, as columns of equal length. The forecast rows follow the measured rows. */

import { number, percent, rarity, tellerOf, time } from "./format.js";

/**
 * @typedef {(number | null)[]} Column
 *
 * @typedef {object} Band
 * @property {number} level
 * @property {Column} low
 * @property {Column} high
 *
 * @typedef {object} Component one column of the measurements, and its results
 * @property {string} name
 * @property {Column} seen
 * @property {(value: number | null | undefined) => string} told function that formats its numbers
 * @property {Column} mean
 * @property {Column} innovation measured value minus its forecast
 * @property {Band[]} bands intervals of the estimate, the widest first
 * @property {Column} forecast
 * @property {Band[]} fan intervals of the forecast, the widest first
 * @property {Column} [smoothed]
 * @property {Column[]} samples
 * @property {[string, number[]][]} weights weights of the combined forecasts, for each forecast row
 *
 * @typedef {object} Picture
 * @property {boolean} isDated
 * @property {number} rows number of measured rows
 * @property {number[]} times times of the measured rows and of the forecast rows
 * @property {Column} weight
 * @property {Column} anomaly
 * @property {Column} nis
 * @property {Column} alarm 1 for rows with an alarm
 * @property {Component[]} components
 */

/**
 * Converts a reply in columns to the data of the charts.
 * @param {import("./demos.js").Series} series
 * @param {any} reply of POST /filter
 * @param {number[]} levels
 * @returns {Picture}
 */
export function picture(series, reply, levels) {
  const { columns, ahead } = reply;
  const rows = columns.t.length;
  const later = ahead?.t ?? [];
  const shown = [...levels].sort((a, b) => b - a);
  /** @param {Column | undefined} column @returns {Column} */
  const padded = column => [...(column ?? new Array(rows).fill(null)), ...new Array(later.length).fill(null)];
  /**
   * A forecast column that begins with the last estimate.
   * @param {Column} past
   * @param {Column | undefined} next
   */
  const onward = (past, next) => (next ? [...new Array(rows - 1).fill(null), past[rows - 1], ...next] : []);
  const components = Object.entries(series.values).map(([name, seen]) => {
    const mean = columns[`mean.${name}`];
    const bands = shown.map(level => ({
      level,
      low: columns[`lower.${level}.${name}`],
      high: columns[`upper.${level}.${name}`],
    }));
    return {
      name,
      seen: padded(seen),
      told: tellerOf(seen),
      mean: padded(mean),
      innovation: columns[`innovation.${name}`],
      bands: bands.map(band => ({ ...band, low: padded(band.low), high: padded(band.high) })),
      forecast: onward(mean, ahead?.[`mean.${name}`]),
      fan: !ahead
        ? []
        : bands.map(({ level, low, high }) => ({
            level,
            low: onward(low, ahead[`lower.${level}.${name}`]),
            high: onward(high, ahead[`upper.${level}.${name}`]),
          })),
      smoothed: columns[`smoothed.mean.${name}`] && padded(columns[`smoothed.mean.${name}`]),
      samples: [],
      weights: weightsOf(ahead ?? {}, name),
    };
  });
  const { weight, anomaly, nis, alarm } = columns;
  return {
    isDated: series.is_dated,
    rows,
    times: [...columns.t, ...later],
    weight,
    anomaly,
    nis,
    alarm: alarm ?? [],
    components,
  };
}

/**
 * The weights of the forecasts that are combined for a component, by their names.
 * @param {Record<string, number[]>} ahead
 * @param {string} component
 * @returns {[string, number[]][]}
 */
function weightsOf(ahead, component) {
  const experts = new Set(Object.keys(ahead).flatMap(key => /^weight\.([a-z_]+)\./.exec(key)?.slice(1) ?? []));
  return [...experts].flatMap(expert => {
    const column = ahead[`weight.${expert}.${component}`];
    return column ? [/** @type {[string, number[]]} */ ([expert.replaceAll("_", " "), column])] : [];
  });
}

/**
 * Describes one row of one component on one line.
 * @param {Picture} shown
 * @param {number} k component
 * @param {number} row
 */
export function reading(shown, k, row) {
  const { seen, told, mean, bands, forecast, fan } = shown.components[k];
  const isAhead = row >= shown.rows;
  const band = (isAhead ? fan : bands)[0];
  const parts = [time(shown.times[row], shown.isDated)];
  if (isAhead) parts.push(`forecast ${told(forecast[row])}`);
  else parts.push(seen[row] === null ? "missing" : `measured ${told(seen[row])}`, `estimate ${told(mean[row])}`);
  if (band) parts.push(`${percent(band.level)}: ${told(band.low[row])} to ${told(band.high[row])}`);
  const weight = shown.weight[row];
  if (!isAhead && weight !== null && weight !== undefined) parts.push(`used ${percent(weight)}`);
  if (shown.alarm[row]) parts.push("alarm");
  return parts.join(" · ");
}

/**
 * Sentences that explain how the filter used a row.
 * @param {Picture} shown
 * @param {number} row
 * @returns {string[]}
 */
export function explanation(shown, row) {
  const weight = shown.weight[row];
  const anomaly = shown.anomaly[row];
  const nis = shown.nis[row];
  const there = shown.components.filter(({ seen }) => seen[row] !== null);
  if (!there.length) {
    return ["No measurement. The filter predicts, and its interval grows."];
  }
  const sentences = there.map(({ name, seen, told, innovation, mean }) => {
    const off = innovation?.[row];
    if (off === null || off === undefined) return `${name} was ${told(seen[row])}.`;
    const expected = /** @type {number} */ (seen[row]) - off;
    const side = off > 0 ? "above" : "below";
    return (
      `${name} was ${told(seen[row])}, ${told(Math.abs(off))} ${side} the forecast ${told(expected)}. ` +
      `The estimate is ${told(mean[row])}.`
    );
  });
  if (nis !== null && nis !== undefined) {
    sentences.push(`That is ${number(Math.sqrt(nis / there.length))} times the usual forecast error.`);
  }
  if (anomaly !== null && anomaly !== undefined) {
    sentences.push(`Rarity on this series: ${rarity(anomaly)}.`);
  }
  if (weight !== null && weight !== undefined) {
    sentences.push(`${judgement(weight)} (${percent(weight)} of it was used.)`);
  }
  if (shown.alarm[row]) sentences.push("It is an alarm, because it is rarer than the selected rate.");
  return sentences;
}

/** @param {number} weight */
export function judgement(weight) {
  if (weight < 0.1) return "The filter rejected it.";
  if (weight < 0.6) return "The filter reduced its weight.";
  return "The filter used it.";
}

/**
 * The most unusual rows. The rarest one comes first.
 * @param {Picture} shown
 * @param {number} most maximum number of rows
 */
export function unusual(shown, most) {
  const order = shown.anomaly.map((score, row) => ({ score: score ?? 0, row }));
  const byRarity = (/** @type {number} */ row) => [shown.alarm[row] ?? 0, shown.anomaly[row] ?? 0, shown.nis[row] ?? 0];
  return order
    .filter(({ score }) => score > 0.9)
    .map(({ row }) => row)
    .sort((a, b) => {
      const [left, right] = [byRarity(a), byRarity(b)];
      return right[0] - left[0] || right[1] - left[1] || right[2] - left[2];
    })
    .slice(0, most);
}
