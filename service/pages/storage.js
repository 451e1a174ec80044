/** Access to the storage of the browser, which users can disable and which can be full. */

/**
 * The result of `use`, which accesses the storage. It is undefined if the browser does not allow the access.
 * @template T
 * @param {() => T} use
 * @returns {T | undefined}
 */
export function storage(use) {
  try {
    return use();
  } catch (error) {
    if (error instanceof DOMException) return undefined;
    throw error;
  }
}
