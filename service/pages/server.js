/** The tab with the load, latency, alarms and models of the server. */

import { byId, make, table } from "./dom.js";
import { histogram, quantile, samples, total } from "./exposition.js";
import { count, number, percent } from "./format.js";
import { info } from "./models.js";
import { Refused, UNAUTHORIZED, get, getText } from "./server_calls.js";
import { offerCopies } from "./snippets.js";
import { meaning } from "./words.js";

const TAB = "server";
const EVERY_MS = 2000;
const MIB = 2 ** 20;
/** @type {Record<string, string>} */
const LATENCIES = {
  rfa_e2e_request_latency_seconds: "Complete replies",
  rfa_time_to_first_token_seconds: "First token of a text",
  rfa_inter_token_latency_seconds: "Time between tokens",
  rfa_filter_step_seconds: "Step of a live stream",
};

/** Number of times the tab was opened. */
let watching = 0;

export function startServer() {
  byId("server-words").append(meaning("digest", "ece", "coverage", "latency", "alarm"));
  offerCopies(byId("server-copy"), () => [
    { path: "info", isRead: true },
    { path: "metrics", isRead: true },
  ]);
  document.addEventListener("tab", event => {
    watching += 1;
    if (/** @type {CustomEvent} */ (event).detail === TAB) watch(watching);
  });
}

/** Polls the server, with a pause after each reply, while the tab is open. @param {number} mine */
async function watch(mine) {
  while (mine === watching && (await poll())) await new Promise(done => setTimeout(done, EVERY_MS));
}

/** @returns {Promise<boolean>} whether to poll again; false if the server requires a key */
async function poll() {
  try {
    const [text, ready] = await Promise.all([
      getText("metrics"),
      get("ready").then(
        () => true,
        () => false,
      ),
    ]);
    const all = samples(text);
    showNow(all, ready);
    showLatency(all);
    showAlarms(all);
    if (!byId("server-models").children.length) showModels(await info());
    byId("server-error").textContent = "";
  } catch (error) {
    byId("server-error").textContent = /** @type {Error} */ (error).message;
    return !(error instanceof Refused) || error.status !== UNAUTHORIZED;
  }
  return true;
}

/** @param {string} title @param {string} figure */
const card = (title, figure) =>
  make("div", { class: "card" }, make("h3", {}, title), make("div", { class: "figure" }, figure));

/** @param {import("./exposition.js").Sample[]} all @param {boolean} ready */
function showNow(all, ready) {
  byId("server-now").replaceChildren(
    card("State", ready ? "ready" : "not ready"),
    card("Live streams", count(total(all, "rfa_num_streams"))),
    card("Running requests", count(total(all, "rfa_num_requests_running"))),
    card("Waiting requests", count(total(all, "rfa_num_requests_waiting"))),
    card("Requests so far", count(total(all, "rfa_http_requests_total"))),
    card("Observations so far", count(total(all, "rfa_filter_observations_total"))),
    card("Tokens so far", count(total(all, "rfa_generation_tokens_total"))),
    card("Memory", `${count(total(all, "rfa_process_resident_memory_bytes") / MIB)} MiB`),
  );
}

/** @param {number} seconds */
const duration = seconds => (seconds < 1 ? `${number(1000 * seconds)} ms` : `${number(seconds)} s`);

/** @param {string} id @param {boolean} open @param {HTMLElement} bins */
const histogramOf = (id, open, bins) => make("details", { id, open }, make("summary", {}, "Histogram"), bins);

/** @param {import("./exposition.js").Sample[]} all */
function showLatency(all) {
  const open = new Set([...byId("server-latency").querySelectorAll("details[open]")].map(({ id }) => id));
  const focused = document.activeElement?.closest("#server-latency details")?.id;
  byId("server-latency").replaceChildren(
    ...Object.entries(LATENCIES).map(([name, title]) => {
      const bins = histogram(all, name);
      const sum = bins.reduce((so_far, bin) => so_far + bin.count, 0);
      const most = Math.max(...bins.map(bin => bin.count), 1);
      const rows = bins
        .filter(bin => bin.count)
        .map(bin => {
          const bar = make("span", { class: "bar" });
          bar.style.width = `${(8 * bin.count) / most}em`;
          return [Number.isFinite(bin.upTo) ? `up to ${duration(bin.upTo)}` : "longer", count(bin.count), bar];
        });
      const summary = sum
        ? `Half within ${duration(quantile(bins, 0.5))}, 99 of 100 within ${duration(quantile(bins, 0.99))}.`
        : "None so far.";
      return make(
        "div",
        { class: "card" },
        make("h3", {}, title),
        make("p", {}, summary),
        ...(sum ? [histogramOf(name, open.has(name), table(["", "#count", ""], rows))] : []),
      );
    }),
  );
  // Restore the focus.
  if (focused) /** @type {HTMLElement | null} */ (document.querySelector(`#${focused} summary`))?.focus();
}

/** @param {import("./exposition.js").Sample[]} all */
function showAlarms(all) {
  const models = [
    ...new Set(
      all.filter(({ name }) => name === "rfa_filter_alarm_observations_total").map(({ labels }) => labels.model_name),
    ),
  ];
  const rows = models.map(model => {
    const of = (/** @type {string} */ name) => total(all, name, { model_name: model });
    return [
      model,
      count(of("rfa_filter_alarm_observations_total")),
      count(of("rfa_filter_alarms_total")),
      number(of("rfa_filter_alarms_expected_total")),
      count(of("rfa_filter_warnings_total")),
    ];
  });
  byId("server-alarms").replaceChildren(
    table(["model", "#observations", "#alarms", "#expected", "#warnings"], rows),
  );
}

/** @param {any} found of /info */
function showModels({ models, limits, version, bundle_version, device }) {
  byId("server-models").replaceChildren(
    ...models.map(modelCard),
    make(
      "div",
      { class: "card" },
      make("h3", {}, "This server"),
      make("p", {}, `rfa-server ${version} on ${device}; bundles ${bundle_version}.`),
    ),
  );
  byId("server-limits").replaceChildren(
    table(
      ["", "#at most"],
      Object.entries(limits).map(([name, value]) => [make("span", { class: "code" }, name), count(Number(value))]),
    ),
  );
}

/** @param {import("./models.js").Model} model */
function modelCard(model) {
  const { ece_top, observations, streams, levels, validation } = model.calibration;
  const facts = [
    ...Object.entries(ece_top ?? {}).map(
      ([mode, error]) => `Calibration error ${percent(Number(error), 1)} (${mode}).`,
    ),
    ...(observations ? [`Calibrated on ${count(observations)} observations of ${count(streams)} streams.`] : []),
    ...(validation?.recurrent
      ? [`Its 90 % intervals contained ${percent(validation.recurrent.near_inside90, 1)} of held-out data.`]
      : []),
    ...(levels ? [`Intervals: ${levels.map((/** @type {number} */ level) => percent(level)).join(", ")}.`] : []),
  ];
  const kinds = /** @type {Record<string, string>} */ ({
    lm: "generates text",
    filter: "filters",
    series: "filters any columns",
  });
  return make(
    "div",
    { class: "card" },
    make("h3", {}, model.name),
    make("p", {}, `${kinds[model.kind]}, by ${model.modes.join(" or ")}, ${model.runtime}.`),
    ...facts.map(sentence => make("p", {}, sentence)),
    make(
      "details",
      {},
      make("summary", {}, "Origin"),
      make("p", { class: "code" }, `digest ${model.digest}`),
      make("p", {}, `${count(model.golden_values)} golden outputs were reproduced when it was loaded.`),
      make(
        "pre",
        { tabindex: 0, role: "region", "aria-label": `Figures of ${model.name}` },
        JSON.stringify({ metrics: model.metrics, calibration: model.calibration }, null, 1),
      ),
    ),
  );
}
