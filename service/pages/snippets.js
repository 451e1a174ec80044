/** Buttons that copy the last requests of the page as a program. */

import { byId, make } from "./dom.js";
import { LANGUAGES, bodyOf, isLong, madeBy, program } from "./languages.js";

/** @typedef {import("./languages.js").Call} Call */

/**
 * Adds buttons that copy the last requests.
 * @param {HTMLElement} host
 * @param {() => Call[]} calls function that returns the requests in order
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
  byId("code").textContent = code || "No request has been sent yet.";
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

/** Copies the program. Browsers allow this only on this machine and over https; otherwise, the text is selected. */
async function copy() {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("code-said").textContent = "Copied.";
  } catch {
    getSelection()?.selectAllChildren(byId("code"));
    byId("code-said").textContent = "The text is selected. Copy it with the keyboard.";
  }
}

byId("code-copy").addEventListener("click", copy);
byId("code-close").addEventListener("click", () => byId("code-dialog").close());
