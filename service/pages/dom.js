/** Elements: found, made, filled. */

/**
 * The element with this id, which must exist.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * A new element.
 * @param {string} name
 * @param {Record<string, string | number | boolean | null>} [attributes] null and false omit one
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children);
  return made;
}

/**
 * A table with a header.
 * @param {string[]} head a name that begins with # is a column of numbers
 * @param {(Node | string)[][]} rows
 */
export function table(head, rows) {
  const isNumber = head.map(name => name.startsWith("#"));
  const kind = (/** @type {number} */ column) => ({ class: isNumber[column] ? "number" : null });
  const heading = (/** @type {string} */ name, /** @type {number} */ column) =>
    name ? make("th", { scope: "col", ...kind(column) }, name.replace("#", "")) : make("td");
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...head.map(heading))),
    make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map((cell, k) => make("td", kind(k), cell))))),
  );
}

/**
 * Sets a select's options; keeps the selection if it still exists.
 * @param {HTMLSelectElement} select
 * @param {[string, string][]} options value and what is shown
 */
export function fillSelect(select, options) {
  const before = select.value || select.dataset.wanted || "";
  select.replaceChildren(...options.map(([value, shown]) => new Option(shown, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}

/**
 * Calls `work` after a pause, with the last arguments.
 * @template {any[]} Given
 * @param {(...given: Given) => void} work
 */
export function afterwards(work, milliseconds = 250) {
  let timer = 0;
  return (/** @type {Given} */ ...given) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => work(...given), milliseconds);
  };
}
