/** Buttons that copy what the page just did, as a program does it. */

import { byId, make } from "./dom.js";
import { LANGUAGES, bodyOf, isLong, madeBy, program } from "./languages.js";

/** @typedef {import("./languages.js").Call} Call */

/**
 * Buttons that copy the last requests.
 * @param {HTMLElement} host
 * @param {() => Call[]} calls what was done, in order
 */
export function offerCopies(host, calls) {
  const buttons = LANGUAGES.map(language => {
    const button = make("button", { type: "button" }, language);
    button.addEventListener("click", () => open(language, calls()));
    return button;
  });
  host.replaceChildren("Copy the last request as", ...buttons);
}

/** @param {string} language @param {Call[]} done */
function open(language, done) {
  const calls = done.map(call => madeBy(language, call));
  const code = program(
    language,
    calls.map(call => [call, new URL(call.path, document.baseURI).href]),
  );
  byId("code").textContent = code || "There was no request yet.";
  byId("code-title").textContent = `As ${language}`;
  const long = calls.find(isLong);
  byId("code-body").hidden = !long;
  if (long) {
    URL.revokeObjectURL(byId("code-body").href);
    byId("code-body").href = URL.createObjectURL(new Blob([bodyOf(long)], { type: "application/json" }));
  }
  byId("code-dialog").showModal();
  copy();
}

/** Browsers let pages copy on this machine and over https; elsewhere it is to be copied by hand. */
async function copy() {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("code-said").textContent = "Copied.";
  } catch {
    getSelection()?.selectAllChildren(byId("code"));
    byId("code-said").textContent = "Selected: copy it with the keyboard.";
  }
}

byId("code-copy").addEventListener("click", copy);
byId("code-close").addEventListener("click", () => byId("code-dialog").close());
