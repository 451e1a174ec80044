/** Uploads within the limits of the server. */

import { number } from "./format.js";

/** Bytes; sizes are rounded up to it, so that a size above the limit is shown as above. */
const TENTH = 1e5;
const GZIP = [0x1f, 0x8b];

/** @param {number} bytes */
const megabytes = bytes => `${number(Math.ceil(bytes / TENTH) / 10)} MB`;

/**
 * The content of a file for `POST /read`, compressed by gzip if it exceeds the limit of a body.
 * @param {File} file
 * @param {number} most bytes of a body
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
      `${file.name} cannot be read: it is a folder, or was changed, moved or deleted since it was chosen. ` +
        "Choose the file again.",
    );
  }
  throw new Error(
    `${file.name} is too large: it has ${megabytes(file.size)}, and even compressed it exceeds the limit of ` +
      `${megabytes(most)}. Use fewer rows or columns, or the command rfa filter.`,
  );
}

/** @param {File} file */
async function isGzip(file) {
  const begin = new Uint8Array(await file.slice(0, GZIP.length).arrayBuffer());
  return GZIP.every((byte, k) => begin[k] === byte);
}

/** A file by gzip; null as soon as it is too large. @param {File} file @param {number} most bytes */
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
 * Refuses a body that the server would refuse.
 * @param {object} body of `POST /filter`
 * @param {number} most bytes of it
 */
export function checkSize(body, most) {
  const { size } = new Blob([JSON.stringify(body)]);
  if (size <= most) return;
  throw new Error(
    `These numbers make a request of ${megabytes(size)}, and this server takes ${megabytes(most)}. Give fewer columns ` +
      "or rows, or numbers of fewer digits. The command rfa filter takes more.",
  );
}
