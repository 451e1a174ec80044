/** One live filter, with its chart and a sentence on how it used the last measurement. */

import { Charts } from "./charts.js";
import { make } from "./dom.js";
import { count, percent, tellerOf } from "./format.js";
import { FilterStream } from "./filter_stream.js";

/** Number of rows in the chart. */
const ROWS = 240;
const LEVELS = [0.9, 0.5];
const FIELDS = ["mean", "weight", "innovation", "nis", "anomaly", "alarm", "interval"];
const ALARM_RATE = 0.001;

/**
 * @typedef {object} Hearing
 * @property {(component: number, value: number | null) => void} onHand see `charts.js`
 * @property {(index: number) => void} onReady called with the number of measurements in the initial state
 * @property {(message: string) => void} onFailure
 */

export class Pane {
  /** @type {any[]} the last ROWS measurements and their steps */
  #rows = [];
  /** @type {any} */
  #ready = null;
  #isDrawing = false;
  #rejected = 0;
  /** @type {FilterStream | null} */
  stream = null;

  /**
   * @param {HTMLElement} host
   * @param {string} id
   * @param {Hearing} hear
   */
  constructor(host, id, hear) {
    this.hear = hear;
    this.title = make("h2", {});
    this.mood = make("p", { class: "told", role: "status" });
    const plots = make("div", { id });
    host.append(make("div", {}, this.title, this.mood, plots));
    this.charts = new Charts(plots, { onHand: hear.onHand, height: 240 });
  }

  /**
   * Starts a stream, or continues one from a state.
   * @param {import("./sources.js").Source} source
   * @param {string} model
   * @param {string | null} state
   */
  open(source, model, state) {
    this.stream?.drop();
    this.source = source;
    this.#rows = [];
    this.#rejected = 0;
    const first = {
      model: model || undefined,
      size: source.names.length,
      levels: LEVELS,
      fields: FIELDS,
      seed: 7,
      alarm: { rate: ALARM_RATE },
      return_state: true,
      state: state ?? undefined,
    };
    this.stream = new FilterStream(first, {
      onReady: ready => {
        this.#ready = ready;
        this.title.textContent = `Model ${ready.model}`;
        this.mood.textContent = ready.index ? `Continues after ${count(ready.index)} measurements.` : "Ready.";
        this.hear.onReady(ready.index);
      },
      onStep: step => this.#take(step),
      onRefused: message => {
        const at = this.#rows.findIndex(row => row.step === null);
        if (at >= 0) this.#rows.splice(at, 1);
        this.hear.onFailure(message);
      },
      onFailure: message => {
        this.mood.textContent = this.charts.isEmpty ? "" : "The chart below shows the previous result.";
        this.hear.onFailure(message);
      },
    });
  }

  /** @param {number} t @param {(number | null)[] | null} y */
  send(t, y) {
    this.#rows.push({ t, y, step: null });
    if (this.#rows.length > ROWS) this.#rows.shift();
    this.stream?.send({ t, y });
  }

  /** Saves the state and continues the stream. @param {string} model */
  async save(model) {
    const state = (await this.stream?.close()) ?? null;
    if (!state || !this.source) return state;
    const answered = this.#rows.filter(({ step }) => step !== null);
    this.open(this.source, model, state);
    this.#rows = answered;
    return state;
  }

  /** @param {any} step */
  #take(step) {
    const row = this.#rows.find(row => row.step === null);
    if (!row) return;
    row.step = step;
    this.mood.textContent = `${count(step.index + 1)} · ${this.#moodOf(row.y, step)}`;
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.#draw();
    });
  }

  /** Formats a number of the k-th component, rounded according to its scale. */
  #told = (/** @type {number} */ value, /** @type {number} */ k) =>
    tellerOf([value, value + 2 * (this.source?.scales[k] ?? 0)])(value);

  /** @param {(number | null)[] | null} y @param {any} step */
  #moodOf(y, step) {
    const { weight } = step;
    if (y === null || weight === null) {
      return "No measurement. The filter predicts, with growing uncertainty.";
    }
    const wasRejecting = this.#rejected;
    this.#rejected = weight < 0.1 ? wasRejecting + 1 : 0;
    if (weight < 0.1) {
      return `The filter rejects this measurement, which is far from its forecast (${percent(weight)} used).`;
    }
    if (weight < 0.6) return `The filter reduces the weight of this measurement (${percent(weight)} used).`;
    if (wasRejecting > 1) return `After ${wasRejecting} rejections, the filter uses the measurements again.`;
    return `Estimate: ${step.mean.map(this.#told).join(", ")} (${percent(weight)} used).`;
  }

  #draw() {
    const rows = this.#rows.filter(({ step }) => step !== null);
    if (rows.length < 2) return;
    const column = (/** @type {(row: any) => any} */ of) => rows.map(row => of(row) ?? null);
    const names = /** @type {import("./sources.js").Source} */ (this.source).names;
    const seen = names.map((_, k) => column(({ y }) => y?.[k]));
    const components = names.map((name, k) => ({
      name,
      seen: seen[k],
      told: tellerOf(seen[k]),
      mean: column(({ step }) => step.mean[k]),
      innovation: column(({ step }) => step.innovation?.[k]),
      bands: LEVELS.map(level => ({
        level,
        low: column(({ step }) => step.interval[level][k][0]),
        high: column(({ step }) => step.interval[level][k][1]),
      })),
      forecast: [],
      fan: [],
      samples: [],
    }));
    this.charts.show({
      isDated: Boolean(this.source?.isDated),
      rows: rows.length,
      times: rows.map(({ t }) => t),
      components,
      weight: column(({ step }) => step.weight),
      anomaly: column(({ step }) => step.anomaly),
      nis: column(({ step }) => step.nis),
      alarm: column(({ step }) => Number(step.alarm)),
    });
  }
}
