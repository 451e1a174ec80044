/** The API key: asked for once the server wants one, kept in this tab's session storage and nowhere else. */

import { byId } from "./dom.js";
import { storage } from "./storage.js";

const NAME = "rfa-key";
/** What was given since the page was opened: a browser may keep nothing. */
let held = "";

/** @returns {string} "" where there is none */
export const key = () => storage(() => sessionStorage.getItem(NAME)) ?? held;

/** @returns {Record<string, string>} */
export const keyHeader = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

/** Subprotocols of a WebSocket: browsers can set no header there. */
export function keyProtocols() {
  if (!key()) return ["rfa.v1"];
  const text = btoa(String.fromCharCode(...new TextEncoder().encode(key())));
  return ["rfa.v1", `rfa.key.${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`];
}

/** What a server takes as a key, as it travels in a header. */
const SENDABLE = /^[!-~]*$/;

/** @param {string} given */
const faultOf = given => (SENDABLE.test(given) ? "" : "A key has letters of English, digits and signs, and no spaces.");

function check() {
  const fault = faultOf(byId("key-input").value.trim());
  byId("key-said").textContent = fault;
  byId("key-input").setCustomValidity(fault); // with which it is not used
}

byId("key-input").addEventListener("input", check);

/** @type {Promise<boolean> | null} */
let asked = null;

/**
 * Ask for a key; several that ask at once share one dialog.
 * @returns {Promise<boolean>} whether one was given
 */
export function askForKey() {
  asked ??= new Promise(resolve => {
    const dialog = byId("key-dialog");
    byId("key-input").value = key();
    check();
    dialog.addEventListener(
      "close",
      () => {
        asked = null;
        if (dialog.returnValue !== "save") return resolve(false);
        held = byId("key-input").value.trim();
        storage(() => (held ? sessionStorage.setItem(NAME, held) : sessionStorage.removeItem(NAME)));
        resolve(Boolean(held));
      },
      { once: true },
    );
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asked;
}
