/** Light or dark: as the system has it, unless somebody chose; and the colours of it for what is drawn on a canvas. */

import { byId } from "./dom.js";
import { storage } from "./storage.js";

const NAME = "rfa-scheme";
const COLOURS = ["ink", "soft", "rule", "estimate", "second", "forecast", "measured", "alarm", "gap"];

/** @type {Record<string, string>} */
let resolved = {};
/** @type {Set<() => void>} */
const redraw = new Set();

/**
 * The colour of this name in the scheme that is shown.
 * @param {string} name
 * @param {number} [opacity]
 */
export function colour(name, opacity = 1) {
  if (!(name in resolved)) resolve();
  return opacity === 1 ? resolved[name] : resolved[name].replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
}

/** @param {() => void} work is called when the colours have changed */
export function onScheme(work) {
  redraw.add(work);
  return () => redraw.delete(work);
}

function resolve() {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.forcedColorAdjust = "none"; // or all are one
  resolved = Object.fromEntries(
    COLOURS.map(name => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    }),
  );
  probe.remove();
}

function changed() {
  resolve();
  for (const work of redraw) work();
}

function choose(/** @type {string} */ scheme) {
  if (scheme) document.documentElement.dataset.scheme = scheme;
  else delete document.documentElement.dataset.scheme;
}

/** Shows the scheme that was chosen, and lets one be chosen. */
export function startScheme() {
  const select = byId("scheme");
  const kept = storage(() => localStorage.getItem(NAME));
  if ([...select.options].some(({ value }) => value === kept)) select.value = kept;
  choose(select.value);
  select.addEventListener("change", () => {
    choose(select.value);
    changed();
    storage(() => localStorage.setItem(NAME, select.value));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}
