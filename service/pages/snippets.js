/** What the page just did, as a program does it: for curl, Python and JavaScript. */

import { byId, make } from "./dom.js";
import { key } from "./key.js";

/**
 * @typedef {object} Call
 * @property {string} path without a leading slash
 * @property {object} [body] of JSON
 * @property {string} [file] the name of a file that is sent as it is
 * @property {object[]} [frames] that were sent over a WebSocket
 */

/** Longer bodies are kept in a file of their own. */
const LONGEST = 3000;
const BODY_FILE = "request.json";

/** @type {Record<string, (call: Call, url: string) => string>} */
const LANGUAGES = { curl, Python: python, JavaScript: javascript };

/** @param {Call} call */
const text = call => JSON.stringify(call.body);
/** @param {Call} call */
const isLong = call => call.body !== undefined && text(call).length > LONGEST;
/** @param {string} value */
const quoted = value => `'${value.replaceAll("'", "'\\''")}'`;

/** @param {Call} call @param {string} url */
function curl(call, url) {
  const lines = [`curl -s ${quoted(url)}`];
  if (key()) lines.push(`-H "Authorization: Bearer $RFA_API_KEY"`);
  if (call.frames) return `# curl speaks no WebSocket: the same observations as one request\n${curl(asRequest(call), url.replace("/stream", ""))}`;
  if (call.file) lines.push(`--data-binary @${quoted(call.file)}`, `-H 'Content-Type: application/octet-stream'`);
  if (call.body) lines.push("-H 'Content-Type: application/json'", isLong(call) ? `-d @${BODY_FILE}` : `-d ${quoted(text(call))}`);
  return lines.join(" \\\n  ");
}

/** @param {Call} call @returns {Call} */
function asRequest(call) {
  const [first, ...rest] = /** @type {any[]} */ (call.frames);
  const observed = rest.filter(frame => "y" in frame);
  const { size, return_state, state, ...options } = first;
  return { path: "filter", body: { ...options, times: observed.map(frame => frame.t), observations: observed.map(frame => frame.y) } };
}

/**
 * A document as Python writes it.
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

/** @param {Call} call @param {string} url */
function python(call, url) {
  if (call.frames) return pythonStream(call, url.replace(/^http/, "ws"));
  const headers = [call.file ? '"Content-Type": "application/octet-stream"' : '"Content-Type": "application/json"'];
  if (key()) headers.push('"Authorization": f"Bearer {os.environ[\'RFA_API_KEY\']}"');
  const body = call.file ? `open(${JSON.stringify(call.file)}, "rb").read()`
    : isLong(call) ? `open("${BODY_FILE}", "rb").read()` : `json.dumps(${inPython(call.body)}).encode()`;
  return `import json\n${key() ? "import os\n" : ""}from urllib.request import Request, urlopen\n\n` +
    `body = ${body}\nrequest = Request(${JSON.stringify(url)}, body, {${headers.join(", ")}})\n` +
    `with urlopen(request) as reply:\n    print(${isStream(call) ? "reply.read().decode()" : "json.load(reply)"})`;
}

/** @param {Call} call */
const isStream = call => Boolean(/** @type {any} */ (call.body)?.stream);

/** @param {Call} call @param {string} url */
function pythonStream(call, url) {
  const [first, ...rest] = /** @type {any[]} */ (call.frames);
  const protocols = key() ? ", subprotocols=protocols" : "";
  const secret = key() ? 'import base64\nimport os\n\nkey = base64.urlsafe_b64encode(os.environ["RFA_API_KEY"].encode()).decode().rstrip("=")\n' +
    'protocols = ["rfa.v1", f"rfa.key.{key}"]\n' : "";
  return `import json\nfrom websockets.sync.client import connect\n${secret}\nwith connect(${JSON.stringify(url)}${protocols}) as stream:\n` +
    `    stream.send(json.dumps(${inPython(first)}))\n    print(json.loads(stream.recv()))\n` +
    `    for frame in ${inPython(rest)}:\n        stream.send(json.dumps(frame))\n        print(json.loads(stream.recv()))`;
}

/** @param {Call} call @param {string} url */
function javascript(call, url) {
  if (call.frames) {
    return `const stream = new WebSocket(${JSON.stringify(url.replace(/^http/, "ws"))});\nconst frames = ${JSON.stringify(call.frames)};\n` +
      `stream.onopen = () => frames.forEach(frame => stream.send(JSON.stringify(frame)));\nstream.onmessage = event => console.log(JSON.parse(event.data));`;
  }
  const headers = [`"Content-Type": "application/${call.file ? "octet-stream" : "json"}"`];
  if (key()) headers.push("Authorization: `Bearer ${process.env.RFA_API_KEY}`");
  const needsFile = call.file || isLong(call);
  const body = needsFile ? `await readFile(${JSON.stringify(call.file ?? BODY_FILE)})` : `JSON.stringify(${text(call)})`;
  return `${needsFile ? 'import { readFile } from "node:fs/promises";\n\n' : ""}const reply = await fetch(${JSON.stringify(url)}, {\n` +
    `  method: "POST",\n  headers: { ${headers.join(", ")} },\n  body: ${body},\n});\nconsole.log(await reply.${isStream(call) ? "text" : "json"}());`;
}

/**
 * Buttons that copy what was done last.
 * @param {HTMLElement} host
 * @param {() => Call[]} calls what was done, in order
 */
export function offerCopies(host, calls) {
  const buttons = Object.keys(LANGUAGES).map(language => {
    const button = make("button", { type: "button" }, language);
    button.addEventListener("click", () => open(language, calls()));
    return button;
  });
  host.replaceChildren("Copy what the page just did as", ...buttons);
}

/** @param {string} language @param {Call[]} calls */
function open(language, calls) {
  const parts = calls.map(call => LANGUAGES[language](call, new URL(call.path, document.baseURI).href));
  byId("code").textContent = parts.join("\n\n") || "Nothing was asked for yet.";
  byId("code-title").textContent = `As ${language}`;
  const long = calls.find(isLong);
  byId("code-body").hidden = !long;
  if (long) {
    URL.revokeObjectURL(byId("code-body").href);
    byId("code-body").href = URL.createObjectURL(new Blob([text(long)], { type: "application/json" }));
  }
  byId("code-dialog").showModal();
  copy();
}

/** Browsers let pages copy on this machine and over https; elsewhere it is to be copied by hand. */
async function copy() {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("code-said").textContent = "Copied.";
  } catch {
    getSelection()?.selectAllChildren(byId("code"));
    byId("code-said").textContent = "Selected: copy it with your keyboard.";
  }
}

byId("code-copy").addEventListener("click", copy);
byId("code-close").addEventListener("click", () => byId("code-dialog").close());
