/** What a browser keeps for the page, where it does: people forbid it, and it may be full. */

/**
 * What `use` finds or does in a storage; undefined where the browser refuses.
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
