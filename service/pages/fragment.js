/**
 * The current view in the fragment of the address. The address can be shared. The fragment is not sent to the server.
 *
 *     #series?demo=room&model=auto&levels=50,90
 *
 * It does not contain the API key or a file.
 */

import { byId } from "./dom.js";

/** @returns {{tab: string, fields: URLSearchParams}} */
export function shown() {
  const [tab, query] = location.hash.slice(1).split("?");
  return { tab, fields: new URLSearchParams(query) };
}

/**
 * Stores the current view in the address, without a new entry in the history of the browser. Hidden tabs are ignored.
 * @param {string} tab
 * @param {URLSearchParams} [fields]
 */
export function show(tab, fields) {
  if (byId(tab).hidden) return;
  const query = fields?.toString();
  history.replaceState(null, "", `#${tab}${query ? `?${query}` : ""}`);
}

/**
 * The fields of a form that differ from their defaults, without files and fields with `data-private`.
 * @param {HTMLFormElement} form
 */
export function fieldsOf(form) {
  const fields = new URLSearchParams();
  for (const element of /** @type {any} */ (form.elements)) {
    if (!element.name || element.type === "file" || element.dataset.private !== undefined) continue;
    if (element.type === "checkbox") {
      if (element.checked !== element.defaultChecked) fields.set(element.name, element.checked ? "1" : "0");
    } else if (element.value !== (element.dataset.usual ?? element.defaultValue ?? "")) {
      fields.set(element.name, element.value);
    }
  }
  return fields;
}

/**
 * Fills a form. If a select does not have an option yet, the value is stored for `fillSelect`.
 * @param {HTMLFormElement} form
 * @param {URLSearchParams} fields
 */
export function fillForm(form, fields) {
  for (const element of /** @type {any} */ (form.elements)) {
    const value = fields.get(element.name);
    if (value === null || element.type === "file") continue;
    if (element.tagName === "SELECT") choose(element, value);
    else if (element.type === "checkbox") element.checked = value === "1";
    else element.value = value;
  }
}

/**
 * Selects an option, if it exists; a link may contain any value.
 * @param {HTMLSelectElement} select @param {string} value
 */
function choose(select, value) {
  select.dataset.wanted = value;
  if ([...select.options].some(option => option.value === value)) select.value = value;
}
