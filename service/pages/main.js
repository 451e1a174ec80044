/** The page and its tabs. A tab is loaded when it is first opened. */

import { byId } from "./dom.js";
import { show, shown } from "./fragment.js";
import { askForKey } from "./key.js";
import { startScheme } from "./scheme.js";

/** @type {Record<string, (fields: URLSearchParams) => unknown>} */
const STARTS = {
  series: async fields => (await import("./series.js")).startSeries(fields),
  live: async fields => (await import("./live.js")).startLive(fields),
  text: async fields => (await import("./text.js")).startText(fields),
  server: async () => (await import("./server.js")).startServer(),
};
const NAMES = Object.keys(STARTS);
/** Note on the link to a tab; null for the default note. @type {Record<string, () => string | null>} */
const WITHOUT = {
  series: () =>
    byId("series-demo").value
      ? null
      : "It contains your options, but not the key or the file. Whoever opens it needs the file.",
  live: () => "It contains your options, but not the key or the state. To share the state, save it.",
  text: () => "It contains the prompt and your options, but not the key. Generate writes the same text again.",
};
/** Last address of each tab. @type {Record<string, string>} */
const left = {};
let open = "";

/** @param {string} name @param {URLSearchParams} [fields] */
async function openTab(name, fields) {
  if (open === name) return;
  if (open) left[open] = location.hash;
  open = name;
  for (const other of NAMES) {
    const isOpen = other === name;
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(isOpen));
    tab.tabIndex = isOpen ? 0 : -1;
    byId(other).hidden = !isOpen;
  }
  if (left[name]) history.replaceState(null, "", left[name]);
  else {
    left[name] = `#${name}`;
    show(name, fields);
    try {
      await STARTS[name](fields ?? new URLSearchParams());
    } catch (error) {
      byId(`${name}-error`).textContent = "This part of the page could not be loaded. Reload the page.";
      throw error;
    }
  }
  if (open === name) document.dispatchEvent(new CustomEvent("tab", { detail: name }));
}

function listen() {
  NAMES.forEach((name, k) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => openTab(name));
    tab.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const to = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: NAMES.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = NAMES[(to + NAMES.length) % NAMES.length];
      openTab(next);
      byId(`tab-${next}`).focus();
    });
  });
  byId("key-open").addEventListener("click", async () => {
    if (await askForKey()) location.reload();
  });
  byId("share").addEventListener("click", share);
  addEventListener("hashchange", event => {
    if (NAMES.includes(shown().tab)) location.reload();
    else history.replaceState(null, "", event.oldURL);
  });
  keepPage();
}

/** Prevents that the page is left when a form has no listener yet, or a file is dropped in a wrong place. */
function keepPage() {
  document.addEventListener("submit", event => {
    if (/** @type {HTMLFormElement} */ (event.target).method !== "dialog") event.preventDefault();
  });
  for (const name of /** @type {const} */ (["dragover", "drop"])) {
    document.addEventListener(name, event => {
      const isTaken = /** @type {HTMLInputElement} */ (event.target).type === "file";
      if (event.dataTransfer?.types.includes("Files") && !isTaken) event.preventDefault();
    });
  }
}

async function share() {
  const said = byId("share-said");
  const note = WITHOUT[open]?.() ?? "It shows this view, and does not contain the key.";
  said.hidden = false;
  try {
    await navigator.clipboard.writeText(location.href);
    said.textContent = `The link is copied. ${note}`;
  } catch {
    said.textContent = `The link is the address of this page. Copy it from the address bar. ${note}`;
  }
}

startScheme();
listen();
const { tab, fields } = shown();
openTab(NAMES.includes(tab) ? tab : "series", fields);
