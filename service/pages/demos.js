/** Simulated example series. */

import { normal } from "./chance.js";

/**
 * A series in the reply of POST /read.
 * @typedef {object} Series
 * @property {string | null} clock
 * @property {boolean} is_dated
 * @property {number[]} times
 * @property {Record<string, (number | null)[]>} values
 * @property {string[]} notes
 */

const HOUR = 3600;
const DAY = 24 * HOUR;
// A Monday.
const BEGIN = Date.UTC(2026, 1, 2) / 1000;
/** @param {number} value @param {number} [digits] */
const rounded = (value, digits = 2) => Number(value.toFixed(digits));

/** @param {number} t */
const daily = t => Math.sin((2 * Math.PI * (t - BEGIN - 9 * HOUR)) / DAY);

/** @returns {Series} The temperature of a room in two weeks, every half hour. A window is open near the end. */
function room() {
  const noise = normal(11);
  const times = Array.from({ length: 14 * 48 }, (_, i) => BEGIN + (i * HOUR) / 2);
  const opened = BEGIN + 12 * DAY + 14 * HOUR;
  const lost = BEGIN + 8 * DAY + 2 * HOUR;
  const values = times.map((t, i) => {
    if (t >= lost && t < lost + 9 * HOUR) return null;
    const cold = t >= opened && t < opened + 2 * HOUR ? -5 : 0;
    return rounded(20.5 + 1.6 * daily(t) + cold + 0.2 * noise() + (i === 200 ? 9 : 0));
  });
  return { clock: "time", is_dated: true, times, values: { "temperature (°C)": values }, notes: [] };
}

/** @returns {Series} Hourly requests to a shop: few at night and on Sundays, and more after an advertisement. */
function requests() {
  const noise = normal(5);
  const times = Array.from({ length: 28 * 24 }, (_, i) => BEGIN + i * HOUR);
  const values = times.map(t => {
    const isSunday = Math.floor((t - BEGIN) / DAY) % 7 === 6;
    const usual = (isSunday ? 320 : 600) * (1 + 0.6 * daily(t)) * (t > BEGIN + 19 * DAY ? 1.35 : 1);
    return rounded(Math.max(0, usual + 30 * noise()), 0);
  });
  return { clock: "time", is_dated: true, times, values: { "requests per minute": values }, notes: [] };
}

/** @returns {Series} Two measurements of a machine at irregular times. One of them is often missing. */
function machine() {
  const noise = normal(3);
  const temperature = [];
  const vibration = [];
  const times = [];
  let t = BEGIN;
  let load = 0;
  for (let i = 0; i < 500; i++) {
    t += 300 * (1 + Math.abs(noise()));
    load = 0.97 * load + 0.25 * noise();
    times.push(Math.round(t));
    temperature.push(i % 37 > 33 ? null : rounded(62 + 4 * load + 0.5 * noise()));
    vibration.push(rounded(Math.max(0.1, 2.4 + 0.5 * load + 0.15 * noise() + (i === 410 ? 4 : 0)), 3));
  }
  return {
    clock: "time",
    is_dated: true,
    times,
    values: { "bearing (°C)": temperature, "vibration (mm/s)": vibration },
    notes: [],
  };
}

/** @returns {Series} The two components of the oscillator that the bundle `linear` filters. Times are not dates. */
function oscillator() {
  const noise = normal(8);
  const times = Array.from({ length: 240 }, (_, i) => rounded(i / 5, 3));
  const values = [0, 1].map(k =>
    times.map((t, i) => {
      if (i > 140 && i < 160) return null;
      const struck = i === 90 && !k ? 4 : 0;
      return rounded(2 * Math.exp(-t / 60) * oscillation(t)[k] + 0.3 * noise() + struck, 3);
    }),
  );
  return { clock: "t", is_dated: false, times, values: { first: values[0], second: values[1] }, notes: [] };
}

/**
 * A solution of x' = [[0.9, -2], [1, -1.1]] x without its decay, which is the system of the bundle `linear`.
 * @param {number} t
 */
export const oscillation = t => [Math.cos(t), (Math.cos(t) + Math.sin(t)) / 2];

/** @returns {Series} A metric in two weeks, every minute, as an example of a long series. */
function long() {
  const noise = normal(21);
  const times = Array.from({ length: 20_000 }, (_, i) => BEGIN + 60 * i);
  const values = times.map((t, i) => rounded(100 + 25 * daily(t) + 3 * noise() + (i % 6007 === 6000 ? 60 : 0)));
  return { clock: "time", is_dated: true, times, values: { "load (%)": values }, notes: [] };
}

/** @type {Record<string, {shown: string, make: () => Series}>} */
export const DEMOS = {
  room: { shown: "A room's temperature, 2 weeks", make: room },
  requests: { shown: "Requests of a shop, 4 weeks", make: requests },
  machine: { shown: "A machine, two sensors", make: machine },
  oscillator: { shown: "An oscillator, for the model linear", make: oscillator },
  long: { shown: "20,000 rows by the minute", make: long },
};
