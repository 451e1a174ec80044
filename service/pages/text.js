/** The tab with generated texts. It shows tokens with their confidence and alternatives. */

import { byId, fillSelect, make, table } from "./dom.js";
import { count, percent } from "./format.js";
import { fieldsOf, fillForm, show } from "./fragment.js";
import { languageModel } from "./models.js";
import { post, postStream } from "./server_calls.js";
import { offerCopies } from "./snippets.js";
import { Tokens } from "./tokens.js";
import { meaning } from "./words.js";

const TAB = "text";
const BOTH = "both";
const ALTERNATIVES = 5;
const LARGEST_SEED = 2 ** 31;

const form = /** @type {HTMLFormElement} */ (byId("text-form"));
/** @type {import("./languages.js").Call[]} */
let calls = [];
let asking = new AbortController();

/** @param {URLSearchParams} fields of the address */
export async function startText(fields) {
  fillForm(form, fields);
  byId("text-words").append(meaning("confidence", "logprob", "decoding", "latent"));
  offerCopies(byId("text-copy"), () => calls);
  listen();
  await offerDecoders().catch(fail);
  byId("text-go").disabled = false;
}

/** Fills the select with the decoding modes, if it is empty. */
async function offerDecoders() {
  if (byId("text-decode").options.length) return;
  const model = await languageModel();
  if (!model) throw new Error("This server has no language model.");
  const modes = model.modes.toReversed();
  fillSelect(byId("text-decode"), [
    ...modes.map(mode => /** @type {[string, string]} */ ([mode, mode])),
    ...(modes.length > 1 ? [/** @type {[string, string]} */ ([BOTH, `${modes.join(" and ")}, side by side`])] : []),
  ]);
}

function listen() {
  form.addEventListener("submit", event => {
    event.preventDefault();
    write();
  });
  form.addEventListener("input", () => show(TAB, fieldsOf(form)));
  byId("text-stop").addEventListener("click", () => asking.abort());
  byId("text-again").addEventListener("click", () => {
    byId("text-seed").value = String(Math.floor(Math.random() * LARGEST_SEED));
    show(TAB, fieldsOf(form));
    write();
  });
}

/** @param {unknown} error */
function fail(error) {
  byId("text-error").textContent = /** @type {Error} */ (error).message;
}

/** @param {string} decode */
function request(decode) {
  const fields = new FormData(form);
  const seed = fields.get("seed");
  return {
    inputs: fields.get("prompt"),
    parameters: {
      max_new_tokens: Number(fields.get("tokens")),
      temperature: Number(fields.get("temperature")),
      top_p: Number(fields.get("top_p")),
      ...(seed === "" ? {} : { seed: Number(seed) }),
      top_n_tokens: ALTERNATIVES,
      decode,
    },
    stream: true,
  };
}

/** Generates a text in each selected mode. */
async function write() {
  asking.abort();
  const mine = new AbortController();
  asking = mine;
  const { signal } = mine;
  try {
    await offerDecoders();
  } catch (error) {
    return fail(error);
  }
  if (signal.aborted) return;
  const chosen = byId("text-decode").value;
  const latent = Number(new FormData(form).get("latent"));
  const modes =
    chosen === BOTH
      ? [...byId("text-decode").options].map(({ value }) => value).filter(value => value !== BOTH)
      : [chosen];
  calls = modes.map(mode => ({ path: "generate", body: request(mode) }));
  byId("text-error").textContent = byId("text-told").textContent = "";
  byId("text-outputs").replaceChildren();
  byId("text-token").hidden = true;
  byId("text-stop").disabled = false;
  const outputs = modes.map(
    mode => new Tokens(byId("text-outputs"), mode, String(new FormData(form).get("prompt")), showToken),
  );
  try {
    await Promise.all(outputs.map((tokens, k) => follow(tokens, calls[k], signal)));
    if (latent && !signal.aborted) await others(modes[0], latent, signal);
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
  const isStopped = signal.aborted;
  mine.abort(); // if one of two requests has failed, the other one is cancelled
  if (mine !== asking) return;
  byId("text-stop").disabled = true;
  showSummary(outputs, isStopped);
}

/** @param {Tokens} tokens @param {import("./languages.js").Call} call @param {AbortSignal} signal */
async function follow(tokens, call, signal) {
  for await (const event of postStream(call.path, /** @type {object} */ (call.body), signal)) {
    if (event.token) tokens.add(event.token, event.top_tokens ?? []);
    if (event.details) tokens.details = event.details;
  }
  if (!tokens.details) throw new Error("The reply is incomplete, because the connection to the server was lost.");
}

/** Generates texts with other latent samples. @param {string} mode @param {number} n @param {AbortSignal} signal */
async function others(mode, n, signal) {
  const base = request(mode);
  const body = {
    ...base,
    stream: false,
    parameters: { ...base.parameters, n: n + 1, latent_noise: 1, top_n_tokens: 0 },
  };
  const { continuations } = await post("generate", body, signal);
  calls.push({ path: "generate", body });
  const texts = continuations.slice(1).map((/** @type {any} */ one) => make("li", {}, one.generated_text));
  byId("text-outputs").append(make("div", {}, make("h2", {}, "With other latent samples"), make("ol", {}, ...texts)));
}

/** @param {any} details */
const rate = details => count(details.timings.tokens_per_second);

/** The index of the first token that differs in two texts, or -1. An incomplete text is compared up to its end. */
function firstDifference(/** @type {Tokens[]} */ [first, second]) {
  const [longer, shorter] = first.tokens.length < second.tokens.length ? [second, first] : [first, second];
  const both = shorter.details ? longer.tokens : longer.tokens.slice(0, shorter.tokens.length);
  return both.findIndex(({ id }, k) => id !== shorter.tokens[k]?.id);
}

/** @param {Tokens[]} outputs @param {boolean} isStopped */
function showSummary(outputs, isStopped) {
  const parts = outputs.map(({ title, tokens, details }) =>
    details
      ? `${title}: ${count(tokens.length)} tokens, ${rate(details)} per second, seed ${details.seed}`
      : `${title}: ${isStopped ? "stopped" : "ended"} after ${count(tokens.length)} tokens`,
  );
  if (outputs.length > 1) {
    const different = firstDifference(outputs);
    if (different >= 0) parts.push(`they differ from token ${different + 1} on`);
    else parts.push(outputs.every(({ details }) => details) ? "they are equal" : "they are equal so far");
    if (different >= 0) outputs.forEach(output => output.mark(different));
  }
  byId("text-told").textContent = `${parts.join("; ")}. A stronger colour is a higher confidence.`;
}

/** @param {import("./tokens.js").Token} token */
function showToken({ text, logprob, confidence, top }) {
  const rows = top.map(one => {
    const share = Math.exp(one.logprob);
    const bar = make("span", { class: "bar" });
    bar.style.width = `${8 * share}em`;
    return [make("span", { class: "code" }, JSON.stringify(one.text)), percent(share, 1), bar];
  });
  byId("text-token").replaceChildren(
    make("h2", {}, "Token ", make("span", { class: "code" }, JSON.stringify(text))),
    make(
      "p",
      {},
      `Its calibrated confidence is ${percent(confidence, 1)}. `,
      `The model's probability is ${percent(Math.exp(logprob), 1)}.`,
    ),
    make("p", {}, "Most probable tokens at this position:"),
    table(["token", "#probability", ""], rows),
  );
  byId("text-token").hidden = false;
}
