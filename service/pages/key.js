/** The API key: requested when the server needs one, and stored only in this tab's session storage. */

import { make } from "./dom.js";
import { storage } from "./storage.js";

const NAME = "rfa-key";
/** Last input, for browsers without storage. */
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
    make("p", {}, "This server may need a key. It stays in this tab until you close it; only this server gets it."),
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

/** @returns {string} "" without one */
export const key = () => storage(() => sessionStorage.getItem(NAME)) ?? given;

/** @returns {Record<string, string>} */
export const keyHeader = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

/** Subprotocols of a WebSocket, for which browsers cannot set headers. */
export function keyProtocols() {
  if (!key()) return ["rfa.v1"];
  const text = btoa(String.fromCharCode(...new TextEncoder().encode(key())));
  return ["rfa.v1", `rfa.key.${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`];
}

/** Characters that a header can have. */
const SENDABLE = /^[!-~]*$/;

function check() {
  const isValid = SENDABLE.test(input.value.trim());
  said.textContent = isValid ? "" : "A key has English letters, digits and symbols, and no spaces.";
  input.setCustomValidity(said.textContent);
}

input.addEventListener("input", check);

/** @type {Promise<boolean> | null} */
let pending = null;

/**
 * Asks for a key; concurrent calls share one dialog.
 * @returns {Promise<boolean>} whether one was given
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
