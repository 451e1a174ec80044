/** The API key: asked for once the server wants one, kept in this tab's session storage and nowhere else. */

import { byId } from "./dom.js";

const NAME = "rfa-key";

/** @returns {string} "" where there is none */
export const key = () => sessionStorage.getItem(NAME) ?? "";

/** @returns {Record<string, string>} */
export const keyHeader = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

/** Subprotocols of a WebSocket: browsers can set no header there. */
export function keyProtocols() {
  if (!key()) return ["rfa.v1"];
  const text = btoa(String.fromCharCode(...new TextEncoder().encode(key())));
  return ["rfa.v1", `rfa.key.${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`];
}

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
    dialog.addEventListener(
      "close",
      () => {
        asked = null;
        if (dialog.returnValue !== "save") return resolve(false);
        const given = byId("key-input").value.trim();
        if (given) sessionStorage.setItem(NAME, given);
        else sessionStorage.removeItem(NAME);
        resolve(Boolean(given));
      },
      { once: true },
    );
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asked;
}
