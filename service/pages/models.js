/** The models of the server. */

import { fillSelect } from "./dom.js";
import { get } from "./server_calls.js";

/**
 * A model in the reply of /info.
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

/** The reply of GET /info. It is requested once, and again after a failure. */
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
 * Fills a select with the names of the filters, if it is empty.
 * @param {HTMLSelectElement} select
 * @param {string} nothing label of the option without a model
 */
export async function offerFilters(select, nothing) {
  if (select.options.length > 1) return;
  const found = (await models()).filter(({ kind }) => kind !== "lm");
  fillSelect(select, [["", nothing], ...found.map(({ name }) => /** @type {[string, string]} */ ([name, name]))]);
}

/** @returns {Promise<Model | undefined>} */
export const languageModel = async () => (await models()).find(({ kind }) => kind === "lm");
