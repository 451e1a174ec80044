/** All requests of the page. Addresses are relative, so that the page works behind a proxy that adds a prefix. */

import { askForKey, keyHeader, keyProtocols } from "./key.js";

export const UNAUTHORIZED = 401;

/** Error for a request that the server or a proxy has rejected. */
export class Refused extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * Sends a request, and returns the response. If the server requires a key, this asks for it and repeats the request.
 * Errors have the message of the server.
 * @param {string} path without a leading slash
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 */
async function answer(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers, ...keyHeader() };
    const response = await fetch(new URL(path, document.baseURI), { ...options, headers }).catch(unreached);
    if (response.ok) return response;
    if (response.status === UNAUTHORIZED && (await askForKey())) continue;
    throw new Refused(await reason(response), response.status);
  }
}

/** @param {Response} response */
async function reason(response) {
  const told = await response.json().then(
    document => document?.error?.message,
    () => null,
  );
  return typeof told === "string" && told ? told : notItsOwn(response);
}

/** @param {Response} response */
const notItsOwn = ({ status }) =>
  `The response with status ${status} is not from rfa-server. There may be a proxy between this page and the server.`;

/**
 * Replaces the message of the browser for a connection that failed.
 * @param {Error} error
 * @returns {never}
 */
function unreached(error) {
  if (error.name !== "TypeError") throw error;
  throw new Error("The server cannot be reached, or the connection was lost.");
}

/** The document of a response. @param {Response} response @returns {Promise<any>} */
const documentOf = response =>
  response.json().catch(error => {
    if (error.name === "SyntaxError") throw new Error(notItsOwn(response));
    return unreached(error);
  });

/** @param {string} path @returns {Promise<any>} */
export const get = async path => documentOf(await answer(path));

/** @param {string} path @returns {Promise<string>} */
export const getText = async path => (await answer(path)).text().catch(unreached);

/** @param {string} path @param {object} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function post(path, body, signal) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  return documentOf(await answer(path, options));
}

/**
 * Sends a request, and returns the response with any status.
 * @param {string} method @param {string} path @param {string} [body] JSON body
 */
export const send = (method, path, body) =>
  fetch(new URL(path, document.baseURI), {
    method,
    body,
    headers: { ...keyHeader(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
  });

/**
 * Sends a file to the server, and returns the series in it.
 * @param {string} path path with options
 * @param {Blob} content content of the file, which may be compressed
 * @returns {Promise<any>}
 */
export async function readFile(path, content) {
  const options = { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: content };
  return documentOf(await answer(path, options));
}

/**
 * The documents of a streamed response.
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
    const { value, done } = await reader.read().catch(unreached);
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (!line) continue;
      const document = parsed(line.replace(/^data: /, ""), response);
      if (document.error) throw new Error(document.error.message);
      yield document;
    }
  }
}

/** @param {string} text @param {Response} response that it is of @returns {any} */
function parsed(text, response) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(notItsOwn(response));
  }
}

/** @param {string} path @returns {WebSocket} */
export function openSocket(path) {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  return new WebSocket(url, keyProtocols());
}
