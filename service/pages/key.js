/** The API key. It is requested when the server requires one, and stored only in the session storage of the tab. */

import { make } from "./dom.js";
import { storage } from "./storage.js";

const NAME = "rfa-key";
/** The last key that was entered, for browsers without storage. */
let given = "";

const input = make("input", { type: "password", id: "key-input", autocomplete: "off", "aria-describedby": "key-said" });
const said = make("p", { class: "bad", id: "key-said", role: "alert" });
const dialog = make(
  "dialog",
  { id: "key-dialog", "aria-labelledby": "key-title" },
  make(
    "form",
    { method: "dialog" },
    make("h2", { id: "key-title" }, "API key"),
    make(
      "p",
      {},
      "The server may require an API key. It is stored in this tab until you close it, and only sent to this server.",
    ),
    make("p", {}, make("label", { for: "key-input" }, "Key"), " ", input),
    said,
    make(
      "div",
      { class: "row" },
      make("button", { class: "main", value: "save" }, "Use it"),
      make("button", { value: "", formnovalidate: true }, "Cancel"),
    ),
  ),
);
document.body.append(dialog);

/** @returns {string} the key, or "" if there is none */
export const key = () => storage(() => sessionStorage.getItem(NAME)) ?? given;

/** @returns {Record<string, string>} */
export const keyHeader = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

/** The subprotocols of a WebSocket. They contain the key, because browsers cannot set headers of WebSockets. */
export function keyProtocols() {
  if (!key()) return ["rfa.v1"];
  const text = btoa(String.fromCharCode(...new TextEncoder().encode(key())));
  return ["rfa.v1", `rfa.key.${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`];
}

/** Keys that can be sent in a header. */
const SENDABLE = /^[!-~]*$/;

function check() {
  const isValid = SENDABLE.test(input.value.trim());
  said.textContent = isValid ? "" : "A key can only contain English letters, digits and symbols, and no spaces.";
  input.setCustomValidity(said.textContent);
}

input.addEventListener("input", check);

/** @type {Promise<boolean> | null} */
let pending = null;

/**
 * Asks for a key. Concurrent calls share one dialog.
 * @returns {Promise<boolean>} whether a key was entered
 */
export function askForKey() {
  pending ??= new Promise(resolve => {
    input.value = key();
    check();
    dialog.addEventListener(
      "close",
      () => {
        pending = null;
        if (dialog.returnValue !== "save") return resolve(false);
        given = input.value.trim();
        storage(() => (given ? sessionStorage.setItem(NAME, given) : sessionStorage.removeItem(NAME)));
        resolve(Boolean(given));
      },
      { once: true },
    );
    dialog.returnValue = "";
    dialog.showModal();
  });
  return pending;
}
