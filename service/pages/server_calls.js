/** Everything that the page asks the server for. Addresses are relative, so that they hold behind a proxy's prefix. */

import { askForKey, keyHeader, keyProtocols } from "./key.js";

/**
 * The answer to a request; where a key is wanted it is asked for, and the request made again. What is refused is an
 * error in the server's own words.
 * @param {string} path without a leading slash
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 */
async function answer(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers, ...keyHeader() };
    const response = await fetch(new URL(path, document.baseURI), { ...options, headers });
    if (response.ok) return response;
    if (response.status === 401 && (await askForKey())) continue;
    throw new Error(await reason(response));
  }
}

/** @param {Response} response */
async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}, and not in its own words: is a proxy in between?`;
  }
}

/** @param {string} path @returns {Promise<any>} */
export const get = async path => (await answer(path)).json();

/** @param {string} path @returns {Promise<string>} */
export const getText = async path => (await answer(path)).text();

/** @param {string} path @param {object} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function post(path, body, signal) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  return (await answer(path, options)).json();
}

/**
 * A request as it stands, whatever the answer.
 * @param {string} method @param {string} path @param {string} [body] of JSON
 */
export const send = (method, path, body) =>
  fetch(new URL(path, document.baseURI), {
    method,
    body,
    headers: { ...keyHeader(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
  });

/**
 * The series in a file, as the server's own loader reads it.
 * @param {string} path with how to read it
 * @param {Blob} file
 * @returns {Promise<any>}
 */
export async function readFile(path, file) {
  const options = { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file };
  return (await answer(path, options)).json();
}

/**
 * The documents of a streamed answer, as they come.
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 */
export async function* postStream(path, body, signal) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  const response = await answer(path, options);
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (!line) continue;
      const document = JSON.parse(line.replace(/^data: /, ""));
      if (document.error) throw new Error(document.error.message);
      yield document;
    }
  }
}

/** @param {string} path @returns {WebSocket} */
export function openSocket(path) {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  return new WebSocket(url, keyProtocols());
}
