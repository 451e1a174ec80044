/** A page that shows the OpenAPI document: each operation with its body and its responses, and a form to send it. */

import { byId, make } from "./dom.js";
import { askForKey } from "./key.js";
import { startScheme } from "./scheme.js";
import { get, send } from "./server_calls.js";

const BOUNDS = {
  minimum: "≥",
  exclusiveMinimum: ">",
  maximum: "≤",
  exclusiveMaximum: "<",
  maxLength: "length ≤",
};
/** Maximum number of characters of a response that are shown. */
const LONGEST = 20_000;

/** @param {string} reference */
const nameOf = reference => reference.split("/").pop() ?? "";

/** A description as nodes. Text between backticks becomes code. @param {string} text @returns {(Node | string)[]} */
const described = text => text.split("`").map((part, k) => (k % 2 ? make("code", {}, part) : part));

/**
 * A short form of a type, with links to its schemas.
 * @param {any} schema
 * @returns {(Node | string)[]}
 */
function typeOf(schema) {
  const options = schema.anyOf ?? schema.oneOf;
  if (schema.$ref) return [make("a", { href: `#${nameOf(schema.$ref)}` }, nameOf(schema.$ref))];
  if (options) {
    return options.flatMap((/** @type {any} */ option, /** @type {number} */ k) => [
      ...(k ? [" | "] : []),
      ...typeOf(option),
    ]);
  }
  if (schema.type === "array" && schema.items) return ["[", ...typeOf(schema.items), "]"];
  const kind = schema.enum
    ? schema.enum.map((/** @type {unknown} */ value) => JSON.stringify(value)).join(" | ")
    : "const" in schema
      ? JSON.stringify(schema.const)
      : (schema.type ?? "any");
  return [
    kind,
    ...Object.entries(BOUNDS)
      .filter(([name]) => name in schema)
      .map(([name, sign]) => ` ${sign} ${schema[name]}`),
  ];
}

/**
 * A table that can be scrolled by keyboard if it is wider than the screen.
 * @param {string} label
 * @param {HTMLElement[]} rows
 */
function wideTable(label, rows) {
  const attributes = { class: "wide", tabindex: "0", role: "group", "aria-label": label };
  return make("div", attributes, make("table", {}, make("tbody", {}, ...rows)));
}

/**
 * @param {string} name
 * @param {any} schema
 */
function fields(name, schema) {
  const required = schema.required ?? [];
  const rows = Object.entries(schema.properties ?? {}).map(([key, field]) =>
    make(
      "tr",
      {},
      make("td", { class: "code" }, key + (required.includes(key) ? "" : "?")),
      make("td", { class: "code" }, ...typeOf(field), "default" in field ? ` = ${JSON.stringify(field.default)}` : ""),
      make("td", {}, ...described(field.description ?? "")),
    ),
  );
  return wideTable(`Fields of ${name}`, rows);
}

/**
 * @param {string} name
 * @param {any} responses
 */
function answers(name, responses) {
  const rows = Object.entries(responses).map(([status, reply]) => {
    const types = Object.entries(reply.content ?? {}).map(([media, content]) => {
      const item = content.itemSchema ?? {};
      const schema = content.schema ?? (item.properties ? item.properties.data.contentSchema : item);
      return make("div", {}, `${media} ${content.itemSchema ? "each " : ""}`, ...typeOf(schema));
    });
    return make(
      "tr",
      {},
      make("td", { class: "code" }, status),
      make("td", {}, ...described(reply.description)),
      make("td", { class: "code" }, ...types),
    );
  });
  return make(
    "details",
    {},
    make("summary", {}, "Responses"),
    wideTable(`Answers to ${name}`, rows),
  );
}

/**
 * A form for sending an example, which can be edited.
 * @param {string} method
 * @param {string} path
 * @param {any[]} examples
 */
function trial(method, path, examples) {
  const label = `Body for ${method} ${path}`;
  const body = make(
    "textarea",
    { rows: 6, spellcheck: "false", "aria-label": label },
    examples.length ? JSON.stringify(examples[0], null, 1) : "",
  );
  const said = make("pre", { role: "status", tabindex: 0, hidden: true });
  const button = make("button", { type: "button", class: "main" }, "Send");
  button.addEventListener("click", async () => {
    button.disabled = true;
    said.hidden = false;
    said.textContent = "…";
    const response = await send(method, path.slice(1), examples.length ? body.value : undefined);
    const text = await response.text();
    const kind = response.headers.get("content-type") ?? "";
    said.textContent = `${response.status} ${kind}\n\n${text.slice(0, LONGEST)}`;
    button.disabled = false;
  });
  return make(
    "details",
    {},
    make("summary", {}, "Try it"),
    ...(examples.length ? [body] : []),
    make("div", { class: "row" }, button),
    said,
  );
}

/** @param {any} document @param {string} path @param {string} method @param {any} operation */
function operationOf(document, path, method, operation) {
  const body = operation.requestBody?.content["application/json"]?.schema;
  const examples = body ? (document.components.schemas[nameOf(body.$ref ?? "")]?.examples ?? []) : [];
  const isTriable = !path.includes("{") && (examples.length || method === "get");
  return make(
    "section",
    { class: "operation" },
    make("h2", {}, `${method.toUpperCase()} ${path}`),
    make("p", {}, ...described(operation.description ?? operation.summary)),
    ...(body ? [make("p", {}, "Body: ", ...typeOf(body))] : []),
    ...(isTriable ? [trial(method.toUpperCase(), path, examples)] : []),
    answers(`${method.toUpperCase()} ${path}`, operation.responses),
  );
}

async function start() {
  const document = await get("openapi.json");
  byId("key-wanted").hidden = !document.components.securitySchemes;
  byId("paths").append(
    ...Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => operationOf(document, path, method, operation)),
    ),
  );
  byId("schemas").append(
    ...Object.entries(document.components.schemas).map(([name, schema]) =>
      make(
        "section",
        { class: "operation" },
        make("h3", { id: name }, name),
        make("p", {}, ...described(schema.description ?? "")),
        fields(name, schema),
      ),
    ),
  );
}

startScheme();
byId("key-open").addEventListener("click", askForKey);
start();
