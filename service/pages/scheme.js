/** Light and dark colours. They follow the system, or the choice of the user. */

import { make } from "./dom.js";
import { storage } from "./storage.js";

const NAME = "rfa-scheme";
const COLOURS = ["ink", "soft", "rule", "estimate", "second", "forecast", "measured", "alarm", "gap"];

/** @type {Record<string, string>} */
let resolved = {};
/** @type {Set<() => void>} */
const redraw = new Set();

/**
 * The colour with a name in the current scheme, for drawing on a canvas.
 * @param {string} name
 * @param {number} [opacity]
 */
export function colour(name, opacity = 1) {
  if (!(name in resolved)) resolve();
  return opacity === 1 ? resolved[name] : resolved[name].replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
}

/** @param {() => void} work function that is called when the colours have changed */
export function onScheme(work) {
  redraw.add(work);
  return () => redraw.delete(work);
}

function resolve() {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.forcedColorAdjust = "none"; // otherwise all colours are equal
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

/** Applies the stored scheme, and offers a choice in the tools of the page. */
export function startScheme() {
  const select = make("select", { id: "scheme" });
  select.append(new Option("of the system", ""), new Option("light"), new Option("dark"));
  document.querySelector(".tools a")?.before(make("label", {}, "Colours ", select));
  const stored = storage(() => localStorage.getItem(NAME));
  if ([...select.options].some(({ value }) => value === stored)) select.value = stored;
  choose(select.value);
  select.addEventListener("change", () => {
    choose(select.value);
    changed();
    storage(() => localStorage.setItem(NAME, select.value));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}
