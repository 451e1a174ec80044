/** What is shown, in the fragment of the address: it can be shared, and never leaves the browser with a request.
 *
 *     #series?demo=room&model=auto&levels=50,90
 *
 * Keys are never in it, and neither is a file.
 */

import { byId } from "./dom.js";

/** @returns {{tab: string, fields: URLSearchParams}} */
export function shown() {
  const [tab, query] = location.hash.slice(1).split("?");
  return { tab, fields: new URLSearchParams(query) };
}

/**
 * Says what is shown, without a new step in the browser's history; a tab that is no longer looked at says nothing.
 * @param {string} tab
 * @param {URLSearchParams} [fields]
 */
export function show(tab, fields) {
  if (byId(tab).hidden) return;
  const query = fields?.toString();
  history.replaceState(null, "", `#${tab}${query ? `?${query}` : ""}`);
}

/**
 * The fields of a form that are not as they came, but files and what `data-private` marks.
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
 * Fills a form from fields; a select that has no such option yet keeps it for `fillSelect`.
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

/** Anybody can write a link: what is no option changes nothing. @param {HTMLSelectElement} select @param {string} value */
function choose(select, value) {
  select.dataset.wanted = value;
  if ([...select.options].some(option => option.value === value)) select.value = value;
}
