/** The models of this server. */

import { fillSelect } from "./dom.js";
import { get } from "./server_calls.js";

/**
 * As /info tells it.
 * @typedef {object} Model
 * @property {string} name
 * @property {string} kind
 * @property {string} digest
 * @property {string} runtime
 * @property {string[]} modes
 * @property {any} metrics
 * @property {any} calibration
 * @property {number} golden_values
 */

/** @type {Promise<any> | null} */
let asked = null;

/** GET /info, asked for once; again after a failure. */
export function info() {
  asked ??= get("info").catch(error => {
    asked = null;
    throw error;
  });
  return asked;
}

/** @returns {Promise<Model[]>} */
const models = async () => (await info()).models;

/**
 * Offers the models that filter, unless it did.
 * @param {HTMLSelectElement} select
 * @param {string} nothing what is shown for none of them
 */
export async function offerFilters(select, nothing) {
  if (select.options.length > 1) return;
  const found = (await models()).filter(({ kind }) => kind !== "lm");
  fillSelect(select, [["", nothing], ...found.map(({ name }) => /** @type {[string, string]} */ ([name, name]))]);
}

/** @returns {Promise<Model | undefined>} */
export const languageModel = async () => (await models()).find(({ kind }) => kind === "lm");
