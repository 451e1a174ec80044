/** The tab with recorded series. */

import { Charts } from "./charts.js";
import { DEMOS } from "./demos.js";
import { afterwards, byId, fillSelect, make, table } from "./dom.js";
import { count, number, percent, rarity, time } from "./format.js";
import { fieldsOf, fillForm, show } from "./fragment.js";
import { info, offerFilters } from "./models.js";
import { explanation, picture, unusual } from "./picture.js";
import { post, readFile } from "./server_calls.js";
import { offerCopies } from "./snippets.js";
import { checkSize, contentOf } from "./upload.js";
import { meaning } from "./words.js";

/** @typedef {import("./demos.js").Series} Series */

const UNUSUAL = 8;
/** Number of rows that are shown on each side of a selected row. */
const AROUND = 60;
/** Number of sample paths, and the maximum number of their rows, because they are the largest part of a reply. */
const PATHS = 6;
const MOST_SAMPLED = 5000;
const TAB = "series";
/** Fields of the reply of the model `default`, which combines forecasts. */
const MIXED_FIELDS = ["mean", "innovation", "weight", "nis", "anomaly", "alarm", "interval", "weights"];

const form = /** @type {HTMLFormElement} */ (byId("series-form"));
const charts = new Charts(byId("series-charts"), { onPick: row => explain(row) });

/** @type {Series} */
let series = DEMOS.room.make();
/** @type {Record<string, Series>} series of a file */
let found = {};
/** @type {import("./picture.js").Picture} */
let shown;
/** @type {import("./languages.js").Call[]} */
let calls = [];
/** @type {import("./languages.js").Call | null} request with which the file was read */
let read = null;
/** @type {File | null} the file that was chosen last */
let file = null;
/** Whether the file is shown, and not an example. */
let isOwn = false;
/** Counter of files and examples. Results for earlier ones are ignored. */
let reading = 0;
let asking = new AbortController();

/** @param {URLSearchParams} fields of the address */
export async function startSeries(fields) {
  fillSelect(
    byId("series-demo"),
    Object.entries(DEMOS).map(([name, { shown }]) => [name, shown]),
  );
  const isOfFile = fields.get("demo") === ""; // the link does not contain the file
  if (isOfFile) fields.delete("demo");
  fillForm(form, fields);
  byId("series-words").append(
    meaning(
      "measured",
      "estimate",
      "band",
      "forecast",
      "weight",
      "anomaly",
      "alarm",
      "missing",
      "smoothed",
      "samples",
      "passes",
    ),
  );
  offerCopies(byId("series-copy"), () => calls);
  listen();
  takeDemo();
  const early = chosenFile() ?? pastedFile(); // chosen before this script ran
  if (early) return takeFile(early);
  // The row in the link belongs to the file, which cannot be shown, and not to the example.
  const isMeant = !isOfFile && [null, byId("series-demo").value].includes(fields.get("demo"));
  await filter(Number((isMeant && fields.get("row")) || -1));
  if (isOfFile && !file) addTold("The link was created for a file, which it does not contain. This is an example.");
}

/** Adds a sentence to the summary. @param {string} sentence */
const addTold = sentence => byId("series-told").append(` ${sentence}`);

/** The series that is shown, for a live stream that replays it. */
export const shownSeries = () => series;

function listen() {
  const again = afterwards(filter);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("input", event => {
    const { name } = /** @type {HTMLInputElement} */ (event.target);
    if (name === "demo") {
      if (file && !byId("series-demo").value) return takeFile(file);
      takeDemo();
    }
    if (name === "series") series = found[byId("series-name").value];
    if (name === "paste") {
      reading += 1;
      pasted(reading);
    }
    else if (["by", "zone", "every"].includes(name)) reread();
    else if (name !== "file") again();
  });
  byId("series-file").addEventListener("change", () => {
    const given = chosenFile();
    if (given) takeFile(given);
  });
  const drop = byId("series-drop");
  for (const name of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(name, (/** @type {DragEvent} */ event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer?.files[0]) takeFile(event.dataTransfer.files[0]);
    });
  }
  const views = {
    nearer: () => charts.zoom(0.5),
    further: () => charts.zoom(2),
    left: () => charts.pan(-0.5),
    right: () => charts.pan(0.5),
    all: () => charts.all(),
  };
  for (const [name, view] of Object.entries(views)) byId(`series-${name}`).addEventListener("click", view);
}

function takeDemo() {
  const demo = DEMOS[byId("series-demo").value];
  [read, isOwn] = [null, false];
  reading += 1;
  offerSeries({ "": demo.make() });
}

/** The chosen file. The field is cleared, so that the same file can be chosen again. @returns {File | undefined} */
function chosenFile() {
  const given = byId("series-file").files[0];
  byId("series-file").value = "";
  return given;
}

/** @returns {File | null} */
function pastedFile() {
  const text = byId("series-paste").value;
  return text.trim() ? new File([text], "pasted.csv") : null;
}

const pasted = afterwards((/** @type {number} */ mine) => {
  const text = pastedFile();
  if (text && mine === reading) takeFile(text);
}, 600);

const reread = afterwards(() => isOwn && file && takeFile(file), 600);

/** @param {File} given */
async function takeFile(given) {
  [file, isOwn] = [given, true];
  reading += 1;
  const mine = reading;
  byId("series-error").textContent = "";
  byId("series-told").textContent = `Reading ${given.name} …`;
  const fields = new FormData(form);
  const query = new URLSearchParams();
  for (const name of ["by", "zone", "every"]) if (fields.get(name)) query.set(name, String(fields.get(name)));
  const path = `read?${query}`;
  try {
    const { limits } = await info();
    const { content, isPacked } = await contentOf(given, limits.max_body_bytes);
    const { series: all } = await readFile(path, content);
    if (mine !== reading) return;
    offerSeries(all);
    read = { path, file: given.name, isPacked };
    fillSelect(byId("series-demo"), [
      ["", given.name],
      ...Object.entries(DEMOS).map(([name, { shown }]) => /** @type {[string, string]} */ ([name, shown])),
    ]);
    byId("series-demo").value = "";
    await filter();
  } catch (error) {
    if (mine !== reading) return;
    fail(error);
    byId("series-how").open = true;
  }
}

/** @param {Record<string, Series>} all */
function offerSeries(all) {
  found = all;
  const names = Object.keys(all);
  byId("series-which").hidden = names.length < 2;
  fillSelect(
    byId("series-name"),
    names.map(name => [name, name]),
  );
  series = all[byId("series-name").value];
}

/** @param {unknown} error */
function fail(error) {
  if (/** @type {Error} */ (error).name === "AbortError") return;
  byId("series-told").textContent = shown ? "The chart below shows the previous result." : "";
  byId("series-warnings").replaceChildren();
  byId("series-error").textContent = /** @type {Error} */ (error).message;
}

/** The selected levels of the intervals. */
const levels = () =>
  [...form.querySelectorAll("[name^=level-]:checked")].map(box =>
    Number(/** @type {HTMLInputElement} */ (box).name.slice("level-".length)),
  );

/** The last rows of a series. @param {Series} whole @param {number} most number of rows @returns {Series} */
function lastRows(whole, most) {
  const values = Object.fromEntries(Object.entries(whole.values).map(([name, column]) => [name, column.slice(-most)]));
  return { ...whole, times: whole.times.slice(-most), values };
}

/** @param {Series} part */
function request(part) {
  const fields = new FormData(form);
  const alarm = String(fields.get("alarm"));
  const isShare = !alarm.includes("/");
  return {
    model: fields.get("model") || undefined,
    times: part.times,
    values: part.values,
    levels: levels(),
    ahead: part.times.length > 1 ? Number(fields.get("ahead")) : 0,
    alarm: alarm && (isShare || part.is_dated) ? { rate: isShare ? Number(alarm) : alarm } : undefined,
    passes: fields.get("passes") ? Number(fields.get("passes")) : undefined,
    tz: (part.is_dated && fields.get("zone")) || undefined,
    smooth: fields.has("smooth") || undefined,
    fields: (fields.get("model") || "default") === "default" ? MIXED_FIELDS : undefined,
  };
}

/**
 * Filters the series with the options of the form, and shows the result.
 * @param {number} [row] row to explain
 */
async function filter(row = -1) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  byId("series-error").textContent = "";
  byId("series-explained").hidden = true;
  try {
    const { limits } = await info();
    await offerFilters(byId("series-model"), "default");
    if (signal.aborted) return;
    show(TAB, fieldsOf(form));
    const part = lastRows(series, limits.max_observations);
    const body = request(part);
    checkSize(body, limits.max_series_bytes);
    byId("series-told").textContent = "Filtering …";
    const reply = await post("filter", body, signal);
    calls = [...(read ? [read] : []), { path: "filter", body }];
    const next = picture(part, reply, body.levels);
    if (new FormData(form).has("samples")) await addSamples(next, part, body, signal);
    shown = next;
    charts.show(shown);
    showSummary(part, reply);
    if (Number.isInteger(row) && row >= 0 && row < shown.rows) explain(row);
  } catch (error) {
    fail(error);
  }
}

/**
 * Adds sample paths of the last rows. The k-th samples of all steps are one path.
 * @param {import("./picture.js").Picture} next
 * @param {Series} part
 * @param {any} body
 * @param {AbortSignal} signal
 */
async function addSamples(next, part, body, signal) {
  const { times, values } = lastRows(part, MOST_SAMPLED);
  const columns = Object.values(values);
  const rows = times.map((_, i) => columns.map(column => column[i]));
  const { steps } = await post(
    "filter",
    {
      model: body.model,
      passes: body.passes,
      times,
      observations: rows,
      samples: PATHS,
      smooth: true,
      fields: ["samples"],
      seed: 7,
    },
    signal,
  );
  const before = new Array(part.times.length - times.length).fill(null);
  const after = new Array(next.times.length - next.rows).fill(null);
  next.components.forEach((component, k) => {
    component.samples = Array.from({ length: PATHS }, (_, j) => [
      ...before,
      ...steps.map((/** @type {any} */ step) => step.samples[j][k]),
      ...after,
    ]);
  });
}

/** @param {Series} part @param {any} reply */
function showSummary(part, reply) {
  const names = Object.keys(part.values);
  const left = series.times.length - part.times.length;
  const alarms = shown.alarm.reduce((/** @type {number} */ sum, one) => sum + (one ?? 0), 0);
  const { observations, expected } = reply.calibration.alarms ?? { observations: 0, expected: 0 };
  const parts = [
    `${count(shown.rows)} rows of ${names.join(", ")}, filtered by the model ${reply.model}`,
    ...(observations
      ? [`${alarms} ${alarms === 1 ? "alarm" : "alarms"}, ${number(expected)} expected`]
      : []),
    ...(String(new FormData(form).get("alarm")).includes("/") && !part.is_dated
      ? ["no alarms, because a rate per day or week requires dates"]
      : []),
    ...(left
      ? [`the first ${count(left)} rows are omitted, as this server accepts at most ${count(part.times.length)} rows`]
      : []),
    ...series.notes,
  ];
  byId("series-told").textContent = parts.join("; ") + ".";
  byId("series-warnings").replaceChildren(
    ...reply.warnings.map((/** @type {any} */ warning) => make("li", {}, warning.message)),
  );
  showUnusual();
  showForecast();
}

function showUnusual() {
  const rows = unusual(shown, UNUSUAL).map(row => {
    const button = make("button", { type: "button" }, time(shown.times[row], shown.isDated));
    button.addEventListener("click", () => explain(row, AROUND));
    const seen = shown.components.map(({ seen, told }) => told(seen[row])).join(", ");
    return [
      button,
      seen,
      rarity(/** @type {number} */ (shown.anomaly[row])),
      percent(shown.weight[row] ?? 1),
      shown.alarm[row] ? "alarm" : "",
    ];
  });
  byId("series-unusual").replaceChildren(
    rows.length ? table(["when", "#measured", "how rare", "#used", ""], rows) : "None.",
  );
}

function showForecast() {
  const { times, rows, components } = shown;
  const lines = times
    .slice(rows)
    .map((t, i) => [
      time(t, shown.isDated),
      ...components.flatMap(({ told, forecast, fan }) => [
        told(forecast[rows + i]),
        fan[0] ? `${told(fan[0].low[rows + i])} to ${told(fan[0].high[rows + i])}` : "–",
      ]),
    ]);
  const head = components.flatMap(({ name, fan }) => [`#${name}`, fan[0] ? `${percent(fan[0].level)} inside` : ""]);
  byId("series-forecast").replaceChildren(
    lines.length ? table(["when", ...head], lines) : "None requested.",
    ...components.filter(({ weights }) => weights.length).map(({ name, weights }) => sharesOf(name, weights)),
  );
}

/**
 * Bars for the first and the last forecast row, which show the weights of the combined forecasts.
 * @param {string} component
 * @param {[string, number[]][]} weights
 */
function sharesOf(component, weights) {
  const last = weights[0][1].length - 1;
  const bars = [...new Set([0, last])].map(row => {
    const parts = weights.map(([expert, column]) => {
      const part = make("i", { title: `${expert} ${percent(column[row])}` });
      part.style.flexGrow = String(column[row]);
      return part;
    });
    const said = weights
      .filter(([, column]) => column[row] >= 0.01)
      .map(([expert, column]) => `${expert} ${percent(column[row])}`);
    return make("p", {}, `${row + 1} ahead: ${said.join(", ")}`, make("span", { class: "shares" }, ...parts));
  });
  return make("div", {}, make("h3", {}, `Weights of the combined forecasts of ${component}`), ...bars);
}

/** @param {number} row @param {number} [around] */
function explain(row, around) {
  if (row >= shown.rows) return;
  charts.pick(row, around);
  const heading = make("h2", {}, time(shown.times[row], shown.isDated));
  byId("series-explained").replaceChildren(
    heading,
    ...explanation(shown, row).map(sentence => make("p", {}, sentence)),
  );
  byId("series-explained").hidden = false;
  byId("series-explained").scrollIntoView({ block: "nearest" });
  const fields = fieldsOf(form);
  fields.set("row", String(row));
  show(TAB, fields);
}
