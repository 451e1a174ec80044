/** What a browser keeps for the page, where it does: people forbid it, and it may be full. */

/**
 * The result of `use` with a storage; undefined if the browser refuses.
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
