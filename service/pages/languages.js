/** Convert requests to programs for curl, Python and JavaScript. */

import { key } from "./key.js";

/**
 * @typedef {object} Call
 * @property {string} path without a leading slash
 * @property {object} [body] JSON body
 * @property {string} [file] name of the file that is sent as the body
 * @property {boolean} [isPacked] whether the file is compressed with gzip
 * @property {any[]} [frames] the first frame and the frames of the first measurements that were sent over a WebSocket
 * @property {number} [measured] number of measurements that were sent
 * @property {boolean} [isRead] whether this is a GET request whose response is text
 * @property {boolean} [isOfStream] whether this request replaces frames that were sent over a WebSocket
 */

/** Maximum number of characters of a body in a program. Longer bodies are stored in a file. */
const LONGEST = 3000;
const BODY_FILE = "request.json";

/** @type {Record<string, (call: Call, url: string) => string>} */
const CALLS = { curl, Python: python, JavaScript: javascript };
export const LANGUAGES = Object.keys(CALLS);

/**
 * Converts several calls to one program with one block of imports.
 * @param {string} language one of LANGUAGES
 * @param {[Call, string][]} calls each call with its address
 */
export function program(language, calls) {
  const parts = calls.map(([call, url]) => CALLS[language](call, url));
  if (language === "curl") return parts.join("\n\n");
  const isImport = (/** @type {string} */ line) => /^(import|from) /.test(line);
  const imports = new Set(parts.flatMap(part => part.split("\n").filter(isImport)));
  const bodies = parts.map(part => {
    const body = part.split("\n").filter(line => !isImport(line)).join("\n").trim();
    return language === "JavaScript" && parts.length > 1 ? `{\n${body.replace(/^/gm, "  ")}\n}` : body;
  });
  return [...(imports.size ? [[...imports].sort(plainFirst).join("\n")] : []), ...bodies].join("\n\n");
}

/** Order of imports: `import` before `from`, as is usual in Python. @param {string} a @param {string} b */
const plainFirst = (a, b) => Number(a.startsWith("from ")) - Number(b.startsWith("from ")) || (a < b ? -1 : 1);

/** @param {Call} call */
export const bodyOf = call => JSON.stringify(call.body);
/** @param {Call} call */
export const isLong = call => call.body !== undefined && bodyOf(call).length > LONGEST;
/** @param {Call} call */
const isText = call => Boolean(call.isRead || /** @type {any} */ (call.body)?.stream);
/** The name of the file that contains the body, or null if there is none. @param {Call} call */
const fileOf = call => call.file ?? (isLong(call) ? BODY_FILE : null);
/** @param {Call} call */
const mediaOf = call => `application/${call.file ? "octet-stream" : "json"}`;
/** @param {string} value */
const quoted = value => `'${value.replaceAll("'", "'\\''")}'`;
/** @param {string} url */
const socketOf = url => JSON.stringify(url.replace(/^http/, "ws"));

/**
 * @param {Call} call
 * @param {string} url
 * @returns {string}
 */
function curl(call, url) {
  const file = fileOf(call);
  const parts = [`${call.isPacked ? `gzip -c ${quoted(file ?? "")} | ` : ""}curl -s ${quoted(url)}`];
  if (key()) parts.push('-H "Authorization: Bearer $RFA_API_KEY"');
  if (file || call.body) {
    parts.push(
      `-H 'Content-Type: ${mediaOf(call)}'`,
      `--data-binary ${call.isPacked ? "@-" : file ? `@${quoted(file)}` : quoted(bodyOf(call))}`,
    );
  }
  const note = call.isOfStream ? ["# curl cannot use a WebSocket. This request contains the same observations."] : [];
  return [...note, ...leftOut(call, "#"), parts.join(" \\\n  ")].join("\n");
}

/**
 * The call for a language. For curl, the frames of a WebSocket become one request.
 * @param {string} language one of LANGUAGES
 * @param {Call} call
 * @returns {Call}
 */
export function madeBy(language, call) {
  if (language !== "curl" || !call.frames) return call;
  const [{ size, return_state, ...options }, ...rest] = call.frames;
  const body = { ...options, times: rest.map(({ t }) => t), observations: rest.map(({ y }) => y) };
  return { ...call, path: "filter", body, isOfStream: true };
}

/**
 * A comment if the program does not contain all measurements.
 * @param {Call} call @param {string} sign start of a comment
 */
function leftOut({ frames = [null], measured = 0 }, sign) {
  const kept = frames.length - 1;
  return measured > kept ? [`${sign} The first ${kept} of the ${measured} measurements so far.`] : [];
}

/**
 * A document as a Python literal.
 * @param {any} value
 * @returns {string}
 */
function inPython(value) {
  if (Array.isArray(value)) return `[${value.map(inPython).join(", ")}]`;
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}: ${inPython(member)}`).join(", ")}}`;
}

/**
 * @param {Call} call
 * @param {string} url
 */
function python(call, url) {
  if (call.frames) return pythonStream(call, url);
  const file = fileOf(call);
  const headers = call.isRead ? [] : [`"Content-Type": "${mediaOf(call)}"`];
  if (key()) headers.push('"Authorization": "Bearer " + os.environ["RFA_API_KEY"]');
  const content = `open(${JSON.stringify(file)}, "rb").read()`;
  const given = call.isPacked ? `gzip.compress(${content})` : content;
  const body = file ? given : `json.dumps(${inPython(call.body)}).encode()`;
  return [
    ...(call.isPacked ? ["import gzip"] : []),
    ...(call.isRead ? [] : ["import json"]),
    ...(key() ? ["import os"] : []),
    "from urllib.request import Request, urlopen",
    "",
    ...(call.isRead ? [] : [`body = ${body}`]),
    `request = Request(${JSON.stringify(url)}, ${call.isRead ? "headers=" : "body, "}{${headers.join(", ")}})`,
    "with urlopen(request) as reply:",
    `    print(${isText(call) ? "reply.read().decode()" : "json.load(reply)"})`,
  ].join("\n");
}

/**
 * @param {Call} call
 * @param {string} url
 */
function pythonStream(call, url) {
  const [first, ...rest] = call.frames ?? [];
  const secret = [
    'key = base64.urlsafe_b64encode(os.environ["RFA_API_KEY"].encode()).decode().rstrip("=")',
    'protocols = ["rfa.v1", f"rfa.key.{key}"]',
  ];
  return [
    ...(key() ? ["import base64"] : []),
    "import json",
    ...(key() ? ["import os"] : []),
    "from websockets.sync.client import connect",
    "",
    ...(key() ? secret : []),
    ...leftOut(call, "#"),
    `with connect(${socketOf(url)}${key() ? ", subprotocols=protocols" : ""}) as stream:`,
    `    stream.send(json.dumps(${inPython(first)}))`,
    "    print(json.loads(stream.recv()))",
    `    for frame in ${inPython(rest)}:`,
    "        stream.send(json.dumps(frame))",
    "        print(json.loads(stream.recv()))",
  ].join("\n");
}

/**
 * @param {Call} call
 * @param {string} url
 */
function javascript(call, url) {
  if (call.frames) return javascriptStream(call, url);
  const file = fileOf(call);
  const headers = call.isRead ? [] : [`"Content-Type": "${mediaOf(call)}"`];
  if (key()) headers.push("Authorization: `Bearer ${process.env.RFA_API_KEY}`");
  const content = `await readFile(${JSON.stringify(file)})`;
  const body = file ? (call.isPacked ? `gzipSync(${content})` : content) : `JSON.stringify(${bodyOf(call)})`;
  return [
    ...(file ? ['import { readFile } from "node:fs/promises";'] : []),
    ...(call.isPacked ? ['import { gzipSync } from "node:zlib";'] : []),
    ...(file ? [""] : []),
    `const reply = await fetch(${JSON.stringify(url)}, {`,
    ...(headers.length ? [`  headers: { ${headers.join(", ")} },`] : []),
    ...(call.isRead ? [] : ['  method: "POST",', `  body: ${body},`]),
    "});",
    `console.log(await reply.${isText(call) ? "text" : "json"}());`,
  ].join("\n");
}

/**
 * @param {Call} call
 * @param {string} url
 */
function javascriptStream(call, url) {
  const secret = [
    'const key = Buffer.from(process.env.RFA_API_KEY).toString("base64url");',
    'const protocols = ["rfa.v1", `rfa.key.${key}`];',
  ];
  return [
    "// In browsers, and Node 22 or later.",
    ...(key() ? secret : []),
    `const stream = new WebSocket(${socketOf(url)}${key() ? ", protocols" : ""});`,
    ...leftOut(call, "//"),
    `const frames = ${JSON.stringify(call.frames)};`,
    "let unanswered = frames.length;",
    "stream.onopen = () => frames.forEach(frame => stream.send(JSON.stringify(frame)));",
    "stream.onmessage = event => {",
    "  console.log(event.data);",
    "  if (--unanswered === 0) stream.close();",
    "};",
  ].join("\n");
}
