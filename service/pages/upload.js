/** Prepare uploads, and check the limits of the server. */

import { number } from "./format.js";

/** Unit in bytes to which sizes are rounded up, so that a size above the limit is also shown as above the limit. */
const TENTH = 1e5;
const GZIP = [0x1f, 0x8b];

/** @param {number} bytes */
const megabytes = bytes => `${number(Math.ceil(bytes / TENTH) / 10)} MB`;

/**
 * The content of a file for `POST /read`. It is compressed with gzip if it exceeds the limit.
 * @param {File} file
 * @param {number} most maximum size of a body in bytes
 * @returns {Promise<{content: Blob, isPacked: boolean}>}
 */
export async function contentOf(file, most) {
  try {
    if (file.size <= most) return { content: new Blob([await file.arrayBuffer()]), isPacked: false };
    const content = (await isGzip(file)) ? null : await packed(file, most);
    if (content) return { content, isPacked: true };
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    throw new Error(
      `${file.name} cannot be read. It is a folder, or it was changed, moved or deleted after it was chosen. ` +
        "Choose the file again.",
    );
  }
  throw new Error(
    `${file.name} is too large. Its size is ${megabytes(file.size)}, and even if it is compressed, it exceeds the limit ` +
      `of ${megabytes(most)}. Use fewer rows or columns, or the command rfa filter.`,
  );
}

/** @param {File} file */
async function isGzip(file) {
  const begin = new Uint8Array(await file.slice(0, GZIP.length).arrayBuffer());
  return GZIP.every((byte, k) => begin[k] === byte);
}

/** The file compressed with gzip, or null if it is too large. @param {File} file @param {number} most bytes */
async function packed(file, most) {
  const reader = file.stream().pipeThrough(new CompressionStream("gzip")).getReader();
  const pieces = [];
  let size = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return new Blob(pieces);
    size += value.length;
    if (size > most) {
      await reader.cancel();
      return null;
    }
    pieces.push(value);
  }
}

/**
 * Throws an error if a body is larger than the server accepts.
 * @param {object} body body of `POST /filter`
 * @param {number} most maximum size in bytes
 */
export function checkSize(body, most) {
  const { size } = new Blob([JSON.stringify(body)]);
  if (size <= most) return;
  throw new Error(
    `The size of the request is ${megabytes(size)}, but this server accepts at most ${megabytes(most)}. Use fewer columns or ` +
      "rows, or numbers with fewer digits. The command rfa filter has no such limit.",
  );
}
