/** Functions that find, create and fill elements. */

/**
 * The element with the given id, which must exist.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Creates an element.
 * @param {string} name
 * @param {Record<string, string | number | boolean | null>} [attributes] attributes that are null or false are omitted
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
 * Creates a table with a header.
 * @param {string[]} head names of the columns; # at the beginning marks a column of numbers
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
 * Sets the options of a select. The selection does not change if it still exists.
 * @param {HTMLSelectElement} select
 * @param {[string, string][]} options value and text of each option
 */
export function fillSelect(select, options) {
  const before = select.value || select.dataset.wanted || "";
  select.replaceChildren(...options.map(([value, shown]) => new Option(shown, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}

/**
 * Wraps a function so that it is called once, with the last arguments, after a pause without calls.
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
